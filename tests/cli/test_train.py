"""`fledge train` on the command line: a run, going on with it, fine-tuning from it, and mistakes."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fledge.bundle.describe import describe
from fledge.bundle.manifest import describe_file
from fledge.cli import build, notes_printed
from fledge.errors import FledgeError
from fledge.files import read_json
from fledge.run import Run, load
from fledge.runs.checkpoints import find_bundle, step_of
from fledge.training import load_checkpoint, read_metrics
from fledge.training.continuity import notable_changes
from tests.bundle.conftest import forge
from tests.small import SMALL

SETTINGS = [*SMALL, "training.save_every=3", "sampling.max_tokens=4"]


def fledge(*arguments: str) -> str:
    outcome = CliRunner().invoke(build(), list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def changes(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "stories.txt"
    stories = [f"There was a little bird number {n}, and it learned to fly on day {n * n}." for n in range(300)]
    path.write_text("<|endoftext|>".join(stories))
    return path


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "birds"
    output = fledge(
        "train", "akjv-demo", *changes([f"corpus.source={corpus}", *SETTINGS]), "--out", str(folder), "--quiet"
    )
    assert "step 6 of 6" in output
    assert f"fledge generate {folder}" in output
    assert f"fledge report {folder}" in output
    return folder


def test_a_finished_run_has_a_report_is_evaluated_and_says_what_it_is(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each without being told on what: a checkpoint in a run, and a branch's, know the text that was held out."""
    assert fledge("report", str(finished)).strip() == str(finished / "report.html")
    page = (finished / "report.html").read_text()
    assert "There was a little" in page  # a prompt of its own text
    parts = (
        "What it writes",
        "Guessing blindly takes 8 bits",
        "How to use and share it",
        "the model: ",
        "What it cost",
    )
    assert sorted(parts, key=page.index) == list(parts)
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"fledge (?:generate|bundle) .*", page.partition("share it</h2>")[2].partition("</pre>")[0])
    words = [shlex.split(html.unescape(command), comments=True)[1:] for command in commands]
    assert [each[:2] for each in words if each[0] == "bundle"] == [["bundle", "pack"], *[["bundle", "export"]] * 2]
    for each in words:
        if "--interactive" not in each and "export" not in each:
            fledge(*each)
    checkpoint = find_bundle(finished)
    whole, one = (json.loads(fledge("evaluate", str(place), "--json"))[str(place)] for place in (finished, checkpoint))
    assert whole == one
    shutil.copytree(finished, tmp_path / "run")
    deeper = shutil.copytree(checkpoint, tmp_path / "run" / "branch" / "checkpoints" / checkpoint.name)
    assert json.loads(fledge("evaluate", str(deeper), "--json"))[str(deeper)] == one
    assert load(checkpoint).evaluate().summary()["loss"] == one["loss"]
    said = repr(load(finished))
    assert "transformer, 1 layers × 32" in said
    assert f"step {step_of(checkpoint)}; {finished}" in said
    assert "parameters" not in repr(Run("akjv-demo"))
    with caplog.at_level("WARNING", "fledge"):
        fledge("train", "--resume", str(finished))
    assert f"complete already. To train it further: fledge train --resume {finished} --set training.steps=12" in (
        caplog.text
    )


def test_a_report_without_held_out_text_or_of_no_run_is_refused(corpus: Path, tmp_path: Path) -> None:
    run = Run("akjv-demo", tmp_path / "a", overrides=[*SETTINGS, f"corpus.source={corpus}"], quiet=True)
    run.config = run.config.model_copy(
        update={"corpus": run.config.corpus.model_copy(update={"validation_fraction": 0.0})}
    )
    run.train()
    with pytest.raises(FledgeError, match="no held-out text"):
        fledge("report", str(run.folder))
    with pytest.raises(FledgeError, match="is not a run"):
        fledge("report", str(tmp_path))


