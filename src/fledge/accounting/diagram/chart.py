"""A flow chart as data: nodes in rows from top to bottom, arrows between them, groups that happen n times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

COLUMNS = 12


@dataclass(frozen=True)
class Node:
    """A box (or a sign such as ⊕) that covers the columns `left` to `right` of its row."""

    key: str
    title: str
    detail: str = ""
    kind: str = "plain"
    left: float = 0
    right: float = COLUMNS
    shape: str = "box"  # or sign: a small circle with the title in it; or dot: where a path splits


@dataclass(frozen=True)
class Edge:
    """An arrow, straight down; `at` says in which column, `lane` sends it around on the left or the right."""

    source: str
    target: str
    label: str = ""
    style: str = "flow"  # or residual, or state: what is carried on to the next token
    lane: str = ""
    at: float | None = None


@dataclass
class Group:
    """Rows that are drawn once and happen `times` times."""

    title: str
    first: int
    last: int = 0


@dataclass
class Chart:
    """Rows are added in reading order; `link` joins a node to those it follows."""

    title: str
    subtitle: str = ""
    rows: list[list[Node]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, *nodes: Node) -> None:
        self.rows.append(list(nodes))

    def step(self, node: Node, *sources: str, label: str = "") -> str:
        """A row of one node, with arrows from `sources`; returns its key."""
        self.row(node)
        for source in sources:
            self.link(source, node.key, label)
        return node.key

    def link(self, source: str, target: str, label: str = "", **options: object) -> None:
        self.edges.append(Edge(source, target, label, **options))  # type: ignore[arg-type]  # Edge's own

    @contextmanager
    def group(self, title: str) -> Iterator[None]:
        group = Group(title, len(self.rows))
        self.groups.append(group)
        yield
        group.last = len(self.rows) - 1

    def node(self, key: str) -> Node:
        return next(node for row in self.rows for node in row if node.key == key)
