"""A chart as Mermaid text, for pages that draw it themselves."""

from __future__ import annotations

from fledge.accounting.diagram.chart import Chart, Node

_ARROWS = {"flow": "-->", "residual": "-->", "state": "-.->"}


def write_mermaid(chart: Chart) -> str:
    """The same nodes, groups and arrows as the SVG, as a Mermaid flow chart."""
    lines = ["---", f'title: "{_safe(f"{chart.title}, {chart.subtitle}")}"', "---", "flowchart TD"]
    starts = {group.first: group for group in chart.groups}
    ends = {group.last for group in chart.groups}
    indent = "  "
    for number, row in enumerate(chart.rows):
        if number in starts:
            lines.append(f'  subgraph group{number}["{_safe(starts[number].title)}"]')
            indent = "    "
        lines += [f"{indent}{node.key}{_shape(node)}" for node in row]
        if number in ends:
            lines.append("  end")
            indent = "  "
    for edge in chart.edges:
        label = edge.label or ("residual" if edge.style == "residual" else "")
        middle = f'{_ARROWS[edge.style]}|"{_safe(label)}"|' if label else _ARROWS[edge.style]
        lines.append(f"  {edge.source} {middle} {edge.target}")
    if chart.notes:  # below the last node, without a frame or an arrow
        lines.append(f'  notes["{"<br/>".join(map(_safe, chart.notes))}"]:::notes')
        lines += [f"  {chart.rows[-1][0].key} ~~~ notes", "  classDef notes fill:none,stroke:none"]
    return "\n".join(lines) + "\n"


def _shape(node: Node) -> str:
    if node.shape == "dot":
        return "(( ))"
    if node.shape == "sign":
        return f'(("{node.title}"))'
    detail = f"<br/>{_safe(node.detail)}" if node.detail else ""
    return f'["{_safe(node.title)}{detail}"]'


def _safe(text: str) -> str:
    return text.replace('"', "#quot;").replace("\\", "#92;")
