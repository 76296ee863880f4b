"""A chart as SVG: rows below each other, arrows straight down, residual paths and state around the sides."""

from __future__ import annotations

from fledge.accounting.diagram.chart import COLUMNS, Chart, Edge, Node
from fledge.accounting.svg import Drawing, shortened, text_width

MARGIN, LANE, TOP = 24.0, 26.0, 84.0
LEAST_WIDTH = 540.0
BOX, THIN_BOX, SIGN, DOT = 48.0, 32.0, 26.0, 8.0
GAP, GROUP_ROOM, NOTE = 26.0, 34.0, 18.0


class _Layout:
    """Where everything stands: computed once, then only read."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.lane_of: dict[int, int] = {}
        self.width = max(LEAST_WIDTH, *(self._needed(node) for row in chart.rows for node in row))
        self.room_left = MARGIN + 20 + LANE * max(1, self._side_by_side("left"))
        labels = [text_width(e.label, 11.5) for e in chart.edges if e.lane == "right"]
        self.room_right = MARGIN + 20 + (LANE * self._side_by_side("right") + max(labels) if labels else LANE)
        self.top: dict[str, float] = {}
        self.height_of: dict[str, float] = {}
        y = TOP
        starts = {group.first: group for group in chart.groups}
        ends = {group.last for group in chart.groups}
        for number, row in enumerate(chart.rows):
            if number in starts:
                y += GROUP_ROOM
            tallest = max(self._height(node) for node in row)
            for node in row:
                self.height_of[node.key] = self._height(node)
                self.top[node.key] = y + (tallest - self._height(node)) / 2
            y += tallest + GAP
            if number in ends:
                y += GROUP_ROOM / 2
        self.bottom = y - GAP

    def _side_by_side(self, lane: str) -> int:
        """Give each arrow on a side its lane, so that none overlap; how many lanes that takes."""
        placed: list[tuple[int, int, int]] = []
        rows = {node.key: n for n, row in enumerate(self.chart.rows) for node in row}
        for number, edge in enumerate(self.chart.edges):
            if edge.lane != lane:
                continue
            low, high = sorted((rows[edge.source], rows[edge.target]))
            taken = {place for a, b, place in placed if a <= high and low <= b}
            place = next(p for p in range(len(placed) + 1) if p not in taken)
            placed.append((low, high, place))
            self.lane_of[number] = place
        return 1 + max((place for _, _, place in placed), default=-1)

    def _needed(self, node: Node) -> float:
        if node.shape != "box":
            return 0.0
        text = max(text_width(node.title, 13, bold=True), text_width(node.detail, 11.5)) + 22
        return text * COLUMNS / (node.right - node.left)

    @staticmethod
    def _height(node: Node) -> float:
        if node.shape == "dot":
            return DOT
        if node.shape == "sign":
            return SIGN
        return BOX if node.detail else THIN_BOX

    def x(self, column: float) -> float:
        return self.room_left + self.width * column / COLUMNS

    def middle(self, node: Node) -> float:
        return self.x((node.left + node.right) / 2)

    def end(self, key: str) -> float:
        return self.top[key] + self.height_of[key]


def draw_chart(chart: Chart) -> str:
    """The chart as one SVG file."""
    layout = _Layout(chart)
    drawing = Drawing()
    total = layout.room_left + layout.width + layout.room_right
    drawing.text(MARGIN, 36, shortened(chart.title, 17, total - 2 * MARGIN, bold=True), "title", "start")
    drawing.text(MARGIN, 57, chart.subtitle, "detail", "start")
    for group in chart.groups:
        first, last = chart.rows[group.first][0].key, chart.rows[group.last][0].key
        y, end = layout.top[first] - GROUP_ROOM + 4, layout.end(last) + 14
        drawing.box(MARGIN, y, total - 2 * MARGIN, end - y, "group", 10)
        drawing.text(total - MARGIN - 14, y + 19, group.title, "small", "end")
    for number, edge in enumerate(chart.edges):
        _draw_edge(drawing, layout, number, edge)
    for row in chart.rows:
        for node in row:
            _draw_node(drawing, layout, node)
    y = layout.bottom + 30
    for style, meaning in _legend(chart):
        drawing.path(f"M{MARGIN:g},{y - 4:g}h34", style)
        drawing.text(MARGIN + 44, y, meaning, "small", "start")
        y += NOTE
    for note in chart.notes:
        drawing.text(MARGIN, y, note, "small", "start")
        y += NOTE
    return drawing.render(total, y + 6, f"{chart.title}, {chart.subtitle}")


def _legend(chart: Chart) -> list[tuple[str, str]]:
    styles = {edge.style for edge in chart.edges}
    meanings = [("residual", "residual path: added to what the layer computes"),
                ("state", "state: carried from one token to the next")]  # fmt: skip
    return [(style, meaning) for style, meaning in meanings if style in styles]


def _draw_node(drawing: Drawing, layout: _Layout, node: Node) -> None:
    x, y, height = layout.middle(node), layout.top[node.key], layout.height_of[node.key]
    if node.shape == "dot":
        drawing.dot(x, y + height / 2, 3.2, "flow")
    elif node.shape == "sign":
        drawing.circle(x, y + height / 2, height / 2, "plain")
        drawing.path(f"M{x - 6:g},{y + height / 2:g}h12M{x:g},{y + height / 2 - 6:g}v12", "flow")
    else:
        left, right = layout.x(node.left), layout.x(node.right)
        drawing.box(left, y, right - left, height, node.kind)
        drawing.text(x, y + (20 if node.detail else 21), node.title, "name")
        if node.detail:
            drawing.text(x, y + 37, node.detail)


def _draw_edge(drawing: Drawing, layout: _Layout, number: int, edge: Edge) -> None:
    source, target = layout.chart.node(edge.source), layout.chart.node(edge.target)
    if edge.lane:
        _draw_lane(drawing, layout, layout.lane_of[number], edge, source, target)
        return
    start, end = layout.end(edge.source), layout.top[edge.target]
    if target.shape == "sign" and edge.at is not None:
        x, y = layout.x(edge.at), end + SIGN / 2
        side = "right" if x < layout.middle(target) else "left"
        tip = layout.middle(target) - (SIGN / 2 if side == "right" else -SIGN / 2)
        drawing.path(f"M{x:g},{start:g}V{y:g}H{tip - (3 if side == 'right' else -3):g}", edge.style, (tip, y, side))
        return
    narrow = source if source.right - source.left < target.right - target.left else target
    if edge.at is not None:
        x = layout.x(edge.at)
    elif narrow.shape == "dot" and source.shape != "box" and target.shape != "box":
        x = layout.middle(target)
    else:
        x = layout.middle(narrow)
    if target.shape == "dot":
        drawing.path(f"M{x:g},{start:g}V{end + 2:g}", edge.style)
    elif source.shape != "box" and not target.left <= (source.left + source.right) / 2 <= target.right:
        x, turn = layout.middle(target), (start + end) / 2 - 4
        drawing.path(f"M{layout.middle(source):g},{start:g}V{turn:g}H{x:g}V{end - 3:g}", edge.style, (x, end, "down"))
    else:
        drawing.path(f"M{x:g},{start:g}V{end - 3:g}", edge.style, (x, end, "down"))
    if edge.label:
        drawing.text(x + 9, end - GAP / 2 + 3.5, edge.label, "small", "start")


def _draw_lane(drawing: Drawing, layout: _Layout, place: int, edge: Edge, source: Node, target: Node) -> None:
    """Out of the source's side, along a lane, into the target's side; a state leaves low and enters high."""
    right = edge.lane == "right"
    lane = layout.x(COLUMNS) + LANE * (place + 0.9) if right else layout.x(0) - LANE * (place + 0.9)

    def side(node: Node) -> float:
        if node.shape == "box":
            return layout.x(node.right if right else node.left)
        return layout.middle(node) + (0 if node.shape == "dot" else SIGN / 2 * (1 if right else -1))

    upward = layout.top[target.key] <= layout.top[source.key]
    from_y = layout.top[source.key] + layout.height_of[source.key] * (0.72 if upward else 0.5)
    to_y = layout.top[target.key] + layout.height_of[target.key] * (0.28 if upward else 0.5)
    tip, radius = side(target), 8.0
    out, down = (radius if right else -radius), (-radius if upward else radius)
    drawing.path(
        f"M{side(source):g},{from_y:g}H{lane - out:g}q{out:g},0 {out:g},{down:g}V{to_y - down:g}"
        f"q0,{down:g} {-out:g},{down:g}H{tip + (3 if right else -3):g}",
        edge.style,
        (tip, to_y, "left" if right else "right"),
    )
    if edge.label and right:
        drawing.text(lane + 8, (from_y + to_y) / 2 + 4, edge.label, "state-word", "start")
    elif edge.label:
        drawing.text(lane, layout.end(source.key) + 16, edge.label, "state-word", "start")
