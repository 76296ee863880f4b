"""Packing for Kaggle: what goes along is enough to install offline, and the notebook trains and goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import ClassVar

import pytest

from fledge.config import ModelConfig, load_recipe, override_config
from fledge.errors import FledgeError
from fledge.kaggle import distribution, kernel
from fledge.kaggle.kernel import changed_settings, lengths, take_up, tokenize
from fledge.kaggle.pack import pack_for_kaggle, slug_of
from fledge.runs.metrics import Metrics

TEXT = Path(__file__).parents[2] / "CONTRIBUTING.md"
SMALL = [
    "name=small",
    "tokenizer.vocabulary_size=300",
    "tokens.context_length=16",
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "training.batch_size=4",
    "training.evaluate_windows=4",
    "training.threads=1",
    "sampling.max_tokens=8",
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    path = tmp_path / "words.txt"
    path.write_text("<|endoftext|>".join(lines * 4))
    return path


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fetched where there is a network; one test asks for it."""
    monkeypatch.setattr(distribution, "fetch_tools", lambda folder: ([], "no network here"))


def recipe(text: Path, steps: int = 4):
    return load_recipe("akjv-demo", [*SMALL, f"corpus.source={text}", f"training.steps={steps}"])


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A Python that has what fledge needs, but neither fledge nor a way to it: as on Kaggle."""
    venv.create(tmp_path / "elsewhere", with_pip=False, symlinks=True)
    python = tmp_path / "elsewhere" / "bin" / "python"
    done = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    (Path(done.stdout.strip()) / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def execute(notebook: Path, python: Path, environment: dict[str, str]) -> tuple[str, list[str]]:
    """Run a notebook with another Python's kernel; everything that its cells printed, and what they showed."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    manager = pytest.importorskip("jupyter_client").KernelManager()
    manager.kernel_spec.argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    cells = nbformat.read(notebook, as_version=4)
    nbformat.validate(cells)
    client = nbclient.NotebookClient(cells, km=manager, timeout=200)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        client.execute()
    outputs = [output for cell in cells.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output["data"].get("text/html", "") for output in outputs if "data" in output]
    return "".join(output.get("text", "") for output in outputs), shown


@pytest.mark.slow
def test_the_notebook_installs_offline_trains_and_goes_on_in_the_next_version(text, tmp_path, elsewhere) -> None:
    """Run twice with a kernel that has no fledge: the second version takes up the first one's output and trains on."""
    packed = pack_for_kaggle(recipe(text), tmp_path / "first")
    first, second = tmp_path / "input-1", tmp_path / "input-2"
    shutil.copytree(packed.folder / "dataset", first / "small-data")
    environment = {
        "FLEDGE_INPUT": str(first),
        "FLEDGE_WORKING": str(tmp_path / "working-1"),
        "OMP_NUM_THREADS": "1",
        "PIP_FIND_LINKS": "",
    }
    notebook = packed.folder / "notebook" / "fledge-small.ipynb"
    printed, shown = execute(notebook, elsewhere, environment)
    assert f"from {elsewhere.parents[1]}" in printed
    assert "step 4 of 4" in printed
    assert "step 4/4" not in printed  # the chart shows steps, in place
    assert [body for body in shown if "step 4 of 4" in body and "validation loss" in body and "tokens/s" in body]
    assert "How it learned" in shown[-1]
    results = tmp_path / "working-1"
    assert {"small.zip", "metrics.csv", "report.html"} <= {path.name for path in results.iterdir()}
    assert "a new run" in printed

    packed = pack_for_kaggle(recipe(text, steps=6), tmp_path / "first")  # made again, longer
    shutil.copytree(packed.folder / "dataset", second / "small-data")
    shutil.copytree(results, second / "small" / "output")
    environment |= {"FLEDGE_INPUT": str(second), "FLEDGE_WORKING": str(tmp_path / "working-2")}
    printed, _ = execute(notebook, elsewhere, environment)
    assert "resuming from step 4" in printed
    assert "step 6 of 6" in printed
    rows = (tmp_path / "working-2" / "metrics.csv").read_text()
    assert rows.startswith((results / "metrics.csv").read_text().splitlines()[0])
    assert (tmp_path / "working-2" / "small.zip").is_file()


