"""Distillation: the averaged prediction of teachers as a second target, exactly resumed; what can't be learned from."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from fledge.bundle import load_bundle
from fledge.config import ModelConfig, load_recipe, override_config
from fledge.errors import FledgeError, notes_kept
from fledge.loss import cross_entropy
from fledge.model import build_model
from fledge.run import Run
from fledge.runs import find_bundle
from fledge.runs.checkpoints import checkpoints
from fledge.start.distill import distillation
from fledge.tokens.batch import MASKED
from fledge.training import load_checkpoint
from fledge.training.device import choose_precision
from fledge.training.objective import Objective, Teachers
from tests.small import SMALL

CPU = torch.device("cpu")
FP32 = choose_precision("fp32", CPU)
TEXT = "".join(f"On day {n} the {n * 7 % 13}th ship left the harbour for {n * 11 % 17} islands.\n" for n in range(400))


@pytest.fixture(scope="module")
def taught(tmp_path_factory) -> list[Path]:
    """Two teachers of one text and tokenizer."""
    folder = tmp_path_factory.mktemp("teachers")
    (folder / "text.txt").write_text(TEXT)
    for seed in range(2):
        settings = [*SMALL, f"corpus.source={folder / 'text.txt'}", f"training.seed={seed}", "corpus.test_fraction=0.1"]
        if seed:
            settings.append(f"tokens.store={folder / '0' / 'tokens'}")
        Run("akjv-demo", folder / str(seed), overrides=settings, quiet=True).train()
    return [folder / "0", folder / "1"]


def model(seed: int, width: int = 32):
    torch.manual_seed(seed)
    return build_model(ModelConfig(layers=1, width=width, heads=2), 40, 16)


@pytest.mark.parametrize("rows", [1 << 25, 100])  # at once, and in parts
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_loss_is_of_text_and_averaged_probabilities_in_their_shares(monkeypatch, share, rows):
    monkeypatch.setattr("fledge.training.objective.ROWS", rows)
    student, known = model(0), [model(1), model(2, width=64)]
    inputs, targets = torch.randint(40, (3, 16)), torch.randint(40, (3, 16))
    targets[0, :5] = MASKED
    objective = Objective(student, FP32, CPU, 0.1, 1e-3).train()
    plain, _ = objective(inputs, targets)
    objective.teachers = Teachers(known, share, FP32, CPU)
    found, _ = objective(inputs, targets)
    logits = student(inputs)
    averaged = sum(torch.softmax(teacher(inputs), -1) for teacher in known) / 2
    soft = -(averaged * torch.log_softmax(logits, -1)).sum(-1)[targets != MASKED].sum()
    text, _ = cross_entropy(logits, targets, 0.1, 1e-3)
    assert float(text) == pytest.approx(float(plain), rel=1e-4)
    assert float(found) == pytest.approx(float((1 - share) * text + share * soft), rel=1e-4)
    found.backward()
    assert all(parameter.grad is None for teacher in known for parameter in teacher.parameters())
    assert len(list(objective.parameters())) == len(list(student.parameters()))
    objective.eval()  # the figure of held-out text is that of the text alone
    assert float(objective(inputs, targets)[0]) == pytest.approx(float(cross_entropy(logits, targets)[0]), rel=1e-4)


def test_a_student_comes_close_to_what_its_teachers_say():
    student, teacher = model(0), model(1)
    with torch.no_grad():
        teacher.head_weight.mul_(20.0)  # of strong opinions
    objective = Objective(student, FP32, CPU, 0.0, 0.0).train()
    objective.teachers = Teachers([teacher], 0.99, FP32, CPU)
    optimizer = torch.optim.Adam(student.parameters(), 0.01)
    torch.manual_seed(0)
    inputs, targets = torch.randint(40, (8, 16)), torch.randint(40, (8, 16))  # the text says nothing
    distances = []
    for _ in range(60):
        with torch.no_grad():
            mine, theirs = torch.log_softmax(student(inputs), -1), torch.log_softmax(teacher(inputs), -1)
            distances.append(float((theirs.exp() * (theirs - mine)).sum(-1).mean()))
        (objective(inputs, targets)[0] / targets.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert distances[-1] < 0.5 * distances[0]


def test_a_student_goes_on_after_a_kill_with_the_same_bits(taught, tmp_path):
    settings = [*SMALL, "training.steps=4", "training.save_every=2", "model.width=16"]
    config = distillation(taught, "akjv-demo", settings)
    whole = Run(config, tmp_path / "whole", quiet=True)
    whole.train()
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(checkpoints(tmp_path / "cut")[-1])
    cut = Run(config, tmp_path / "cut", quiet=True)
    cut.train(resume=load_checkpoint(tmp_path / "cut", "last"))
    here, there = (load_bundle(checkpoints(tmp_path / name)[-1]) for name in ("whole", "cut"))
    assert here.metrics["step"] == there.metrics["step"] == 4
    for name, weights in here.model.state_dict().items():
        assert torch.equal(weights, there.model.state_dict()[name]), name
    alone = Run(override_config(config, ["training.teachers=[]"]), tmp_path / "alone", quiet=True)
    alone.train()
    last = load_bundle(checkpoints(tmp_path / "alone")[-1]).model.state_dict()
    assert any(not torch.equal(weights, last[name]) for name, weights in here.model.state_dict().items())


def test_a_student_has_its_first_teachers_tokenizer_and_text(taught, tmp_path):
    config = distillation(taught, "akjv-demo", [*SMALL, "tokenizer.vocabulary_size=999"], share=0.25)
    assert config.training.teachers_share == 0.25
    run = Run(config, tmp_path / "run", quiet=True)
    first = Run.open(taught[0])
    assert run.tokenizer.fingerprint == first.tokenizer.fingerprint
    for part in ("train", "validation", "test"):
        assert run.tokens.split(part).tokens.tolist() == first.tokens.split(part).tokens.tolist()
    assert config.corpus == first.config.corpus
    assert config.training.steps == 6
    run.train()
    asked = distillation(taught, "akjv-demo", SMALL, at="last").training.teachers
    assert [Path(teacher) for teacher in asked] == [find_bundle(teacher, "last") for teacher in taught]
    kept = load_bundle(find_bundle(tmp_path / "run")).config
    assert [Path(teacher).name for teacher in kept.training.teachers] == ["0", "1"]
    assert not any(Path(teacher).is_absolute() for teacher in kept.training.teachers)
    assert math.isfinite(run.evaluate(split="test").loss)


def test_what_can_not_be_learned_from_is_refused(taught, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT[: len(TEXT) // 2])
    other = [*SMALL, f"corpus.source={tmp_path / 'text.txt'}", "training.steps=1"]
    Run("akjv-demo", tmp_path / "other", overrides=other, quiet=True).train()
    with pytest.raises(FledgeError, match="has another tokenizer than the student"):
        distillation([taught[0], tmp_path / "other"], "akjv-demo", SMALL)
    with pytest.raises(FledgeError, match=r"windows have 32\. Set tokens.context_length=16"):
        distillation(taught, "akjv-demo", [*SMALL, "tokens.context_length=32"])
    with pytest.raises(FledgeError, match="tokens.policy = packed can't be used with teachers"):
        distillation(taught, "akjv-demo", [*SMALL, "tokens.policy=packed"])
    with pytest.raises(FledgeError, match="at least one teacher"):
        distillation([], "akjv-demo", SMALL)
    config = load_recipe("akjv-demo", [*SMALL, f"training.teachers={tmp_path / 'nowhere'}"])
    with pytest.raises(FledgeError, match="nowhere"):
        Run(config, tmp_path / "lost", quiet=True).train()


def test_no_cost_is_forecast_that_leaves_the_teachers_out(taught, tmp_path, capsys):
    config = distillation(taught, "akjv-demo", [*SMALL, "training.steps=1"])
    for teachers, expected in ((config.training.teachers, False), ((), True)):
        training = config.training.model_copy(update={"teachers": teachers})
        Run(config.model_copy(update={"training": training}), tmp_path / str(expected)).train()
        said = capsys.readouterr()
        assert ("Expected:" in said.out + said.err) == expected


def test_what_may_not_be_meant_is_said(taught):
    with notes_kept() as said:
        distillation(taught, "akjv-demo", [*SMALL, "model.width=64"])
    assert any("its largest teacher" in note for note in said)
    with notes_kept() as said:
        distillation(taught, "akjv-demo", [*SMALL, "model.width=16"])
    assert not said
