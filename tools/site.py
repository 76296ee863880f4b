"""What makes the handbook a site: a hook of MkDocs, which mkdocs.yml names. `make docs` runs it.

README.md is the home page and its handbook table the navigation, so that a page that is in no row fails the build.
The pages stay as they read on GitHub; what differs on the site is changed on the way.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
AT_THE_ROOT["AGENTS.md"] = "AGENTS.md"
COMMENT = re.compile(r"^[ \t]*<!--.*?-->[ \t]*\n", re.M | re.S)
PICTURE = re.compile(r'<picture><source media="[^"]*" srcset="([^"]*)"><img alt="([^"]*)" src="([^"]*)"></picture>')
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def on_config(config: Any) -> Any:
    """The navigation: the rows of README's handbook table, then what lies beside the handbook."""
    rows = handbook((ROOT / "README.md").read_text())
    config.nav = [{"Home": "index.md"}, *({row.capitalize(): pages} for row, pages in rows.items())]
    config.nav.append({"Python": "reference.md"})
    project = {"Contributing": "CONTRIBUTING.md", "Changes": "CHANGELOG.md", "For programs": "AGENTS.md"}
    config.nav.append({"The project": [{title: page} for title, page in project.items()]})
    return config


def handbook(readme: str) -> dict[str, list[dict[str, str]]]:
    """The titles and pages of each row of the handbook table.

    >>> handbook("## Handbook\\n| | |\\n|---|---|\\n| begin | [Data](docs/data.md) · [Models](docs/models.md) |\\n")
    {'begin': [{'Data': 'data.md'}, {'Models': 'models.md'}]}
    """
    table = readme.split("## Handbook\n", 1)[1]
    rows = (line.strip("|").split("|", 1) for line in table.splitlines() if line.startswith("|") and "](" in line)
    return {
        name.strip(): [{title: page.removeprefix("docs/")} for title, page in LINK.findall(cells)]
        for name, cells in rows
    }


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the pages that do not lie in docs/: those at the repository's root, and the Python reference."""
    from mkdocs.structure.files import File

    for name, page in AT_THE_ROOT.items():
        files.append(File.generated(config, page, content=at_home((ROOT / name).read_text())))
    files.append(File.generated(config, "reference.md", content=reference()))
    return files


def at_home(text: str) -> str:
    """A page of the repository's root, with links as seen from docs/.

    >>> at_home('[Data](docs/data.md#how-fast), [README](README.md), <img src="docs/house.svg">')
    '[Data](data.md#how-fast), [README](index.md), <img src="house.svg">'
    """
    text = re.sub(r'(\]\(|src="|srcset=")docs/', r"\1", text)
    return text.replace("](README.md", "](index.md")


def reference() -> str:
    """The page of the Python names: those of `fledge` itself, and the pieces that the handbook builds a model of."""
    sys.path.insert(0, str(ROOT / "src"))
    import fledge

    page = "# Python reference\n\nThe public names are those of `fledge` itself. They are loaded when first used.\n\n"
    page += "".join(entry(f"fledge.{name}") for name in fledge.__all__ if name in fledge._HOMES)
    page += "## Pieces\n\nWhat a model is built and trained with, as in [By the pieces](pieces.md).\n\n"
    return page + "".join(entry(name) for name in pieces((ROOT / "docs" / "pieces.md").read_text()))


def entry(name: str) -> str:
    return f"::: {name}\n\n"


def pieces(page: str) -> list[str]:
    """The names that the first table of the page on pieces gives, with their modules.

    >>> pieces("| a, b | `A` and `b` of `fledge.x`; `c` of `fledge.y.z` |\\n| softmax | torch's own |\\n")
    ['fledge.x.A', 'fledge.x.b', 'fledge.y.z.c']
    """
    found = []
    for names, module in re.findall(r"((?:`\w+`(?:, | and )?)+) of `(fledge[\w.]+)`", page):
        found += [f"{module}.{name}" for name in re.findall(r"`(\w+)`", names)]
    return found


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A page as the site shows it: without comments, and with each picture in the scheme that the reader chose."""
    if page.file.src_uri not in AT_THE_ROOT.values():
        markdown = re.sub(r"\]\(\.\./(?=[A-Z]+\.md)", "](", markdown).replace("](README.md", "](index.md")
    return PICTURE.sub(r"![\2](\1#only-dark)![\2](\3#only-light)", COMMENT.sub("", markdown))
