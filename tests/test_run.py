"""A run ties the parts together: the same seed gives the same bits, and a copied bundle needs nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fledge
from fledge.bundle import Bundle, load_bundle
from fledge.bundle.archive import pack
from fledge.config import allow_code, load_recipe
from fledge.errors import FledgeError
from fledge.generation.burst import Bursts
from fledge.run import Run, load
from fledge.tokenizer import train_bpe
from fledge.tokens.writer import sole_writer
from fledge.training import load_checkpoint
from tests.small import SMALL

TEXT = Path(__file__).parents[1] / "CONTRIBUTING.md"
SETTINGS = [*SMALL, "sampling.max_tokens=12"]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A small corpus of a hundred documents, made from the project's own pages."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [line for line in TEXT.read_text().splitlines() if line.strip()]
    path.write_text("<|endoftext|>".join(lines * 4))
    return path


def small_run(folder: Path, text: Path, *more: str) -> Run:
    return Run("akjv-demo", folder, overrides=[*SETTINGS, f"corpus.source={text}", *more], quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text: Path) -> Run:
    run = small_run(tmp_path_factory.mktemp("runs") / "first", text)
    run.train()
    return run


@pytest.mark.filterwarnings("ignore")
def test_the_same_seed_gives_the_same_loss_and_sample_whatever_the_tokenizer_s_threads(tmp_path, text, trained) -> None:
    config = load_recipe("akjv-demo", [*SETTINGS, f"corpus.source={text}"])
    documents = list(trained.corpus.documents("train"))
    finals = []
    for threads in (1, 3):
        folder = tmp_path / f"tokenizer-{threads}"
        train_bpe(documents, 300, config.tokenizer.special_tokens, threads=threads).save(folder)
        run = small_run(tmp_path / f"run-{threads}", text, f"tokenizer.path={folder}")
        assert run.tokenizer.fingerprint == trained.tokenizer.fingerprint
        finals.append((run.train().loss, run.generate(["fledge"])[0].ids))
    assert finals[0] == finals[1]
    metrics = json.loads((sorted((trained.folder / "checkpoints").iterdir())[-1] / "bundle.json").read_text())[
        "metrics"
    ]
    assert metrics["loss"] == finals[0][0]


@pytest.mark.filterwarnings("ignore")
def test_a_copy_of_the_bundle_generates_without_corpus_or_run(tmp_path, trained) -> None:
    newest = sorted((trained.folder / "checkpoints").iterdir())[-1]
    shutil.copytree(newest, tmp_path / "elsewhere")
    copied = load(tmp_path / "elsewhere")
    assert copied.generate(["The "])[0].ids == trained.generate(["The "])[0].ids
    assert fledge.load(trained.folder).generate(["The "])[0].ids == trained.generate(["The "])[0].ids


def test_a_folder_with_other_settings_or_other_files_is_refused(tmp_path, text, trained) -> None:
    with pytest.raises(FledgeError, match=r"model.layers = 1 there, 2 here"):
        small_run(trained.folder, text, "model.layers=2").claim()
    with pytest.raises(FledgeError, match="--resume"):
        small_run(trained.folder, text).train()
    missing = Run("akjv-demo", tmp_path / "typo", overrides=[*SETTINGS, "corpus.source=nowhere.txt"], quiet=True)
    with pytest.raises(FledgeError, match="nowhere.txt"):
        missing.train()
    small_run(tmp_path / "typo", text).claim()  # the corrected command is not refused for the mistyped one
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(FledgeError, match="is not a run"):
        small_run(tmp_path / "mine", text).claim()
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    with pytest.raises(FledgeError, match="is not a run"):
        Run.open(tmp_path / "mine")


def test_files_that_a_kill_left_half_written_are_not_in_the_way(tmp_path, text) -> None:
    for name in ("config.json.partial", "config.json.0a1b2c3d.partial", "origin.json.00ff00ff.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{")
        small_run(tmp_path / name, text).claim()
        assert Run.open(tmp_path / name).config.corpus.source == (str(text),)
    for name in ("letter.txt.partial", "config.json.bak", "config.json.partial.txt"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("dear")
        with pytest.raises(FledgeError, match="is not a run"):
            small_run(tmp_path / name, text).claim()


def test_a_bundle_names_no_place_of_tokens_tokenizer_or_code(tmp_path, text, trained) -> None:
    """The run keeps the places: it is loaded, evaluated and gone on with as before."""
    code, places = tmp_path / "mine.py", {name: trained.folder / name for name in ("tokens", "tokenizer")}
    code.write_text("")
    allow_code(str(code))
    own = [f"tokens.store={places['tokens']}", f"tokenizer.path={places['tokenizer']}", f'imports=["{code}"]']
    run = small_run(tmp_path / "run", text, *own)
    result = run.train()
    for file in ("bundle.json", "README.md"):
        said = (result.checkpoint / file).read_text()
        assert not any(str(place) in said for place in (trained.folder, tmp_path, text.parent)), file
    config = load_bundle(result.checkpoint).config
    assert (config.tokens.store, config.tokenizer.path, config.imports) == ("tokens", "tokenizer", ("mine.py",))
    again = load(run.folder)
    assert again.config == run.config
    assert again.evaluate().tokens > 0
    longer = Run.open(run.folder, ["training.steps=8"], quiet=True)
    assert longer.train(resume=load_checkpoint(run.folder)).step == 8


def test_a_run_without_a_checkpoint_says_so(tmp_path, text) -> None:
    run = small_run(tmp_path / "run", text)
    run.claim()
    with pytest.raises(FledgeError, match=r"is a run that has no checkpoint yet.*fledge train .*config\.json --out"):
        load(run.folder)


def test_a_bundle_of_another_model_is_refused_before_anything_is_written(tmp_path, text, trained) -> None:
    """What was trained from it could not be loaded: its weights would not be those that the settings describe."""
    settings, bundle = [*SETTINGS, f"corpus.source={text}"], load_checkpoint(trained.folder)
    for change, sentence in [
        ("model.layers=2", r"model\.layers is 1 there and 2 here\. Do not change"),
        ("model={layers=1}", r"model\.width is 32 there and 256 here"),
        ("tokenizer.vocabulary_size=290", r"tokenizer\.vocabulary_size is 300 there and 290 here"),
        (
            "tokens.context_length=32",
            "tokens.context_length = 32 is not allowed: the model of .* sees at most 16 tokens",
        ),
    ]:
        with pytest.raises(FledgeError, match=sentence):
            Run("akjv-demo", tmp_path / "run", overrides=[*settings, change], bundle=bundle)
    shorter = [*settings, "tokens.context_length=8", "training.steps=1"]
    Run("akjv-demo", tmp_path / "run", overrides=shorter, bundle=bundle, quiet=True).train()
    assert load(tmp_path / "run").model.context_length == 16


@pytest.mark.parametrize("packed", [False, True])
def test_a_bundle_without_tokens_asks_for_texts(tmp_path, trained, packed: bool) -> None:
    place = trained.save(tmp_path / "bundle")
    if packed:
        place = pack(place, tmp_path / "bundle.zip")
    for attempt in (load(place).evaluate, load(place).train):
        with pytest.raises(FledgeError, match=rf"{place} is a bundle and has no tokens of its own\. Give texts"):
            attempt()
    assert load(place).evaluate(["fledge"]).tokens
    assert load(trained.folder).evaluate().tokens, "a run has tokens"


def test_a_run_remembers_which_weights_it_began_with(tmp_path, text, trained) -> None:
    first, folder = load_checkpoint(trained.folder), tmp_path / "run"
    shutil.copytree(first.path, tmp_path / "moved")
    settings = [*SETTINGS, f"corpus.source={text}"]

    def begin(bundle: Bundle | None) -> Run:
        return Run("akjv-demo", folder, overrides=settings, bundle=bundle, quiet=True)

    begin(first).claim()
    with pytest.raises(
        FledgeError, match=rf"no checkpoint yet.* train {folder}/config\.json --from {first.path} --out"
    ):
        load(folder)
    with pytest.raises(FledgeError, match=f"was begun from a bundle's weights.*--from {first.path} --out {folder}"):
        begin(None).train()
    begin(load_bundle(tmp_path / "moved")).train()
    begin(first).claim()
    other = load_bundle(Run(trained.config, tmp_path / "fresh", overrides=["training.seed=1"]).save(tmp_path / "other"))
    with pytest.raises(FledgeError, match=rf"other settings \(--from {first.path} there, --from {other.path} here"):
        begin(other).claim()
    with pytest.raises(FledgeError, match=rf"--from {first.path} there, fresh weights here\)\. Go on with it"):
        begin(None).claim()
    (tmp_path / "killed").mkdir()
    shutil.copyfile(folder / "origin.json", tmp_path / "killed" / "origin.json")
    Run("akjv-demo", tmp_path / "killed", overrides=settings, bundle=other).claim()
    assert str(other.path) in (tmp_path / "killed" / "origin.json").read_text()
    (folder / "origin.json").write_text("[]")
    with pytest.raises(FledgeError, match=r"origin\.json: "):
        begin(first).claim()


def test_a_text_in_the_place_of_a_tokenizer_is_refused_by_name(tmp_path, text) -> None:
    run = small_run(tmp_path / "run", text, f"tokenizer.path={text}")
    with pytest.raises(FledgeError, match=r"tokenizer\.path = .*text\.txt: a tokenizer was expected there"):
        run.train()


@pytest.mark.filterwarnings("ignore")
def test_a_source_that_never_gave_anything_leaves_no_store(tmp_path, text) -> None:
    """The same folder then takes the corrected source, and nothing there looks interrupted."""
    trained = small_run(tmp_path / "tokenizer", text).tokenizer
    trained.save(tmp_path / "kept")
    (tmp_path / "empty.txt").touch()
    settings = [f"tokenizer.path={tmp_path / 'kept'}", f"corpus.source={tmp_path / 'empty.txt'}"]
    for more in ([], ["corpus.validation_fraction=0"]):
        with pytest.raises(FledgeError, match="holds no documents"):
            _ = small_run(tmp_path / "run", text, *settings, *more).tokens
        assert not (tmp_path / "run" / "tokens").exists()
    assert len(small_run(tmp_path / "run", text, settings[0]).tokens.split("train").tokens)


def test_a_run_is_resumed_fine_tuned_and_accounted_for_without_the_command_line(tmp_path, text, trained) -> None:
    shutil.copytree(trained.folder, tmp_path / "run")
    assert small_run(tmp_path / "new", text).begun() is None
    longer = Run.resume(tmp_path / "run", 6, ["training.steps=8"], quiet=True)
    assert longer.train().step == 8
    with pytest.raises(FledgeError, match="already holds a run with checkpoints"):
        longer.train()
    again = small_run(tmp_path / "run", text, "training.steps=8")
    assert again.begun().metrics["step"] == 8
    assert again.train().step == 8
    few = [f"corpus.source={text}", "training.steps=1", "training.batch_size=4"]
    tuned = Run.fine_tune(tmp_path / "run", folder=tmp_path / "tuned", overrides=few, quiet=True)
    assert (tuned.config.name, tuned.config.model) == ("tuned", trained.config.model)
    assert tuned.tokenizer.fingerprint == trained.tokenizer.fingerprint
    assert tuned.train().step == 1
    assert tuned.account(batch=1).parameters.total == trained.model.parameters_count()


def test_a_model_that_was_looked_at_does_not_take_the_checkpoint_s_place(tmp_path, text, trained) -> None:
    shutil.copytree(trained.folder, tmp_path / "run")
    run = small_run(tmp_path / "run", text)
    fresh = run.model
    result = run.train(resume=load_checkpoint(run.folder))
    assert run.model is not fresh
    assert result.step == 6
    assert run.evaluate().loss == trained.evaluate().loss


def test_settings_that_leave_the_tokens_be_can_be_corrected_before_the_first_checkpoint(tmp_path, text) -> None:
    run = small_run(tmp_path / "run", text, "tokens.context_length=100000")
    with pytest.raises(FledgeError, match="Set it lower"):
        run.train()
    written = (tmp_path / "run" / "tokens" / "train.bin").stat().st_mtime_ns
    small_run(tmp_path / "run", text).train()
    assert (tmp_path / "run" / "tokens" / "train.bin").stat().st_mtime_ns == written
    begun = small_run(tmp_path / "other", text)
    _ = begun.tokens
    with pytest.raises(FledgeError, match=r"vocabulary_size.*\. Choose another folder"):
        small_run(tmp_path / "other", text, "tokenizer.vocabulary_size=290").claim()


def test_two_trainings_in_one_folder_exclude_each_other(tmp_path, text) -> None:
    run = small_run(tmp_path / "run", text)
    run.claim()
    with sole_writer(run.folder), pytest.raises(FledgeError, match=r"Another process is writing .*run\. Wait for it"):
        run.train()


def test_a_run_opens_with_the_settings_it_was_begun_with(trained) -> None:
    assert Run.open(trained.folder).config == trained.config
    assert Run.open(trained.folder, ["training.steps=9"]).config.steps == 9


def test_training_says_what_the_account_expects_before_it_starts(tmp_path, text, capsys) -> None:
    from fledge.accounting import Account

    run = Run("akjv-demo", tmp_path / "run", overrides=[*SETTINGS, f"corpus.source={text}"])
    run.train()
    account = Account(run.config.model, run.tokenizer.vocab_size, 16, batch=4, precision="fp32", optimizer="muon")
    printed = capsys.readouterr().err
    assert "Expected: " in printed
    assert f"{account.step_flops / 1e6:.3g} MFLOP a step" in printed


def test_one_stop_text_is_a_list_of_one(trained) -> None:
    options = {"max_tokens": 8, "temperature": 0}
    assert trained.generate(["fledge"], stop="e", **options) == trained.generate(["fledge"], stop=["e"], **options)
    with pytest.raises(FledgeError, match="give a list of texts"):
        trained.evaluate("fledge")


def test_the_test_part_of_a_run_is_evaluated_by_name(tmp_path, text, trained) -> None:
    run = small_run(tmp_path / "run", text, "corpus.test_fraction=0.1")
    found = {split: run.evaluate(split=split) for split in ("train", "validation", "test")}
    assert len({evaluation.loss for evaluation in found.values()}) == 3
    assert run.evaluate().loss == found["validation"].loss
    assert found["test"].bytes < found["train"].bytes
    with pytest.raises(FledgeError, match="has no test part"):
        trained.evaluate(split="test")
    with pytest.raises(FledgeError, match="texts or a split, not both"):
        run.evaluate(["a text"], split="test")


def test_a_text_that_moved_is_not_needed_where_its_tokens_are_whole(tmp_path, text, trained) -> None:
    moved, folder = tmp_path / "text.txt", tmp_path / "run"
    shutil.copyfile(text, moved)
    small_run(folder, moved).train()
    moved.unlink()
    again = Run.open(folder, quiet=True)
    with pytest.warns(UserWarning, match="Using its tokens"):
        assert len(again.tokens.split("train").tokens) == len(trained.tokens.split("train").tokens)
    with pytest.raises(FledgeError, match="no file or folder"):
        _ = Run.open(folder, [f"corpus.source={tmp_path / 'other.txt'}"], quiet=True).tokens


def test_drawing_and_threads_leave_the_process_as_it_was(tmp_path, text) -> None:
    import matplotlib
    import torch

    before, threads = matplotlib.get_backend(), torch.get_num_threads()
    small_run(tmp_path / "one", text, f"training.threads={threads + 1}").train()
    small_run(tmp_path / "two", text).train()
    assert (matplotlib.get_backend(), torch.get_num_threads()) == (before, threads)


def test_a_folder_that_no_bundle_could_be_loaded_from_is_refused_before_training(tmp_path, text) -> None:
    with pytest.raises(FledgeError, match="contains a name that is not UTF-8, .* Choose another place"):
        small_run(tmp_path / "nu\udcfe", text).train()
    assert not list(tmp_path.glob("nu*"))


def test_a_run_from_before_a_setting_was_added_is_the_same_run(text: Path, tmp_path: Path) -> None:
    run = Run("akjv-demo", tmp_path / "run", overrides=[*SMALL, f"corpus.source={text}"])
    run.claim()
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    del kept["imports"], kept["corpus"]["test_fraction"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(kept))
    run.claim()


def test_a_run_generates_in_recorded_steps_before_and_after_training_and_not_during_it(
    tmp_path, text, trained, monkeypatch
) -> None:
    """On a GPU; here the same steps on a CPU. A recording would hold weights that training is about to move."""
    lengths: list[int] = []
    plain = Bursts.burst
    monkeypatch.setattr(Bursts, "fit", staticmethod(lambda *_: True))
    monkeypatch.setattr(Bursts, "burst", lambda self, length: (lengths.append(length), plain(self, length))[1])
    greedy = {"temperature": 0, "max_tokens": 5, "stop_at_end": False}
    loaded = load(trained.folder)
    written = loaded.generate(["fledge", "a text"], **greedy)
    assert sum(lengths) == 4
    assert written == trained.generate(["fledge", "a text"], **greedy)
    lengths.clear()
    run = small_run(tmp_path / "run", text, "training.evaluate_every=3", "training.sample_every=3")
    run.train(on_evaluation=lambda *_: run.generate(["fledge"], **greedy))
    assert not lengths
    run.generate(["fledge"], **greedy)
    assert sum(lengths) == 4
