"""More time than one model can use: teachers are trained first and teach the one that is handed over; a kill costs none
of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fledge.accounting import Account
from fledge.config import ModelConfig, RunConfig, load_recipe
from fledge.corpus import Corpus
from fledge.errors import FledgeError, notes_kept
from fledge.run import Run
from fledge.runs.checkpoints import checkpoints
from fledge.start import choose, law, plan, work
from fledge.start.look import held_out_remarks
from fledge.start.speed import Way
from fledge.start.start import Start
from fledge.training import TrainingResult
from tests.small import SMALL

DIARY = "".join(f"Today was day {n}, and I wrote line {n * n} about it.\n" for n in range(700))


def quiet(word: str, fact: str) -> None:
    pass


@pytest.fixture
def planned(tmp_path: Path) -> Run:
    """A start with two teachers, which nothing of has been trained."""
    (tmp_path / "diary.txt").write_text(DIARY)
    teachers = str(work.teacher_folders(tmp_path / "run", 2)).replace("'", '"')
    settings = [*SMALL, f"corpus.source={tmp_path / 'diary.txt'}", f"training.teachers={teachers}"]
    run = Run("akjv-demo", tmp_path / "run", overrides=settings, quiet=True)
    run.claim()
    return run


def begin(run: Run, seconds: float = 600.0) -> TrainingResult:
    start = Start([run.config.corpus.source[0]], seconds, "10m", run.folder, quiet)
    start.speed = 1e6
    with notes_kept():
        return start.train(Run.open(run.folder, quiet=True))


def test_teachers_differ_from_their_student_and_are_its_targets(planned: Run) -> None:
    result = begin(planned)
    folders = [Path(name) for name in planned.config.training.teachers]
    assert [folder.name for folder in folders] == ["1", "2"]
    seeds = {Run.open(folder).config.training.seed for folder in (*folders, planned.folder)}
    assert len(seeds) == 3
    assert result.step == result.steps == planned.config.steps
    alone = Run(planned.config, planned.folder.with_name("alone"), overrides=["training.teachers=[]"], quiet=True)
    assert alone.train(quiet=True).loss != result.loss


def test_a_kill_costs_no_finished_work(planned: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second teacher, the same call goes on there; the first is not touched again."""
    first, second = map(Path, planned.config.training.teachers)
    trained, to_its_end = [], work.to_its_end

    def cut(run: Run, limit: float | None) -> TrainingResult:
        if run.folder == second:
            raise KeyboardInterrupt
        return to_its_end(run, limit)

    monkeypatch.setattr(work, "to_its_end", cut)
    with pytest.raises(KeyboardInterrupt):
        begin(planned)
    assert checkpoints(first)
    assert not checkpoints(second)
    before = checkpoints(first)[-1].stat().st_mtime_ns

    def seen(run: Run, limit: float | None) -> TrainingResult:
        trained.append((run.folder.name, limit))
        return to_its_end(run, limit)

    monkeypatch.setattr(work, "to_its_end", seen)
    assert begin(planned).stopped is None
    assert trained == [("1", None), ("2", None), ("run", None)]  # what was begun before takes what its steps take
    assert checkpoints(first)[-1].stat().st_mtime_ns == before
    trained.clear()
    assert begin(planned).stopped is None
    assert trained == [("run", None)]


def test_teachers_and_student_share_the_time(planned: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shares, clock = [], [1000.0]

    def spend(run: Run, limit: float | None) -> object:
        assert limit is not None
        shares.append(limit)
        clock[0] -= limit
        return type("Result", (), {"stopped": None})

    monkeypatch.setattr(work, "to_its_end", spend)
    work.train(planned, lambda: clock[0], quiet)
    student = 1 + 2 * work.TEACHING
    assert shares == pytest.approx([1000 / (2 + student)] * 2 + [1000 * student / (2 + student)])


def test_teachers_come_when_one_model_leaves_much_of_the_time() -> None:
    text = law.Text(100_000)

    def use(passes: float) -> choose.Use:
        affordable = passes * text.tokens
        return choose.with_teachers(choose.one_model(affordable, text, 3_000_000, fast=True), affordable, text)

    uses = [use(passes) for passes in (2, 10, 20, 200, 2000)]
    assert [one.teachers for one in uses] == [0, 0, 0, choose.TEACHERS, choose.TEACHERS]
    bits = [one.bits for one in uses]
    assert bits == sorted(bits, reverse=True)  # more time is never worse
    for affordable in (2e5, 2e6, 2e7, 2e8):
        assert work.cost(use(affordable / 1e5).tokens, use(affordable / 1e5).teachers) <= affordable


def test_a_test_part_that_copies_leave_empty_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "measured_speed", lambda *_: 1e4)
    monkeypatch.setattr(plan, "quick_precision", lambda *_: Way({}, 1e4))
    names, things = ("Tom", "Anna", "the little bird", "an old man"), ("a red ball", "some bread", "the moon", "a boat")
    lines = [
        f"Once upon a time {names[n % 4]} found {things[n * 7 % 4]} near the river on day {n}. "
        f"{names[n * 3 % 4].capitalize()} was {'very ' * (n % 3)}happy and went home with {things[n % 4]}."
        for n in range(2500)
    ]
    (tmp_path / "copies.txt").write_text("<|endoftext|>".join(lines))
    said: list[tuple[str, str]] = []
    Start([str(tmp_path / "copies.txt")], 60.0, "1m", tmp_path / "run", lambda *fact: said.append(fact)).run()
    assert any(word == "held out" and "nothing is left for the test part" in fact for word, fact in said)


