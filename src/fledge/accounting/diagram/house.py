"""fledge's own rooms and who imports whom, read from the source itself, so that the picture stays true."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import fledge
from fledge.accounting.svg import SERIES, Drawing, text_width

SOURCE = Path(__file__).parents[2]
GROUND = ("devices", "errors", "extras", "system", "files", "memory", "notebook", "progress", "plot", "config")
LONGEST = 84  # letters of a room's purpose
ORDER = (
    *GROUND,
    *("corpus", "tokenizer", "tokens", "model", "loss", "accounting", "bundle", "runs", "generation"),
    *("evaluation", "training", "run", "reports", "start", "experiments", "workbook", "kaggle", "web", "cli"),
)
"""Data flows along it; a room may import those before it, never those after it."""
ROW, BOX, ARC = 44.0, 32.0, 15.0


def imported_rooms(source: Path = SOURCE) -> dict[str, set[str]]:
    """For every room, the rooms that any of its files imports, imports inside functions included."""
    found: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if not room.startswith("__"):  # the public names and `python -m fledge` only pass on
            found.setdefault(room, set()).update(set(file_imports(path, source)) - {room})
    return found


def file_imports(path: Path, source: Path = SOURCE) -> Iterator[str]:
    """The rooms that one file imports."""
    package = ("fledge", *path.relative_to(source).parent.parts)
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            names = [module] if module.count(".") else [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "fledge" and len(parts) > 1:
                home = fledge._HOMES.get(parts[1], name)  # a public name stands for the room it comes from
                if is_room(source, room := home.split(".")[1]):
                    yield room


def is_room(source: Path, name: str) -> bool:
    return (source / name).is_dir() or (source / f"{name}.py").is_file()


def purpose(room: str, source: Path = SOURCE) -> str:
    """The first sentence of the room's docstring, or as much of it as reads well in one line."""
    path = source / room / "__init__.py" if (source / room).is_dir() else source / f"{room}.py"
    text = " ".join((ast.get_docstring(ast.parse(path.read_bytes())) or "").split())
    text = text.replace("`", "").split(". ")[0].rstrip(".")
    while len(text) > LONGEST:
        cut = max(text.rfind(mark, 0, LONGEST) for mark in ":;,")
        text = text[: cut if cut > 0 else text.rfind(" ", 0, LONGEST)]
    return text


def draw_house(source: Path = SOURCE) -> str:
    """Rooms in the order of the flow, from the ground up; arcs on the right lead down to what a room uses."""
    imports = imported_rooms(source)
    rooms = [room for room in reversed(ORDER) if room in imports and room not in GROUND]
    place = {room: number for number, room in enumerate(rooms)}
    arcs = [(room, used) for room in rooms for used in sorted(imports[room]) if used in place]
    left, name_width = 24.0, 118.0
    words = max(text_width(purpose(room, source), 11.5) for room in rooms)
    right = left + name_width + 20 + words
    reach = ARC * max((place[used] - place[room] for room, used in arcs), default=0)
    drawing = Drawing()
    drawing.text(left, 36, "The house: every room, and which rooms it uses", "title", "start")
    drawing.text(left, 57, "An arc leads from a room down to one it imports. None leads up.", "detail", "start")
    colours = {room: SERIES[number % len(SERIES)] for number, room in enumerate(reversed(rooms))}

    def middle(room: str) -> float:
        return 84 + ROW * place[room] + BOX / 2

    for room, used in sorted(arcs, key=lambda arc: place[arc[0]] - place[arc[1]]):
        start, end = middle(room) + 4, middle(used) - 4
        bend = right + 26 + ARC * (place[used] - place[room]) * 1.25
        tip, neck = right + 16, right + 23
        drawing.items.append(
            f'<path d="M{tip:g},{start:g}C{bend:g},{start:g} {bend:g},{end:g} {neck:g},{end:g}" '
            f'fill="none" stroke="{colours[used]}" stroke-width="1.5" stroke-opacity="0.8"/>'
            f'<polygon points="{tip:g},{end:g} {neck:g},{end - 3.6:g} {neck:g},{end + 3.6:g}" '
            f'fill="{colours[used]}"/>'
        )
    for room in rooms:
        y = middle(room) - BOX / 2
        drawing.box(left, y, right + 12 - left, BOX, "plain")
        drawing.bar(left, y + 5, 4, BOX - 10, colours[room])
        drawing.text(left + 16, y + 21, room, "name", "start")
        drawing.text(left + name_width + 10, y + 20.5, purpose(room, source), "detail", "start")
    y = 84 + ROW * len(rooms)
    ground = ", ".join(room for room in reversed(GROUND) if room in imports)
    drawing.box(left, y, right + 12 - left, BOX, "embedding")
    drawing.text(left + 16, y + 21, ground, "name", "start")
    drawing.text(right, y + 20.5, "the ground that all rooms stand on", "detail", "end")
    return drawing.render(right + 40 + reach, y + BOX + 24, "The rooms of fledge and their imports")


def house_mermaid(source: Path = SOURCE) -> str:
    """The same rooms and imports as Mermaid text; the ground, which all of them use, without arrows to it."""
    imports = imported_rooms(source)
    rooms = [room for room in reversed(ORDER) if room in imports and room not in GROUND]
    ground = ", ".join(room for room in reversed(GROUND) if room in imports)
    lines = ["---", 'title: "The house: every room, and which rooms it uses"', "---", "flowchart TD"]
    lines += [f'  {room}["{room}<br/>{purpose(room, source)}"]' for room in rooms]
    lines += [f'  ground["{ground}<br/>the ground that all rooms stand on"]']
    lines += [f"  {room} --> {used}" for room in rooms for used in sorted(imports[room]) if used in rooms]
    return "\n".join(lines) + "\n"
