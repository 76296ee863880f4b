"""Imports point down the flow: a room knows those before it; nobody knows the command line or the page."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import get_args

import pytest

from fledge.accounting.diagram.house import GROUND, ORDER, SOURCE, file_imports, imported_rooms
from fledge.config import ModelConfig, SamplingConfig
from fledge.config.settings import Policy
from fledge.config.sizes import OPTIMIZER_SIZES, OptimizerName
from fledge.corpus.readers import READERS
from fledge.files import DOCUMENTS, Format
from fledge.generation.sampling import FILTERS
from fledge.model.activations import ACTIVATIONS
from fledge.tokens.policies import POLICIES
from fledge.training.optimizers import OPTIMIZERS
from tools.house import cycles

FILES = sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0][:2] != "__")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_room_has_its_place_in_the_flow() -> None:
    assert imported_rooms().keys() <= set(ORDER)


def test_git_ignores_no_file_of_the_source() -> None:
    """A pattern for what programs write, such as `runs/`, must not hit ours: packages leave out what git ignores."""
    root = SOURCE.parent.parent
    command = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "--", "src", "tests"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no clone of git")
    assert not [name for name in done.stdout.splitlines() if name.endswith((".py", ".toml", ".js", ".css", ".html"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down_the_flow(path: Path) -> None:
    """Imports inside functions and under TYPE_CHECKING count like any other."""
    room = room_of(path)
    above = [used for used in file_imports(path) if used != room and ORDER.index(used) > ORDER.index(room)]
    assert not above, f"{room} comes before {', '.join(above)}: move what both need further down"


def test_no_modules_need_each_other() -> None:
    """Not by imports inside functions either."""
    assert not cycles()


def test_each_registry_has_what_its_setting_names() -> None:
    """So that a new one is two places: a name among those of the setting, and an entry."""
    assert set(get_args(OptimizerName)) == OPTIMIZER_SIZES.keys() == OPTIMIZERS.keys()
    assert {*get_args(Policy)} - {"lanes"} == POLICIES.keys()
    assert {*get_args(Format)} - {"auto", "akjv"} == READERS.keys() - {"memory"}
    assert {*DOCUMENTS.values()} <= {*get_args(Format)}
    assert get_args(ModelConfig.model_fields["feed_forward"].annotation) == (*ACTIVATIONS,)
    assert FILTERS.keys() <= SamplingConfig.model_fields.keys()


def test_nobody_imports_the_command_line_or_the_page() -> None:
    """Only the command line itself may start the page."""
    for room, used in imported_rooms().items():
        assert "cli" not in used
        assert "web" not in used or room == "cli"


def test_the_ground_knows_no_room() -> None:
    imports = imported_rooms()
    assert all(imports[room] <= set(GROUND) for room in GROUND if room in imports)


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    """Plain, from a package, of a public name, relative, inside a function and for type checkers alone."""
    for room in ("corpus", "model", "run", "files", "config"):
        (tmp_path / room).mkdir()
    inner = tmp_path / "model" / "inner"
    inner.mkdir()
    (inner / "part.py").write_text(
        "import fledge.corpus.text\nfrom fledge import Run\nfrom ...files import sha256\nfrom .. import config\n"
        "def later():\n    from fledge.config import RunConfig\n"
        "if TYPE_CHECKING:\n    from fledge import corpus\n"
    )
    found = sorted(file_imports(inner / "part.py", tmp_path))
    assert found == ["config", "corpus", "corpus", "files", "model", "run"]
