"""What the loop promises besides resuming: one mathematics, nothing lost, nothing silent."""

from __future__ import annotations

import errno
import io
import math
import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fledge.bundle import load_bundle, read_manifest
from fledge.errors import FledgeError
from fledge.runs.metrics import Samples
from fledge.tokens import Batch
from fledge.training import load_checkpoint, read_metrics
from fledge.training.chores import Chores
from fledge.training.ranks import Ranks
from fledge.training.session import SETBACKS, Session, Setup
from fledge.training.skipping import Skipping
from fledge.training.stepper import Stepper
from fledge.training.stops import Stops

from .support import TextWindows, fresh_model, run, settings, tokenizer, weights


def steps_with(folder: Path, column: str) -> list[int]:
    return [int(row["step"]) for row in read_metrics(folder / "metrics.csv") if row[column]]


@pytest.mark.parametrize("micro_batch", [8, 3])
def test_accumulation_changes_nothing(tmp_path: Path, micro_batch: int) -> None:
    """Micro-batches of unequal padding and size add up to the whole batch: 4 × 8 is 1 × 32."""
    windows = TextWindows(16, padded=True)
    whole = run(settings(training={"batch_size": 32, "micro_batch": 32}), tmp_path / "whole", windows=windows)
    parts = run(settings(training={"batch_size": 32, "micro_batch": micro_batch}), tmp_path / "parts", windows=windows)
    for name, tensor in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], tensor, atol=2e-5, rtol=1e-3)
    assert parts.loss == pytest.approx(whole.loss, abs=1e-5)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Storage size calculation overflowed with sizes=[1099511627776, 1099511627776]"),
        MemoryError(),
    ],
)
def test_memory_that_runs_out_halves_the_micro_batch_and_goes_on(
    tmp_path: Path, monkeypatch: Any, error: Exception
) -> None:
    """The same losses as with enough memory, and the smaller micro-batch is remembered."""
    plain = run(settings(), tmp_path / "plain")
    original = Stepper._accumulate

    def scarce(self: Stepper, batch: Batch, count: float) -> torch.Tensor:
        if self.progress.micro_batch > 2:
            self.optimizer.layout.gradients()[0].add_(1.0)  # what a half-done accumulation leaves behind
            raise error
        return original(self, batch, count)

    monkeypatch.setattr(Stepper, "_accumulate", scarce)
    scarce_run = run(settings(), tmp_path / "scarce")
    assert scarce_run.loss == pytest.approx(plain.loss, abs=1e-5)
    training = load_checkpoint(tmp_path / "scarce").training
    assert training is not None
    assert training.values["micro_batch"] == 2


def test_an_error_that_is_not_of_memory_is_not_taken_for_one(tmp_path: Path, monkeypatch: Any) -> None:
    def broken(self: Stepper, batch: Batch, count: float) -> torch.Tensor:
        raise RuntimeError("value cannot be converted to type int64_t without overflow")

    monkeypatch.setattr(Stepper, "_accumulate", broken)
    with pytest.raises(RuntimeError, match="without overflow"):
        run(settings(), tmp_path / "run")


def test_weights_of_half_precision_are_trained_in_fp32(tmp_path: Path) -> None:
    """An imported model may be bf16; its checkpoints are not, and its steps are those of the same weights in fp32."""
    half = run(settings(), tmp_path / "half", model=fresh_model(settings()).bfloat16())
    wide = run(settings(), tmp_path / "wide", model=fresh_model(settings()).bfloat16().float())
    assert read_manifest(half.checkpoint).model.dtype == "float32"
    assert all(torch.equal(tensor, weights(wide)[name]) for name, tensor in weights(half).items())


def test_recomputed_activations_give_the_same_losses(tmp_path: Path) -> None:
    plain = run(settings(model={"dropout": 0.1}), tmp_path / "plain")
    again = run(settings(model={"dropout": 0.1}, training={"recompute": True}), tmp_path / "again")
    assert again.loss == pytest.approx(plain.loss, abs=1e-5)


