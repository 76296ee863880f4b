"""How large and how tangled the code is: files, lines, names with several meanings, import cycles, the way of a text.

python -m tools.house           the figures of the source alone
python -m tools.house --trace   also count the functions that a text passes on its way to a sample
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from fledge.accounting.diagram.house import SOURCE

FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imports(path: Path) -> Iterator[str]:
    """The modules of fledge that a file imports, inside functions too, but for type checkers alone."""
    tree = ast.parse(path.read_bytes())
    typing = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in typing and (node.module or "").startswith("fledge"):
            module = node.module or ""
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                yield whole if whole in MODULES else module


def cycles() -> list[list[str]]:
    """Modules that need each other, a group each. A package's own `__init__` only gathers names, and is left out."""
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    graph = {module: {name for name in imports(path) if name not in packages} for module, path in MODULES.items()}
    graph = {module: used & graph.keys() for module, used in graph.items() if module not in packages}
    reach: dict[str, set[str]] = {}
    for start in graph:
        found, waiting = set[str](), [start]
        while waiting:
            for used in graph[waiting.pop()]:
                if used not in found:
                    found.add(used)
                    waiting.append(used)
        reach[start] = found
    groups = {tuple(sorted(other for other in reach[m] if m in reach[other])) for m in graph if m in reach[m]}
    return [list(group) for group in sorted(groups)]


def meanings() -> dict[str, list[str]]:
    """Public classes and functions of one name in several modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        if ".cli" in module or ".standalone" in module:  # verbs are named for what they do; the others leave us
            continue
        for node in ast.parse(path.read_bytes()).body:
            public = isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
            if public and node.name != "routes":  # of each part of the page, which has its own
                homes[node.name].append(module)
    return {name: places for name, places in sorted(homes.items()) if len(places) > 1}


def trace() -> tuple[int, int]:
    """The functions of fledge, and their files, that run from a text to a sample of a model trained on it."""
    from fledge import Run

    seen: set[tuple[str, str]] = set()

    def watch(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")  # not a class's body
        if event == "call" and code.co_filename.startswith(str(SOURCE)) and function:
            seen.add((code.co_filename, code.co_qualname if sys.version_info >= (3, 11) else code.co_name))

    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text("Once upon a time, there was a little boy named Tim.\n" * 200)
        small = ["training.steps=2", "training.batch_size=2", "model.width=32", "tokens.context_length=16"]
        run = Run("akjv-demo", f"{folder}/run", overrides=[*small, f"corpus.source={text}"], quiet=True)
        sys.setprofile(watch)
        try:
            run.train()
            run.generate(["Once"])
        finally:
            sys.setprofile(None)
    return len(seen), len({file for file, _ in seen})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    print(f"{len(lines)} Python files, {sum(lines.values()):,} lines")
    rooms: dict[str, list[int]] = defaultdict(list)
    for path, count in lines.items():
        rooms[path.relative_to(SOURCE).parts[0].removesuffix(".py")].append(count)
    for room, counts in sorted(rooms.items(), key=lambda item: -sum(item[1])):
        print(f"  {room:14} {len(counts):3} files {sum(counts):6,} lines")
    print("names with several meanings:")
    for name, places in meanings().items():
        print(f"  {name}: {', '.join(place.removeprefix('fledge.') for place in places)}")
    print("import cycles:")
    for group in cycles():
        print(f"  {' <-> '.join(module.removeprefix('fledge.') for module in group)}")
    if options.trace:
        functions, files = trace()
        print(f"from text to sample: {functions} functions in {files} files")


if __name__ == "__main__":
    main()