def test_a_run_goes_on_with_more_steps_and_another_batch_size(finished: Path) -> None:
    output = fledge(
        "train", "--resume", str(finished), "--quiet", *changes(["training.steps=8", "training.batch_size=8"])
    )
    assert "step 8 of 8" in output
    training = load_checkpoint(finished).training
    assert training is not None
    assert training.values["samples"] == 6 * 4 + 2 * 8
    steps = [int(row["step"]) for row in read_metrics(finished / "metrics.csv") if row["validation_loss"]]
    assert steps == sorted(set(steps))


def test_a_bundle_is_fine_tuned_with_its_own_model_and_tokenizer(finished: Path, corpus: Path, tmp_path: Path) -> None:
    source = next((finished / "checkpoints").glob("step-*"))
    small = [setting for setting in SETTINGS if not setting.startswith(("model", "tokenizer", "tokens"))]
    settings = changes([f"corpus.source={corpus}", *small, "training.steps=2", "optimizer.learning_rate=1e-6"])
    out = tmp_path / "tuned"
    fledge("train", "akjv-demo", "--from", str(source), "--out", str(out), "--quiet", *settings)
    tuned = load_checkpoint(out)
    told = f"{finished.name}, step {step_of(source)}"
    assert (tuned.metrics["tuned_from"], dict(describe(find_bundle(out))["how it was trained"])["begun from"]) == (
        told,
        told,
    )
    assert tuned.config.model.width == 32
    assert tuned.tokenizer.fingerprint == load_checkpoint(finished).tokenizer.fingerprint
    for other in ("model.layers=3", " model.layers=3", "model={layers=3}"):
        with pytest.raises(FledgeError, match=r"come from .*, and model\.layers is 1 there and 3 here"):
            fledge("train", "akjv-demo", "--from", str(source), "--set", other)
    with pytest.raises(FledgeError, match="--from starts a new run"):
        fledge("train", "akjv-demo", "--from", str(source), "--out", str(source))


def test_a_run_is_named_by_its_folder_and_names_no_place_of_the_text(finished: Path, corpus: Path) -> None:
    bundle = load_checkpoint(finished)
    assert (bundle.config.name, bundle.config.corpus.source) == ("birds", ("stories.txt",))
    for file in ("bundle.json", "README.md"):
        assert str(corpus.parent) not in (bundle.path / file).read_text()
    assert "# birds" in (bundle.path / "README.md").read_text()
    assert "In the beginning" not in (bundle.path / "README.md").read_text()
    assert read_json(finished / "config.json")["corpus"]["source"] == [str(corpus)]
    assert load(finished).config.corpus.source == (str(corpus),)
    assert load(bundle.path).config.corpus.source == ("stories.txt",)
    run = Run.open(finished)
    assert notable_changes(run.config, bundle, [], back=True) == []
    training = read_json(finished / "config.json")["training"]  # another test may have lengthened it
    again = [f"training.{name}={training[name]}" for name in ("steps", "batch_size")]
    settings = changes([f"corpus.source={corpus}", *SETTINGS, *again])
    assert f"of {training['steps']}" in fledge("train", "akjv-demo", *settings, "--out", str(finished), "--quiet")


def test_fine_tuning_says_what_it_takes_and_has_a_rate_of_its_own(finished: Path, corpus: Path, tmp_path: Path) -> None:
    small = changes(["training.steps=2", "training.batch_size=4", "training.evaluate_windows=4", "training.threads=1"])
    text, out = changes([f"corpus.source={corpus}"]), ["--from", str(finished), "--out"]
    with notes_printed():
        said = fledge("train", "finetune", *out, str(tmp_path / "a"), *text, *small)
    assert (
        "the tokenizer (300 ids) and its context of 16 tokens. Text, learning rate and length are those of fin" in said
    )
    tuned = load_checkpoint(tmp_path / "a").config
    assert (tuned.name, tuned.optimizer.learning_rate, tuned.model.width) == ("a", 1e-4, 32)
    fledge("train", *out, str(tmp_path / "b"), *small)  # no recipe: on the text of that run
    again = Run.open(tmp_path / "b").config
    assert (again.optimizer.learning_rate, again.corpus.source) == (1e-4, (str(corpus),))
    with pytest.warns(UserWarning, match="meant for a new model, and may undo .* finetune --from"):
        fledge("train", "akjv-demo", *out, str(tmp_path / "c"), *text, *small)