def test_smoothing_and_z_loss_change_training_and_not_evaluation(tmp_path: Path) -> None:
    one = {"steps": 1, "log_every": 1}
    plain = run(settings(training=one), tmp_path / "plain")
    smooth = run(settings(training={**one, "label_smoothing": 0.1, "z_loss": 1e-2}), tmp_path / "smooth")
    assert smooth.loss is not None
    assert plain.loss is not None
    assert smooth.loss > plain.loss
    assert smooth.validation_loss == pytest.approx(plain.validation_loss, abs=0.05)


def poison(monkeypatch: Any, value: float, *bad: int) -> None:
    """Make the loss of a batch that holds one of these samples come out as `value`, every time it is used."""
    original = Stepper._accumulate

    def poisoned(self: Stepper, batch: Batch, count: float) -> torch.Tensor:
        loss = original(self, batch, count)
        kept = Skipping(TextWindows(16), self.progress.skipped)  # type: ignore[arg-type]
        first, after = kept.range(self.progress.samples, self.config.training.batch_size)
        return loss * 0 + value if any(first <= sample < after for sample in bad) else loss

    monkeypatch.setattr(Stepper, "_accumulate", poisoned)


def test_a_loss_that_is_not_finite_stops_with_a_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    poison(monkeypatch, math.nan, 50)
    with pytest.raises(FledgeError, match=r"At step 7 the loss became nan\..*checkpoint of step 4 is good"):
        run(settings(), tmp_path / "run")
    assert load_checkpoint(tmp_path / "run").path.name == "step-00000004"


@pytest.mark.parametrize(("value", "spike"), [(math.nan, None), (50.0, 3.0)])
def test_going_back_skips_the_batch_and_goes_on(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str], value: float, spike: float | None
) -> None:
    """The bad samples are left out, never in silence; the others come in order, and no row is doubled."""
    poison(monkeypatch, value, 200)
    windows, started = TextWindows(16), time.monotonic()
    config = settings(training={"steps": 30, "on_divergence": "skip", "spike": spike, "save_every": 5})
    result = run(config, tmp_path / "run", windows=windows)
    assert result.step == 30
    assert "skips the samples 200 to 207" in capsys.readouterr().err
    training = load_checkpoint(tmp_path / "run").training
    assert training is not None
    assert training.values["skipped"] == [[200, 208]]
    assert training.values["samples"] == 240
    assert steps_with(tmp_path / "run", "loss") == list(range(3, 31, 3))
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert all(float(row["tokens_per_second"]) > 0 for row in rows if row["tokens_per_second"])
    assert result.tokens_per_second > 0
    assert float(rows[-1]["seconds"]) <= time.monotonic() - started, "no second is counted twice"


def test_any_number_of_bad_batches_is_left_out_while_training_gets_on(tmp_path: Path, monkeypatch: Any) -> None:
    """It gives up when one checkpoint is gone back to too often, not when a long run meets many bad batches."""
    poison(monkeypatch, math.nan, *range(20, 320, 24))
    config = settings(training={"steps": 30, "on_divergence": "skip", "save_every": 1, "keep_last": 3})
    result = run(config, tmp_path / "run")
    assert result.step == 30
    training = load_checkpoint(tmp_path / "run").training
    assert training is not None
    assert len(training.values["skipped"]) > SETBACKS


def test_a_branch_without_a_checkpoint_goes_back_to_where_it_began(tmp_path: Path, monkeypatch: Any) -> None:
    run(settings(training={"steps": 12}), tmp_path / "run")
    poison(monkeypatch, math.nan, 50)
    config = settings(training={"steps": 20, "on_divergence": "skip", "save_every": 10})
    result = run(config, tmp_path / "run", resume=True, at=4)
    assert result.step == 20
    training = load_checkpoint(tmp_path / "run").training
    assert training is not None
    assert training.values["skipped"] == [[48, 56]]


