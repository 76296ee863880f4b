"""Facts about what is found below the served folders, and that links and broken folders stay harmless."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from fledge.errors import FledgeError
from fledge.web.app import create_app
from fledge.web.library import Library, NotFound, readable_file


def test_everything_is_found_by_name(world: Path) -> None:
    found = Library([world / "runs", world / "tokenizers"]).catalogue()
    assert list(found.runs) == ["alpha", "beta", "broken"]
    assert "alpha/checkpoints/step-00000200" in found.bundles
    assert list(found.tokenizers) == ["bpe-300", "bpe-370", "characters", "words"]


def test_a_run_itself_and_a_bundle_itself_can_be_served(world: Path) -> None:
    run = Library([world / "runs" / "alpha"]).catalogue()
    assert list(run.runs) == ["alpha"]
    bundle = Library([world / "runs" / "alpha" / "checkpoints" / "step-00000200"]).catalogue()
    assert list(bundle.bundles) == ["step-00000200"]


def test_a_file_is_a_tokenizer(world: Path) -> None:
    library = Library([world / "tokenizers" / "bpe-300" / "tokenizer.json"])
    assert library.tokenizer("tokenizer.json").is_file()


def test_equal_names_in_two_folders_are_told_apart(world: Path, tmp_path: Path) -> None:
    other = tmp_path / "others"
    shutil.copytree(world / "runs" / "alpha", other / "alpha")
    found = Library([world / "runs", other]).catalogue()
    assert {"runs/alpha", "others/alpha"} <= set(found.runs)
    assert {"runs/alpha/checkpoints/step-00000200", "others/alpha/checkpoints/step-00000200"} <= set(found.bundles)


def test_a_folder_that_is_called_like_a_second_one_clashes_with_nothing(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "runs" / "alpha", tmp_path / "alpha (2)")
    assert list(Library([tmp_path]).catalogue().runs) == ["alpha (2)"]


def test_what_lies_too_deep_or_behind_too_many_is_said_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1/2/3/4/5/6").mkdir(parents=True)
    assert not Library([tmp_path]).catalogue().skipped
    (tmp_path / "1/2/3/4/5/6/7").mkdir()
    assert "6 folders deep" in Library([tmp_path]).catalogue().skipped[tmp_path.name]
    monkeypatch.setattr("fledge.web.library.FOLDERS", 3)
    assert "beyond 3 folders" in Library([tmp_path]).catalogue().skipped[tmp_path.name]


def test_the_name_of_a_run_stands_for_its_best_checkpoint(world: Path) -> None:
    assert Library([world / "runs"]).bundle("alpha").name == "step-00000200"


def test_a_link_that_leads_outside_is_left_out(world: Path, tmp_path: Path) -> None:
    served = tmp_path / "runs"
    served.mkdir()
    (served / "link").symlink_to(world / "runs" / "alpha")
    found = Library([served]).catalogue()
    assert not found.runs
    assert "leads outside" in found.skipped["link"]


def test_a_file_that_is_a_link_to_elsewhere_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    run = tmp_path / "run"
    run.mkdir()
    (run / "samples.txt").symlink_to(secret)
    assert readable_file(run, "samples.txt") is None


def test_unfinished_folders_are_not_shown(world: Path, tmp_path: Path) -> None:
    shutil.copytree(
        world / "runs" / "alpha" / "checkpoints" / "step-00000200",
        tmp_path / "a" / "checkpoints" / "step-00000300.partial",
    )
    assert not Library([tmp_path]).catalogue().bundles


def test_what_the_trials_of_an_experiment_share_is_no_run(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "runs", tmp_path / "runs")
    shared = tmp_path / "runs" / "sweep" / "data" / "0123456789ab"
    shared.mkdir(parents=True)
    (shared / "config.json").write_text("{}")
    (shared / "tokenizer").mkdir()
    for file in next((world / "runs").rglob("tokenizer.json")).parent.glob("tokenizer*.json"):
        shutil.copy(file, shared / "tokenizer")
    found = Library([tmp_path / "runs"]).catalogue()
    assert found.runs.keys() == Library([world / "runs"]).catalogue().runs.keys()
    assert "sweep/data/0123456789ab/tokenizer" in found.tokenizers


def test_a_name_that_is_not_there_gets_the_nearest(world: Path) -> None:
    with pytest.raises(NotFound, match="Did you mean alpha"):
        Library([world / "runs"]).run("alhpa")


def test_a_folder_that_is_waited_for_is_shown_when_it_comes(world: Path, tmp_path: Path) -> None:
    library = Library([tmp_path / "runs"], waiting=True)
    assert not library.catalogue().runs
    shutil.copytree(world / "runs" / "alpha", tmp_path / "runs" / "alpha")
    library._looked = float("-inf")
    assert list(library.catalogue().runs) == ["alpha"]


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FledgeError, match=r"There is no .* to serve"):
        Library([tmp_path / "nothing"])


def test_a_run_s_name_never_stands_for_a_run_that_lies_inside_it(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "runs" / "alpha", tmp_path / "p")
    shutil.copytree(world / "runs" / "beta", tmp_path / "p" / "z")
    library = Library([tmp_path])
    assert library.bundle("p") == tmp_path / "p" / "checkpoints" / "step-00000200"
    assert library.bundle("p/z") == tmp_path / "p" / "z" / "checkpoints" / "step-00000120"
    shutil.rmtree(tmp_path / "p" / "checkpoints")
    with pytest.raises(NotFound):
        Library([tmp_path]).bundle("p")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_or_bundle_with_a_file_from_elsewhere_is_left_out(world: Path, tmp_path: Path, name: str) -> None:
    bundle = world / "runs" / "alpha" / "checkpoints" / "step-00000200"
    for source, place in ((world / "tokenizers" / "bpe-300", "t"), (bundle, "b")):
        shutil.copytree(source, tmp_path / "served" / place)
        (tmp_path / "served" / place / name).unlink()
        (tmp_path / "served" / place / name).symlink_to(source / name)
    found = Library([tmp_path / "served"]).catalogue()
    assert not found.tokenizers
    assert not found.bundles
    assert "leads outside" in found.skipped["t"]
    assert "leads outside" in found.skipped["b"]


def test_a_file_that_is_no_tokenizer_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("In the beginning")
    with pytest.raises(FledgeError, match=r"my\.txt is no bundle, and no tokenizer"):
        Library([tmp_path / "my.txt"])


def test_the_best_checkpoint_of_a_run_is_marked(world: Path, tmp_path: Path) -> None:
    """The one that the run's own name stands for, which need not be its last."""
    run = shutil.copytree(world / "runs" / "alpha", tmp_path / "runs" / "alpha")
    lines = (run / "metrics.csv").read_text().splitlines()
    place = lines[0].split(",").index("validation_loss")
    rows = [line.split(",") for line in lines[1:]]
    for row in rows:
        row[place] = {"100": "1.5", "200": "2.5"}.get(row[0], "")
    (run / "metrics.csv").write_text("\n".join([lines[0], *map(",".join, rows)]) + "\n")
    client = TestClient(create_app([tmp_path / "runs"]), base_url="http://127.0.0.1")
    marked = {entry["step"]: entry["best"] for entry in client.get("/api/library").json()["bundles"]}
    assert marked == {100: True, 200: False}