def test_a_fine_tuning_goes_on_by_the_same_command(finished: Path, corpus: Path, tmp_path: Path) -> None:
    (source, other, *_), out = (finished / "checkpoints").glob("step-*"), tmp_path / "tuned"
    small = [setting for setting in SETTINGS if not setting.startswith(("model", "tokenizer", "tokens"))]
    arguments = ["akjv-demo", "--from", str(source), "--out", str(out), *changes([f"corpus.source={corpus}", *small])]
    fledge("train", *arguments, "--time-limit", "0")
    assert "step 6 of 6" in fledge("train", *arguments, "--quiet")
    with pytest.raises(FledgeError, match=rf"other settings \(--from {source} there, --from {other} here\)"):
        fledge("train", *arguments[:2], str(other), *arguments[3:])


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("training.steps=2", "has already done . steps"),
        ("optimizer.name=sgd", "optimizer"),
        ("tokens.store=STORE", "another tokenizer|tokenizer"),
        ("corpus.source=nowhere.txt", "nowhere.txt"),
        ("tokenizer.vocabulary_size=270", r"tokenizer\.vocabulary_size is 300 there and 270 now"),
    ],
)
def test_a_refused_resume_changes_nothing(
    finished: Path, corpus: Path, tmp_path: Path, setting: str, sentence: str
) -> None:
    """Neither the settings nor the tokenizer: a store of another tokenizer is refused, not trained on."""
    folder, store = tmp_path / "run", tmp_path / "store"
    shutil.copytree(finished, folder)
    if "STORE" in setting:
        fledge("tokenizer", "train", str(corpus), "--vocab-size", "280", "--out", str(tmp_path / "other"))
        fledge("tokenize", str(corpus), "--tokenizer", str(tmp_path / "other"), "--out", str(store))
    else:
        shutil.rmtree(folder / "tokens")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(FledgeError, match=sentence):
        fledge("train", "--resume", str(folder), "--set", setting.replace("STORE", str(store)))
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "tokens" not in path.parts}
    assert after == {path: data for path, data in before.items() if "tokens" not in path.parts}