def test_a_learning_rate_that_always_diverges_gives_up(tmp_path: Path) -> None:
    config = settings(
        optimizer={"learning_rate": 1e8, "clip_norm": None, "name": "sgd"},
        training={"on_divergence": "skip", "steps": 60},
    )
    with pytest.raises(FledgeError, match=r"kept happening after going back.*smaller optimizer\.learning_rate"):
        run(config, tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_says_so(tmp_path: Path, number: signal.Signals) -> None:
    class Signalled(TextWindows):
        def batch(self, samples: Any) -> Batch:
            if samples[0] == 48:
                os.kill(os.getpid(), number)
            return super().batch(samples)

    result = run(settings(training={"steps": 500}), tmp_path / "run", windows=Signalled(16))
    assert result.stopped == number.name
    assert load_checkpoint(tmp_path / "run").path == result.checkpoint
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_ctrl_c_raises_and_names_the_last_checkpoint(tmp_path: Path) -> None:
    """In a program of one's own it is an exception like any Ctrl-C; what was saved stays."""

    def twice(step: int, loss: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    with pytest.raises(KeyboardInterrupt, match=r"The last checkpoint is .*step-00000004: go on with"):
        run(settings(training={"steps": 500}), tmp_path / "run", on_evaluation=twice)
    assert load_checkpoint(tmp_path / "run").path.name == "step-00000004"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.set_wakeup_fd(-1) == -1


def test_an_event_loop_that_listens_to_signals_is_not_disturbed(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    try:
        run(settings(training={"steps": 2}), tmp_path / "run")
        assert signal.set_wakeup_fd(before) == write
    finally:
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def test_the_time_limit_is_kept(tmp_path: Path) -> None:
    start = time.monotonic()
    result = run(settings(training={"steps": 100_000}), tmp_path / "run", time_limit=4.0)
    assert time.monotonic() - start < 8
    assert result.stopped == "the time limit"
    assert (result.checkpoint / "bundle.json").is_file()


def test_the_time_limit_leaves_room_for_what_ends_the_training() -> None:
    stops = Stops(time_limit=100.0)
    assert stops.wanted(step_seconds=10.0, ending_seconds=70.0) is None
    assert stops.wanted(step_seconds=10.0, ending_seconds=81.0) == "the time limit"


def test_a_model_that_cannot_write_trains_all_the_same(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise FledgeError("The prompt is empty.")

    monkeypatch.setattr("fledge.generation.generate", refuse)
    result = run(settings(), tmp_path / "run")
    assert "No sample at step 6. The prompt is empty" in capsys.readouterr().err
    assert result.step == 12
    assert not (tmp_path / "run" / "samples.txt").exists()


def test_a_folder_may_be_called_as_branches_are(tmp_path: Path) -> None:
    run(settings(training={"steps": 8}), tmp_path / "branch")
    result = run(settings(), tmp_path / "branch", resume=True)
    assert result.step == 12
    assert not (tmp_path / "branch" / "branch").exists()


def test_samples_that_were_cut_short_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "samples.txt"
    samples = Samples(place, 0)
    samples.add(6, ["whole, ünd so on"])
    whole = place.read_bytes()
    assert Samples(place, 3).steps == set()
    assert Samples(place, 9).steps == set(), "what was dropped is gone, and nothing is left to read"
    samples.add(6, ["whole, ünd so on"])
    samples.add(12, ["cut"])
    for size in range(len(whole) + 1, place.stat().st_size):
        torn = tmp_path / "torn.txt"
        torn.write_bytes(place.read_bytes()[:size])
        assert Samples(torn, 20).steps == {6}
        assert torn.read_bytes() == whole


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    import fledge.training.saver as saver_module

    original = saver_module.save_bundle

    def full(folder: Path, *arguments: Any, **options: Any) -> Path:
        if folder.name > "step-00000004":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(folder, *arguments, **options)

    monkeypatch.setattr(saver_module, "save_bundle", full)
    with pytest.raises(FledgeError, match=r"Step 8 could not be saved .*checkpoint of step 4 is whole.*--resume"):
        run(settings(), tmp_path / "run")
    assert load_checkpoint(tmp_path / "run").path.name == "step-00000004"


def test_a_first_checkpoint_that_cannot_be_written_promises_nothing(tmp_path, monkeypatch) -> None:
    """No --resume without a checkpoint, no free space for a broken disk, and the file is named."""

    import fledge.training.saver as saver_module

    def broken(folder: Path, *arguments: Any, **options: Any) -> Path:
        raise OSError(errno.EIO, "Input/output error", str(folder / "model.safetensors"))

    monkeypatch.setattr(saver_module, "save_bundle", broken)
    with pytest.raises(FledgeError) as caught:
        run(settings(), tmp_path / "run")
    sentence = str(caught.value)
    assert (
        "model.safetensors). There is no checkpoint yet. Check the disk, or use another, then run the same" in sentence
    )
    assert "--resume" not in sentence
    assert "free" not in sentence.lower()


def test_a_disk_too_small_for_the_checkpoints_is_seen_before_the_first_step(tmp_path: Path, monkeypatch: Any) -> None:
    """Room for one is not enough where several are kept; what is kept already needs no more room."""
    import shutil

    usage = shutil.disk_usage(tmp_path)
    config = settings(training={"keep_last": 2, "save_every": 4, "steps": 12})
    run(config, tmp_path / "run")
    size = sum(path.stat().st_size for path in load_checkpoint(tmp_path / "run").path.rglob("*") if path.is_file())
    for free, refused in ((0, True), (size + 1_000_000, True), (3 * (size + 1_000_000), False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: usage._replace(free=free))
        folder = tmp_path / f"run-{free}"
        if refused:
            with pytest.raises(FledgeError, match="Training keeps 3 checkpoints at a time .* needs about .* free"):
                run(config, folder)
            assert not (folder / "checkpoints").exists()
        else:
            run(config, folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=2 * (size + 1_000_000)))
    longer = settings(training={"keep_last": 2, "save_every": 4, "steps": 20})
    assert run(longer, tmp_path / "run", resume=True).step == 20


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"keep_last": 2, "keep_every": 2}, r"training\.keep_every=2"),
        ({"keep_last": 2}, r"training\.keep_last=2"),
        ({"keep_last": 2, "keep_every": 6}, r"training\.keep_every=6, training\.keep_last=2"),
    ],
)
def test_a_full_disk_is_laid_to_the_rule_that_keeps_the_checkpoints(
    tmp_path: Path, monkeypatch: Any, rules: dict[str, int], named: str
) -> None:
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=0))
    with pytest.raises(FledgeError, match=rf"Training keeps \d+ checkpoints at a time \({named}\), and needs"):
        run(settings(training={"save_every": 1, "steps": 12, **rules}), tmp_path / "run")


