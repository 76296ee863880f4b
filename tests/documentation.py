"""Runs the examples of a Markdown page, so that documentation can't drift from the program.

Fenced blocks are run in the order of the page, in one folder: `sh` and `bash` as they are; `console` after
each `$ `, comparing what is printed with what the page shows; `python` in one namespace for the whole page.
In shown output, `…` stands for anything. A block after a comment `<!-- not run: why -->` is left out.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LANGUAGES = ("sh", "bash", "console", "python")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*$", re.M | re.S)
NOT_RUN = re.compile(r"<!--\s*not run:\s*(?P<why>.+?)\s*-->\s*\Z", re.S)


class Example(NamedTuple):
    """One fenced block: its language, code, first line in the page, and why it is not run (None if it is)."""

    language: str
    code: str
    line: int
    not_run: str | None


class Command(NamedTuple):
    """A command of a `console` block, and the output that the page shows for it."""

    command: str
    shown: list[str]


def examples(page: str) -> list[Example]:
    """The blocks of a page in languages that can be run."""
    found = []
    for match in FENCE.finditer(page):
        if match["language"] in LANGUAGES:
            reason = NOT_RUN.search(page[: match.start()])
            line = page.count("\n", 0, match.start("code")) + 1
            code = textwrap.dedent(match["code"])
            found.append(Example(match["language"], code, line, reason["why"] if reason else None))
    return found


HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.M)
LINK = re.compile(r"""\]\((?![a-z]+:)([^)#\s]*)(#[^)\s]+)?\)|(?:src|srcset|href)="(?![a-z]+:)([^"#]+)\"""")


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the handbook's site make them."""
    words = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(FENCE.sub("", page)))
    return set(words)


def broken_links(page: Path) -> list[str]:
    """The links and pictures of a page that lead nowhere: no such file, or no such heading in it."""
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text())):
        path, anchor = match[1] or match[3] or "", match[2]
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor[1:] not in anchors(target.read_text())):
            broken.append(f"{path}{anchor or ''}")
    return broken


def commands(code: str) -> list[Command]:
    """The commands of a `console` block; a line that ends in a backslash goes on in the next."""
    found: list[Command] = []
    continued = False
    for line in code.splitlines():
        if continued:
            found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line.removeprefix('> ')}")
            continued = line.endswith("\\")
        elif line.startswith("$ "):
            found.append(Command(line[2:], []))
            continued = line.endswith("\\")
        elif found:
            found[-1].shown.append(line)
        else:
            raise AssertionError(f"a console block begins with output: {line!r}")
    return found


def run_page(
    page: Path,
    folder: Path,
    *,
    replace: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> list[Example]:
    """Run every example of `page` in `folder`; the examples that were run.

    `replace` changes texts in the code first, such as the number of steps of a long training.
    """
    ran = []
    namespace: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        for example in examples(page.read_text()):
            if example.not_run is not None:
                continue
            code = example.code
            for old, new in (replace or {}).items():
                code = code.replace(old, new)
            where = f"{page.name}, line {example.line}"
            if example.language == "python":
                _run_python(code, page, example.line, namespace)
            elif example.language == "console":
                for command, shown in commands(code):
                    _compare(shown, _run_shell(command, where, environment, timeout), f"{where}: $ {command}")
            else:
                _run_shell(code, where, environment, timeout)
            ran.append(example)
    finally:
        os.chdir(before)
    return ran


def _run_shell(code: str, where: str, environment: Mapping[str, str] | None, timeout: float) -> str:
    """What the commands print on standard output; a failing one fails the test with all that it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    surroundings = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", **(environment or {})}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env=surroundings,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    out, err = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{code}\n{out}{err}"
    return out


def _run_python(code: str, page: Path, line: int, namespace: dict[str, Any]) -> None:
    """Plain code is executed; a session with `>>>` is compared with what it prints."""
    if ">>>" in code:
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        session = doctest.DocTestParser().get_doctest(code, namespace, page.name, str(page), line - 1)
        printed: list[str] = []
        runner = doctest.DocTestRunner(optionflags=options, verbose=False)
        runner.run(session, out=printed.append, clear_globs=False)
        namespace.update(session.globs)
        assert not runner.failures, f"{page.name}, line {line}\n{''.join(printed)}"
        return
    padded = "\n" * (line - 1) + code  # so that a traceback names the line of the page
    exec(compile(padded, str(page), "exec"), namespace)


def _compare(shown: list[str], printed: str, where: str) -> None:
    """Every line of output on the page must be printed, in that order; others may stand between them."""
    lines = [line.rstrip() for line in printed.splitlines()]
    place = 0
    for line in shown:
        wanted = line.rstrip()
        if wanted in ("", "…"):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("…")))
        while place < len(lines) and not pattern.fullmatch(lines[place]):
            place += 1
        assert place < len(lines), f"{where}\nthe page shows: {wanted}\nprinted was:\n{printed}"
        place += 1