def test_other_text_is_refused_with_what_a_run_can_do(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with pytest.raises(FledgeError, match="as they were, or start a new run in another folder"):
        fledge("train", "--resume", str(folder), "--set", "corpus.validation_fraction=0.4")


def test_what_changed_since_a_step_is_said_when_going_back_to_it(corpus: Path, tmp_path: Path) -> None:
    """And a branch that ends below the main line's last step is tried by its own path."""
    folder, kept = tmp_path / "run", [f"corpus.source={corpus}", *SETTINGS, "training.keep_last=9"]
    fledge("train", "akjv-demo", *changes(kept), "--out", str(folder), "--quiet")
    changed = changes(["training.steps=5", "optimizer.learning_rate=1e-4"])
    output = fledge("train", "--resume", str(folder), "--at", "3", "--quiet", *changed)
    assert f"fledge generate {folder / 'branch' / 'checkpoints' / 'step-00000005'}" in output
    later = changes(["training.steps=7", "optimizer.learning_rate=1e-4"])
    fledge("train", "--resume", str(folder), "--at", "6", "--quiet", *later)
    with pytest.warns(
        UserWarning, match=r"Step 3 was trained with optimizer\.learning_rate = 0\.003 \(now 0\.0001\)\."
    ):
        fledge("train", "--resume", str(folder), "--at", "3", "--quiet", "--time-limit", "0")
    with pytest.warns(UserWarning, match=r"training\.seed is 0 there and 1 now: from here on the samples"):
        fledge("train", "--resume", str(folder), "--quiet", *changes(["training.seed=1"]))


def test_settings_tried_on_a_branch_are_its_own_until_it_takes_over(corpus: Path, tmp_path: Path) -> None:
    folder, kept = tmp_path / "run", [f"corpus.source={corpus}", *SETTINGS, "training.keep_last=9"]
    begin = ["train", "akjv-demo", *changes(kept), "--out", str(folder), "--quiet"]
    fledge(*begin)

    def rate(*place: str) -> float:
        return float(read_json(folder.joinpath(*place))["optimizer"]["learning_rate"])

    def resume(*more: str) -> str:
        return fledge("train", "--resume", str(folder), "--quiet", *more)

    tried = [*changes(["optimizer.learning_rate=1e-4"]), "--time-limit", "0"]
    assert f"bundle: {folder / 'checkpoints' / 'step-00000003'}\n" in resume("--at", "3", *tried)
    assert (rate("config.json"), rate("branch", "settings.json")) == (0.003, 1e-4)
    resume(*changes(["training.steps=5"]))
    assert load_checkpoint(folder).config.optimizer.learning_rate == 1e-4, "the branch goes on with its own"
    with pytest.raises(FledgeError, match=r"other settings \(optimizer\.learning_rate = 0\.0001 there, 0\.003 here"):
        fledge(*begin)
    resume("--at", "6", *changes(["training.steps=7"]))
    assert load_checkpoint(folder).config.optimizer.learning_rate == 0.003, "the main line never had the other"
    assert rate("branch-1", "settings.json") == 1e-4
    resume("--at", "3", *changes(["optimizer.learning_rate=2e-4"]))
    assert not (folder / "branch").exists()
    assert rate("config.json") == 2e-4


def test_a_complete_run_of_so_many_tokens_says_how_to_go_on(corpus: Path, tmp_path: Path, capsys) -> None:
    few = [f"corpus.source={corpus}", *SETTINGS, "training.steps=none", "training.tokens=10"]
    command = ["train", "akjv-demo", *changes(few), "--out", str(tmp_path / "run")]
    fledge(*command, "--quiet")
    with notes_printed():
        assert "training.tokens=20" in CliRunner().invoke(build(), command, catch_exceptions=False).output
    assert "step 1 of 1" in fledge("train", "--resume", str(tmp_path / "run"), "--quiet")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Name a recipe"),
        (["--at", "3"], "--at names a step"),
        (["akjv-demo", "--resume", "nowhere"], "Leave out the recipe"),
        (["--resume", "nowhere"], "nowhere"),
        (["akjv-demo", "--time-limit", "soon"], "not a duration such as 8h50m"),
        (["akjv-demo", "--set", "training.tracker=wandb"], "training.trackers"),
        (["akjv-demo", "--set", "training.device=gpu9"], "is not a device"),
        (
            ["akjv-demo", *changes(["model.architecture=lstm", "tokens.policy=lanes", "tokens.lanes=64"])],
            "tokens.lanes = 64 and training.batch_size = 32 are not allowed together",
        ),
    ],
)
def test_mistakes_are_sentences(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FledgeError, match=sentence):
        fledge("train", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_profile_writes_a_trace(corpus: Path, tmp_path: Path) -> None:
    settings = changes([f"corpus.source={corpus}", *SETTINGS, "training.steps=9"])
    fledge("train", "akjv-demo", *settings, "--out", str(tmp_path / "run"), "--profile", "--quiet")
    assert (tmp_path / "run" / "trace.json").stat().st_size > 1000


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([1], "not a table"),
        ({}, "has no step"),
        ({"step": -5}, "step = -5"),
        ({"samples": 2**63 - 1, "tokens": 2**63 - 1}, "samples = 9223372036854775807"),  # the next would be no number
        ({"samples": 0}, "samples = 0, and step is never above samples"),
        ({"step": 1, "updates": 1, "interval_steps": 0}, "step = 1, and bundle.json step = "),
    ],
)
def test_a_forged_state_is_refused_by_check_and_by_resume(
    finished: Path, tmp_path: Path, state: Any, words: str
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    newest = find_bundle(tmp_path / "run")
    assert "is whole" in fledge("bundle", "check", str(newest))
    path = newest / "training" / "state.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, **state} if state and isinstance(state, dict) else state))
    sealed = describe_file(path).model_dump()
    forge(newest, lambda values: values["files"].update({"training/state.json": sealed}))
    for command in (["bundle", "check", str(newest)], ["train", "--resume", str(tmp_path / "run"), "--quiet"]):
        with pytest.raises(FledgeError, match=f"{words}.*earlier"):
            fledge(*command)