def test_hours_of_lines_are_one_chart_in_a_notebook(tmp_path, monkeypatch, capsys) -> None:
    """The process's own notes are printed; its steps are drawn from the run's folder. Elsewhere all is printed."""
    metrics = Metrics(tmp_path / "metrics.csv")
    for step in range(1, 9):
        metrics.add(step=step, loss=5 - step / 10, seconds=step)
    metrics.close()
    (tmp_path / "samples.txt").write_text("──────── step 8 ────────\nand the hen said\n\n")
    program = "print('Training a hen.'); [print(f'step {n}/8, loss 4.2') for n in range(1, 9)]; print('done')"
    kernel.train([sys.executable, "-c", program], tmp_path)
    assert capsys.readouterr().out.count("step ") == 8

    class Shown:
        bodies: ClassVar[list[str]] = []

        def show(self, body: str, text: str) -> None:
            self.bodies.append(body)

    monkeypatch.setattr("fledge.notebook.running_cell", Shown)
    kernel.train([sys.executable, "-c", program], tmp_path)
    assert capsys.readouterr().out == "Training a hen.\ndone\n"
    assert "step 8 of 8" in Shown.bodies[-1]
    assert "and the hen said" in Shown.bodies[-1]
    assert "image/svg+xml" in Shown.bodies[-1]
    with pytest.raises(RuntimeError, match="ended with code 3"):
        kernel.train([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_requirements_are_as_pip_reads_them() -> None:
    plain, demo = distribution.requirements(), distribution.requirements(["demo"])
    assert any(text.startswith("torch") for text in plain)
    assert not any("extra" in text for text in demo)
    assert set(demo) - set(plain) == {text for text in demo if text.startswith("pythonbible-akjv")}


def test_the_source_archive_is_a_whole_source(tmp_path: Path) -> None:
    if distribution.clone() is None:
        pytest.skip("fledge runs from a wheel here")
    archive = distribution.source_archive(tmp_path)
    again = distribution.source_archive(tmp_path / "again")
    assert archive is not None
    assert again is not None
    assert archive.read_bytes() == again.read_bytes()
    with tarfile.open(archive) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    assert {"PKG-INFO", "pyproject.toml", "CMakeLists.txt", "csrc/bindings.cpp", "src/fledge/cli/__init__.py"} <= names
    assert not [name for name in names if name.endswith(".so") or "__pycache__" in name]


@pytest.mark.slow
def test_pip_builds_the_source_without_a_network(tmp_path: Path, elsewhere: Path) -> None:
    if distribution.clone() is None or distribution.installed("scikit-build-core") is None:
        pytest.skip("this needs a clone and what builds it")
    distribution.source_archive(tmp_path)
    pip = [elsewhere, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--force-reinstall"]
    done = subprocess.run(
        [*pip, "--find-links", tmp_path, distribution.own().name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    where = subprocess.run(
        [elsewhere, "-c", "import fledge._core as core; print(core.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert str(elsewhere.parents[1]) in where.stdout


def test_a_repacked_wheel_lists_what_it_holds(tmp_path: Path) -> None:
    found = distribution.installed("typer")
    assert found is not None
    wheel = distribution.repack(found, tmp_path)
    assert wheel.name == f"typer-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        record = archive.read(f"typer-{found.version}.dist-info/RECORD").decode().splitlines()
        assert sorted(line.partition(",")[0] for line in record) == sorted(archive.namelist())
        assert not [name for name in archive.namelist() if name.startswith("..") or "direct_url" in name]


def test_what_fledge_needs_is_carried_but_not_what_kaggle_has() -> None:
    carried, left = distribution.needed(["fledge-lm"])
    names = {found.name for found in carried}
    assert {"typer", "rich"} <= names
    assert not names & {"torch", "numpy", "fledge-lm"}
    assert not set(left) & distribution.THERE


def test_files_that_a_recipe_names_go_along(text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("one.txt", "two.txt"):
        (folder / name).write_text("word " * 100)
    changes = [f'corpus.source=["{text}", "{folder}"]', f'corpus.validation_source="{text}"']
    config = load_recipe("akjv-demo", changes)
    packed = pack_for_kaggle(config, tmp_path / "out", user="someone")
    dataset = packed.folder / "dataset"
    kept = json.loads((dataset / "recipe.json").read_text())
    assert kept["corpus"]["source"] == ["./files/words.txt", "./files/texts"]
    assert kept["corpus"]["validation_source"] == ["./files/2-words.txt"]
    assert (dataset / "files/texts/two.txt").read_text() == "word " * 100
    kernel = json.loads((packed.folder / "notebook/kernel-metadata.json").read_text())
    assert kernel["dataset_sources"] == ["someone/fledge-akjv-demo-data"]
    assert kernel["enable_internet"] is False
    assert json.loads((dataset / "dataset-metadata.json").read_text())["id"] == "someone/fledge-akjv-demo-data"


def test_text_that_must_be_fetched_asks_for_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEDGE_CORPORA", str(tmp_path / "none"))
    packed = pack_for_kaggle(load_recipe("tinystories"), tmp_path / "out")
    assert json.loads((packed.folder / "notebook/kernel-metadata.json").read_text())["enable_internet"] is True
    assert "tinystories is fetched" in (packed.folder / "README.md").read_text()
    cell = json.loads((packed.folder / "notebook/fledge-tinystories.ipynb").read_text())["cells"][0]
    assert "A network is needed, for the text tinystories" in "".join(cell["source"])
    fetched = []
    monkeypatch.setattr("fledge.corpus.fetch.fetch_corpus", fetched.append)
    with pytest.raises(FledgeError, match="not on this machine yet"):  # for nothing was really fetched
        tokenize(packed.folder / "dataset" / "recipe.json", tmp_path / "working")
    assert fetched == ["tinystories"]


def test_packing_again_keeps_what_is_a_persons_own(text: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = override_config(recipe(text), ["corpus.source=~/words.txt"])
    pack_for_kaggle(config, tmp_path / "out", user="someone")
    kept = json.loads((tmp_path / "out/dataset/recipe.json").read_text())
    assert kept["corpus"]["source"] == ["./files/words.txt"]
    metadata = tmp_path / "out/notebook/kernel-metadata.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "kernel_sources": ["someone/fledge-small"]}))
    (tmp_path / "out/results").mkdir()
    (tmp_path / "out/results/model.zip").write_bytes(b"a model")
    monkeypatch.chdir(tmp_path / "out")
    pack_for_kaggle(override_config(config, ["training.steps=8"]), Path())
    assert (tmp_path / "out/results/model.zip").read_bytes() == b"a model"
    kernel = json.loads(metadata.read_text())
    assert (kernel["id"], kernel["kernel_sources"]) == ("someone/fledge-small", ["someone/fledge-small"])
    assert json.loads((tmp_path / "out/dataset/recipe.json").read_text())["training"]["steps"] == 8
    (tmp_path / "out/notebook/results").mkdir()
    with pytest.raises(FledgeError, match=r"notebook/results would be lost"):
        pack_for_kaggle(config, tmp_path / "out")
    (tmp_path / "out/notebook/results").rmdir()
    for mine in ("notebook/mine.ipynb", "dataset/files/mine.txt"):
        (tmp_path / "out" / mine).touch()
        with pytest.raises(FledgeError, match=f"{mine} would be lost"):
            pack_for_kaggle(config, tmp_path / "out")
        (tmp_path / "out" / mine).unlink()
    for mine in (f"notebook/{kernel['code_file']}", "dataset/recipe.json"):
        written = (tmp_path / "out" / mine).read_bytes()
        (tmp_path / "out" / mine).write_bytes(written + b" ")
        with pytest.raises(FledgeError, match=f"{mine} would be lost"):
            pack_for_kaggle(config, tmp_path / "out")
        (tmp_path / "out" / mine).write_bytes(written)
    own = {"is_private": False, "dataset_sources": [*kernel["dataset_sources"], "another/texts"]}
    metadata.write_text(json.dumps({**kernel, **own}))
    (tmp_path / "out/notebook.old").mkdir()
    pack_for_kaggle(config, tmp_path / "out", user="else")
    again = json.loads(metadata.read_text())
    assert (again["id"], again["is_private"]) == ("else/fledge-small", False)
    assert again["dataset_sources"] == ["else/fledge-small-data", "another/texts"]
    assert (tmp_path / "out/notebook.old").is_dir()


def test_mistakes_are_answered_with_a_sentence(text: Path, tmp_path: Path) -> None:
    with pytest.raises(FledgeError, match="less than a minute"):
        pack_for_kaggle(recipe(text), tmp_path / "out", time="10s")
    with pytest.raises(FledgeError, match="not a duration"):
        pack_for_kaggle(recipe(text), tmp_path / "out", time="soon")
    with pytest.raises(FledgeError, match="standard input"):
        pack_for_kaggle(load_recipe("akjv-demo", ["corpus.source=-"]), tmp_path / "out")
    with pytest.raises(FledgeError, match=r"nowhere\.txt"):
        pack_for_kaggle(load_recipe("akjv-demo", ["corpus.source=./nowhere.txt"]), tmp_path / "out")
    with pytest.raises(FledgeError, match=r"model\.architecture = ''\. Known: bdh"):
        pack_for_kaggle(recipe(text).model_copy(update={"model": ModelConfig(architecture="")}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(FledgeError, match="was not made by fledge kaggle"):
        pack_for_kaggle(recipe(text), tmp_path)


def test_an_installed_wheel_of_another_system_is_refused(text, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(distribution, "clone", lambda: None)
    monkeypatch.setattr(distribution, "tags", lambda found: ["cp312-abi3-macosx_11_0_arm64"])
    with pytest.raises(FledgeError, match="from a clone"):
        pack_for_kaggle(recipe(text), tmp_path / "out")


def test_the_furthest_run_is_taken_up(tmp_path: Path) -> None:
    def run(place: Path, step: int) -> None:
        checkpoint = place / "runs/small/checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "bundle.json").write_text("{}")
        (place / "runs/small/config.json").write_text("{}")

    working = tmp_path / "working"
    assert take_up("small", tmp_path / "input", working) == (working / "runs/small", 0)
    run(tmp_path / "input/a", 10)
    run(tmp_path / "input/b/deeper", 20)
    run(working, 15)
    assert take_up("small", tmp_path / "input", working) == (working / "runs/small", 20)
    run(working, 30)
    assert take_up("small", tmp_path / "input", working)[1] == 30


def test_a_resumed_run_takes_the_length_of_the_new_recipe_and_says_what_it_does_not(text, tmp_path) -> None:
    (tmp_path / "recipe.json").write_text(recipe(text, steps=9).model_dump_json())
    assert changed_settings(tmp_path / "recipe.json", tmp_path / "run") == []
    (tmp_path / "run").mkdir()
    before = override_config(recipe(text), ["model.layers=2"])
    (tmp_path / "run" / "config.json").write_text(before.model_dump_json())
    assert changed_settings(tmp_path / "recipe.json", tmp_path / "run") == ["model.layers = 2 there, 1 here"]
    assert lengths(tmp_path / "recipe.json") == ["--set=training.steps=9", "--set=training.tokens=none"]


def test_names_fit_kaggles_addresses() -> None:
    assert slug_of("x") == "fledge-x"
    assert len(slug_of("a very long name " * 9)) <= 50


def test_what_other_pythons_compile_with_goes_along(text: Path, tmp_path: Path, monkeypatch) -> None:
    def fetched(folder: Path) -> tuple[list[str], str]:
        (folder / "cmake-4-py3-none-manylinux2014_x86_64.whl").touch()
        return ["cmake-4-py3-none-manylinux2014_x86_64.whl"], ""

    if distribution.clone() is None:
        pytest.skip("fledge runs from a wheel here")
    monkeypatch.setattr(distribution, "fits_every_python", lambda found: False)
    assert any("no network here" in note for note in pack_for_kaggle(recipe(text), tmp_path / "without").notes)
    monkeypatch.setattr(distribution, "fetch_tools", fetched)
    packed = pack_for_kaggle(recipe(text), tmp_path / "with")
    assert "cmake-4-py3-none-manylinux2014_x86_64.whl" in packed.wheels
    assert not any("no network" in note or "To compile" in note for note in packed.notes)
    monkeypatch.setattr(distribution, "fits_every_python", lambda found: True)
    assert pack_for_kaggle(recipe(text), tmp_path / "abi3").wheels == [
        name for name in packed.wheels if "cmake" not in name
    ] or (distribution.compiled_core() is None)
    monkeypatch.setattr(distribution, "fits_every_python", lambda found: False)
    monkeypatch.setattr(distribution, "needed", lambda roots, extras: ([], ["torch", "scikit-build-core"]))
    said = pack_for_kaggle(recipe(text), tmp_path / "fetched").notes
    assert [note for note in said if "Not carried" in note] == [
        "Not carried, as Kaggle and Colab have them or they are compiled: torch."
    ], "what was fetched is carried"