def test_a_text_of_copies_leaves_nothing_to_hold_out(tmp_path: Path) -> None:
    """It is refused before training, with what to do; it was found only by the report."""
    (tmp_path / "copies.txt").write_text("<|endoftext|>".join([DIARY[:900]] * 100))
    with pytest.raises(FledgeError, match="nothing is left for the validation part"):
        Start([str(tmp_path / "copies.txt")], 60.0, "1m", tmp_path / "run", quiet).run()
    assert not (tmp_path / "run").exists()


def test_held_out_text_that_says_little_is_said_before_training(tmp_path: Path) -> None:
    """Three lines of it; or the training text's own, where one document is a page a thousand times."""
    (tmp_path / "diary.txt").write_text(DIARY)
    (tmp_path / "page.txt").write_text(DIARY[:1500] * 200)
    diary, page = (Corpus.open(str(tmp_path / name)) for name in ("diary.txt", "page.txt"))
    few, enough = list(held_out_remarks(diary, 90, 70)), list(held_out_remarks(diary, 10_000, 5_000))
    assert [remark.partition(":")[0] for remark in few] == ["90 bytes choose the model and 70 give the final figure"]
    assert "too few to tell" in few[0]
    assert not enough
    assert "stands in the training text word for word" in next(held_out_remarks(page, 10_000, 5_000))


def test_a_time_too_short_to_train_names_one_that_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And steps that were set by hand are taken, however few."""
    (tmp_path / "diary.txt").write_text(DIARY)
    monkeypatch.setattr(plan, "measured_speed", lambda *_: 200.0)
    monkeypatch.setattr(plan, "quick_precision", lambda *_: Way({}, 200.0))
    monkeypatch.setattr(plan, "compiled_way", lambda way, *_: way)

    def config(seconds: float, *given: str) -> RunConfig:
        text = str(tmp_path / "diary.txt")
        return Start([text], seconds, f"{seconds:g}s", tmp_path / "run", quiet, given).run().config

    with pytest.raises(FledgeError, match="0 steps would be left") as refused:
        config(20.0)
    enough = re.search(r"Give at least --time (\d+)s", str(refused.value))
    assert enough
    assert config(float(enough[1])).steps >= plan.FEWEST_STEPS
    shutil.rmtree(tmp_path / "run")
    assert config(20.0, "training.steps=10").steps == 10


@pytest.mark.parametrize(("seconds", "flops"), [(150.0, 2e9), (36_000.0, 1e12)])
def test_a_plan_says_what_the_time_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, flops: float
) -> None:
    """Too little for one pass, and more than one model has a use for: on a machine of so many FLOP/s."""
    lines = "".join(
        f"Line {n * n % 977} of {n}: {'very ' * (n % 3)}much is like {n * 7 % 31}.\n" for n in range(16_000)
    )
    (tmp_path / "diary.txt").write_text(lines)

    def speed(model: ModelConfig, vocabulary: int, context: int, batch: int, *_: object) -> float:
        return flops / Account(model, vocabulary, context).flops_per_token

    monkeypatch.setattr(plan, "measured_speed", speed)
    monkeypatch.setattr(plan, "quick_precision", lambda *sizes: Way({}, speed(*sizes)))
    monkeypatch.setattr(plan, "compiled_way", lambda way, *_: way)
    said: dict[str, str] = {}
    start = Start(
        [str(tmp_path / "diary.txt")], seconds, "so long", tmp_path / "run", lambda *fact: said.update([fact])
    )
    config = start.run().config
    teachers = work.teacher_folders(tmp_path / "run", choose.TEACHERS) if flops > 1e10 else []
    assert list(config.training.teachers) == teachers
    assert ("too short for a whole pass" in said.get("time", "")) == (not teachers)
    assert (f"for each of {choose.TEACHERS} teachers and their student" in said["training"]) == bool(teachers)
    assert load_recipe(str(tmp_path / "run" / "recipe.toml")) == config
    decays = choose.ROW_DECAY if teachers and not plan.devices.is_gpu(plan.devices.fastest()) else None
    assert (config.optimizer.embedding_decay, config.optimizer.head_decay) == (decays, decays)
    # A short run begins with a loss that rises until the learning rate falls: patience would end it there.
    assert (config.training.patience is None) == (not teachers)