def test_a_checkpoint_written_in_the_background_is_that_of_its_step(tmp_path: Path, monkeypatch: Any) -> None:
    """Training goes on while it is written, and neither what is saved nor what follows changes."""
    import fledge.training.saver as saver_module

    plain = run(settings(), tmp_path / "plain")
    original = saver_module.Saver.__init__

    def behind(self: Any, *arguments: Any) -> None:
        original(self, *arguments[:-1], True)

    monkeypatch.setattr(saver_module.Saver, "__init__", behind)
    beside = run(settings(), tmp_path / "beside")
    for step in (4, 8, 12):
        one, two = (load_checkpoint(tmp_path / name, at=step) for name in ("plain", "beside"))
        for name, tensor in one.model.state_dict().items():
            assert torch.equal(tensor, two.model.state_dict()[name])
        assert one.training is not None
        assert two.training is not None
        assert all(torch.equal(tensor, two.training.tensors[name]) for name, tensor in one.training.tensors.items())
    assert plain.loss == beside.loss


def test_a_crash_in_evaluation_does_not_cost_the_step(tmp_path: Path, monkeypatch: Any) -> None:
    def broken(self: Chores) -> None:
        raise RuntimeError("evaluation broke")

    monkeypatch.setattr(Chores, "evaluate", broken)
    with pytest.raises(RuntimeError, match="evaluation broke"):
        run(settings(), tmp_path / "run")
    assert load_checkpoint(tmp_path / "run").path.name == "step-00000004"


def test_retention_keeps_the_last_the_best_and_every_nth(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Chores, "_validation_loss", lambda self, _: 0.1 if self.progress.step == 3 else 1.0)
    config = settings(training={"save_every": 1, "keep_last": 2, "keep_every": 5, "evaluate_every": 1})
    run(config, tmp_path / "run")
    kept = sorted(int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [3, 5, 10, 11, 12]


def test_evaluation_sees_the_same_windows_each_time(tmp_path: Path) -> None:
    """And in eval mode: with a learning rate of nearly zero and dropout, the losses are equal."""
    config = settings(model={"dropout": 0.5}, optimizer={"learning_rate": 1e-30, "weight_decay": 0.0})
    run(config, tmp_path / "run")
    losses = {row["validation_loss"] for row in read_metrics(tmp_path / "run" / "metrics.csv")} - {""}
    assert len(losses) == 1


@pytest.mark.parametrize(("save_every", "evaluated"), [(2, {4, 8, 12}), (5, {12})])
@pytest.mark.parametrize("background", [False, True])
def test_a_checkpoint_holds_the_evaluation_of_its_own_step(
    tmp_path: Path, monkeypatch: Any, save_every: int, evaluated: set[int], background: bool
) -> None:
    """Though it is saved before that evaluation; and one of another step is not told as its own."""
    from fledge.training import output
    from fledge.training.saver import Saver

    monkeypatch.setattr(output, "Saver", lambda *arguments: Saver(*arguments[:-1], background))
    every = {"save_every": save_every, "evaluate_every": 4, "keep_last": 20}
    config = settings(training={**every, "keep_best": False})
    run(config, tmp_path / "run")
    rows = {row["step"]: row["validation_loss"] for row in read_metrics(tmp_path / "run" / "metrics.csv")}
    found = {}
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        bundle = load_bundle(path)
        assert bundle.metrics["step"] == int(path.name[5:])
        if "validation_loss" in bundle.metrics:
            found[bundle.metrics["step"]] = bundle.metrics["validation_loss"]
            assert f"{bundle.metrics['validation_loss']:.4g}" in (path / "README.md").read_text()
    assert found.keys() == evaluated
    assert all(float(rows[str(step)]) == pytest.approx(loss, abs=1e-6) for step, loss in found.items())


@pytest.mark.parametrize("architecture", ["transformer", "bdh", "rnn", "gru", "lstm"])
def test_every_architecture_overfits_one_batch(tmp_path: Path, architecture: str) -> None:
    class OneBatch(TextWindows):
        def batch(self, samples: Any) -> Batch:
            return super().batch([n % 4 for n in samples])

    model = {"architecture": architecture, "layers": 2, "width": 64, "heads": 2, "multiplier": 8}
    if architecture in ("rnn", "gru", "lstm"):
        model["bias"] = True
    quiet = {"log_every": 10, "save_every": 0, "evaluate_every": 0, "sample_every": 0}
    config = settings(
        model=model,
        optimizer={"learning_rate": 1e-2, "weight_decay": 0.0},
        training={"steps": 150, "batch_size": 4, **quiet},
    )
    result = run(config, tmp_path / "run", windows=OneBatch(16))
    assert result.loss is not None
    assert result.loss < 0.05


def test_processes_take_shares_in_order_that_make_the_whole() -> None:
    assert [Ranks(torch.device("cpu"), rank, 3).share(8) for rank in range(3)] == [(0, 2), (2, 5), (5, 8)]


@pytest.mark.parametrize(("size", "near"), [(3, "2 or 4"), (1, "2"), (7, "6 or 8")])
def test_a_batch_that_the_processes_cannot_share_is_refused_before_anything_is_written(
    tmp_path: Path, size: int, near: str
) -> None:
    folder = tmp_path / "run"
    run(settings(training={"steps": 8}), folder)
    before = sorted(folder.rglob("*"))
    checkpoint, config = load_checkpoint(folder, at=4), settings(training={"batch_size": size})
    windows: Any = TextWindows(16)
    parts = (config, checkpoint.model, tokenizer(), windows, windows, folder)
    sentence = f"training.batch_size = {size} can't be shared evenly by 2 processes. Try {near}."
    with pytest.raises(FledgeError, match=re.escape(sentence)):
        Session(Setup(*parts, resume=checkpoint), Ranks(torch.device("cpu"), rank=0, world=2))
    assert sorted(folder.rglob("*")) == before


def test_a_state_gathered_from_shards_leaves_the_gpu_tensor_by_tensor() -> None:
    class OnGPU:
        def cpu(self) -> torch.Tensor:
            return torch.zeros(3)

    ranks, config = Ranks(torch.device("cpu")), settings()
    stepper = Stepper(config, fresh_model(config), ranks)
    stepper.sharded = True
    stepper.optimizer.named_state = lambda: iter([("mean/a", OnGPU()), ("mean/b", OnGPU())])  # type: ignore[method-assign,list-item]
    assert [type(tensor) for tensor in stepper.state().values()] == [torch.Tensor, torch.Tensor]


class Terminal:
    """Stands for rich's live table: which is shown now."""

    shown: ClassVar[list[Any]] = []

    def __init__(self, **_: Any) -> None: ...

    def start(self) -> None:
        self.shown.append(self)

    def stop(self) -> None:
        self.shown.remove(self)

    def update(self, table: Any) -> None: ...


@pytest.fixture
def terminal(monkeypatch: Any) -> type[Terminal]:
    import fledge.training.view as module

    monkeypatch.setenv("TERM", "xterm")
    console = partial(module.Console, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(module, "Console", lambda stderr: console())
    monkeypatch.setattr(module, "Live", Terminal)
    return Terminal


def test_a_run_that_cannot_begin_leaves_the_terminal_as_it_was(
    tmp_path: Path, monkeypatch: Any, terminal: type[Terminal]
) -> None:
    def refused(place: Path) -> None:
        assert terminal.shown
        raise OSError(errno.ENOSPC, "No space left on device")

    run(settings(), tmp_path / "run", quiet=False)
    with pytest.raises(OSError, match="No space"):
        run(settings(training={"steps": 14}), tmp_path / "run", resume=True, quiet=False, on_start=refused)
    assert not terminal.shown
    monkeypatch.setattr("fledge.training.session.expect", lambda stepper: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(settings(), tmp_path / "other", quiet=False)
    assert not terminal.shown


def test_metrics_have_time_stamps_and_the_curve_is_drawn(tmp_path: Path) -> None:
    run(settings(), tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.csv")
    assert all("T" in row["time"] for row in rows)
    assert steps_with(tmp_path / "run", "loss") == [3, 6, 9, 12]
    assert steps_with(tmp_path / "run", "validation_loss") == [4, 8, 12]
    drawn = (tmp_path / "run" / "loss.svg").read_text()
    assert drawn.startswith("<?xml")
    assert ">time<" in drawn, "the time stands above the steps"
    assert "step 6" in (tmp_path / "run" / "samples.txt").read_text()
