"""Our optimizers follow torch's step by step, for every tensor; clipping and the kinds of parameters are theirs too."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fledge.config import ModelConfig, OptimizerConfig
from fledge.errors import FledgeError
from fledge.model import build_model
from fledge.training import AdamW, Muon, build_optimizer, rules
from fledge.training.layout import Rule
from fledge.training.optimizers import clip_gradients, clip_scale, gradient_norm, parameter_kinds
from fledge.training.rules import orthogonalise


class Small(nn.Module):
    """An embedding, matrices of several shapes, a norm, biases and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embeddings = nn.Embedding(20, 12)
        self.up, self.down = nn.Linear(12, 30), nn.Linear(30, 12)
        self.norm = nn.LayerNorm(12)
        self.lm_head = nn.Linear(12, 20, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embeddings(ids)
        return self.lm_head(self.norm(x + self.down(torch.tanh(self.up(x)))))


class DecoupledSGD(torch.optim.SGD):
    """torch's, with a decay that does not pass through the momentum, as AdamW's."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        decays = [group["weight_decay"] for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = 0.0
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * decay)
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


def references(model: nn.Module, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """torch's optimizers with the same settings, parameters grouped by hand."""
    named = dict(model.named_parameters())
    matrices = [named[name] for name in ("up.weight", "down.weight")]
    head = [named["lm_head.weight"]]
    rest = [parameter for parameter in named.values() if all(parameter is not p for p in [*matrices, *head])]
    rate, decay = config.learning_rate, config.weight_decay
    groups = [{"params": matrices + head, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    if config.name == "sgd":
        return [DecoupledSGD(groups, lr=rate, momentum=config.momentum, nesterov=config.nesterov)]
    moments = {"lr": rate, "betas": (config.beta1, config.beta2), "eps": config.epsilon}
    if config.name == "adamw":
        return [torch.optim.AdamW(groups, **moments)]
    muon = torch.optim.Muon(
        matrices,
        lr=config.matrix_learning_rate,
        weight_decay=decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
    )
    others = [{"params": head, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
    return [muon, torch.optim.AdamW(others, **moments)]


SETTINGS = {
    "adamw": OptimizerConfig(learning_rate=3e-3),
    "sgd": OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9),
    "sgd without Nesterov": OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9, nesterov=False),
    "muon": OptimizerConfig(name="muon", learning_rate=3e-3),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_thousand_steps_follow_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor within 1e-6 of torch's, relative to its size, after each of 1,000 steps on the same gradients."""
    config = SETTINGS[name]
    monkeypatch.setattr(rules, "NEWTON_SCHULZ", 5 * [(3.4445, -4.7750, 2.0315)])  # torch's; ours are newer
    if config.name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    torch.manual_seed(0)
    ours = Small()
    theirs = copy.deepcopy(ours)
    optimizer, judges = build_optimizer(ours, config), references(theirs, config)
    ids, targets = torch.randint(20, (32,)), torch.randint(20, (32,))
    for step in range(1000):
        factor = 1.0 if step < 500 else 0.5
        optimizer.factor = factor
        for judge in judges:
            for group in judge.param_groups:
                group.setdefault("peak", group["lr"])
                group["lr"] = group["peak"] * factor
        nn.functional.cross_entropy(ours(ids), targets).backward()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert mine.grad is not None
            other.grad = mine.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
        for judge in judges:
            judge.step()
        pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
        with torch.no_grad():
            gaps = [(mine - other).norm() / other.norm().clamp(min=1e-3) for mine, other in pairs]
        assert float(torch.stack(gaps).max()) < 1e-6, step


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_cautious_decay_takes_what_the_update_takes_too(name: str) -> None:
    """The update is that of no decay at all; only weights that it moves towards zero decay besides."""
    moved = {}
    for decay, cautious in ((0.0, False), (0.3, True)):
        config = OptimizerConfig(name=name, learning_rate=0.1, weight_decay=decay, cautious_decay=cautious)
        torch.manual_seed(0)
        model = Small()
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        optimizer = build_optimizer(model, config)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(torch.randn_like(parameter))
        optimizer.decay_factor = 0.5
        optimizer.step()
        moved[decay] = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    kinds = parameter_kinds(model)
    for key, weights in before.items():
        update = weights - moved[0.0][key]
        rate = config.matrix_learning_rate if name == "muon" and kinds[key] == "matrix" else config.learning_rate
        keep = 1 - rate * 0.3 * 0.5 if kinds[key] in ("matrix", "head") else 1.0
        expected = torch.where(update * weights > 0, weights * keep, weights) - update
        torch.testing.assert_close(moved[0.3][key], expected)


def test_clipping_is_torchs() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(50), torch.randn(7, 3)]
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.5)
    scale = clip_scale(gradient_norm(gradients), 1.5)
    assert scale is not None
    torch.testing.assert_close(gradient_norm(gradients), norm)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(gradient * scale, parameter.grad)
    assert clip_scale(norm, None) is None


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((40, 20), (20, 40), (3, 24, 24)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)).float())
        assert float(values.max()) < 1.3
        assert float(values.median()) > 0.7


def test_singular_values_of_a_three_hundredth_and_more_end_near_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "quick_type", lambda device: torch.float32)
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(64, 64)).Q for _ in range(2))
    sizes = torch.logspace(0, -3.5, 64)
    sizes /= sizes.norm()
    found = left.T @ orthogonalise(left @ sizes.diag() @ right) @ right.T
    turned = found.diagonal()
    assert float((found - turned.diag()).abs().max()) < 1e-4  # the directions stay
    near = turned[sizes >= 0.003]
    assert 20 < len(near) < 64
    assert float(near.min()) > 0.74
    assert float(near.max()) < 1.26
    assert bool((turned[sizes < 0.003] < 0.9).all())


def test_a_cpu_without_a_unit_for_bfloat16_orthogonalises_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same matrix but for the rounding."""
    torch.manual_seed(0)
    matrix = torch.randn(24, 40)
    found = {}
    for unit in (False, True):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda unit=unit: unit, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
        found[unit] = orthogonalise(matrix)
    assert (found[False].dtype, found[True].dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(found[False], found[True].float(), atol=0.03, rtol=0.05)


@pytest.mark.parametrize("architecture", ["transformer", "bdh", "lstm"])
def test_norms_biases_and_embeddings_do_not_decay(architecture: str) -> None:
    config = ModelConfig(
        architecture=architecture, layers=1, width=16, heads=2, bias=architecture != "bdh", multiplier=4
    )
    model = build_model(config, 11, 8)
    kinds = parameter_kinds(model)
    assert {kind for name, kind in kinds.items() if "embedding" in name} == {"embedding"}
    assert {kind for name, kind in kinds.items() if "bias" in name or "ln" in name} <= {"vector"}
    assert {kind for name, kind in kinds.items() if "lm_head" in name} == {"head"}
    assert "matrix" in kinds.values()
    optimizer = build_optimizer(model, OptimizerConfig())
    decayed = {name for group in optimizer.layout.groups(Rule("plain", 0.1)) for name in group.shapes}
    assert decayed == {name for name, kind in kinds.items() if kind in ("matrix", "head")}


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_state_saved_and_loaded_goes_on_with_the_same_bits(name: str) -> None:
    config = OptimizerConfig(name=name)
    step = make_step(config)
    whole = step(6, None)[0]
    half, state = step(3, None)
    rest = step(3, (half, state))[0]
    assert all(torch.equal(whole[label], rest[label]) for label in whole)


def make_step(config: OptimizerConfig) -> Callable[..., tuple[dict[str, Tensor], dict[str, Tensor]]]:
    def go(steps: int, start: tuple[dict[str, Tensor], dict[str, Tensor]] | None):  # type: ignore[no-untyped-def]
        torch.manual_seed(0)
        model = Small()
        ids, targets = torch.randint(20, (32,)), torch.randint(20, (32,))
        if start:
            model.load_state_dict(start[0])
        optimizer = build_optimizer(model, config)
        if start:
            optimizer.load_state(start[1], 3)
        for _ in range(steps):
            nn.functional.cross_entropy(model(ids), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return weights, {name: tensor.clone() for name, tensor in optimizer.named_state()}

    return go


def test_a_state_of_another_optimizer_is_refused() -> None:
    model = Small()
    saved = dict(build_optimizer(model, OptimizerConfig(name="sgd")).named_state())
    with pytest.raises(FledgeError, match="optimizer state mean/.* is missing"):
        build_optimizer(Small(), OptimizerConfig()).load_state(saved, 3)


def train_small(config: OptimizerConfig, clear: str, flat: bool = True, steps: int = 4) -> dict[str, Tensor]:
    """A few steps whose gradients are cleared through the model or through the optimizer."""
    torch.manual_seed(0)
    model = Small()
    ids, targets = torch.randint(20, (32,)), torch.randint(20, (32,))
    optimizer = build_optimizer(model, config, flat)
    for _ in range(steps):
        (model if clear == "model" else optimizer).zero_grad()
        nn.functional.cross_entropy(model(ids), targets).backward()
        optimizer.step()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_gradients_may_be_cleared_through_the_model(name: str, flat: bool) -> None:
    """`model.zero_grad()` makes them None, and autograd then makes new ones elsewhere."""
    config = OptimizerConfig(name=name)
    torch.manual_seed(0)
    before = dict(Small().state_dict())
    ours, theirs = train_small(config, "optimizer", flat), train_small(config, "model", flat)
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
    assert not torch.equal(theirs["up.weight"], before["up.weight"])


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_frozen_parameters_stay_as_they_are(name: str, flat: bool) -> None:
    """Neither they nor their state move, whenever they were frozen; those without a gradient stay too."""
    torch.manual_seed(0)
    model = Small()
    model.up.weight.requires_grad_(False)
    optimizer = build_optimizer(model, OptimizerConfig(name=name, weight_decay=0.5), flat)
    ids, targets = torch.randint(20, (32,)), torch.randint(20, (32,))

    def step() -> dict[str, Tensor]:
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        model.zero_grad()
        nn.functional.cross_entropy(model(ids), targets).backward()
        if not model.down.weight.requires_grad:
            model.lm_head.weight.grad = None
        optimizer.step()
        return before

    def same(before: dict[str, Tensor]) -> set[str]:
        return {key for key, tensor in model.state_dict().items() if torch.equal(tensor, before[key])}

    assert same(step()) == {"up.weight"}
    model.down.weight.requires_grad_(False)
    state = {key: tensor.clone() for key, tensor in optimizer.named_state()}
    assert same(step()) == {"up.weight", "down.weight", "lm_head.weight"}
    assert all(
        torch.equal(tensor, state[key])
        for key, tensor in optimizer.named_state()
        if key.split("/")[1] in ("up.weight", "down.weight", "lm_head.weight")
    )
    model.requires_grad_(True)
    assert not same(step())


def test_parameters_may_be_given_as_torch_takes_them() -> None:
    """An iterable of plain parameters follows torch's AdamW, each with the same decay where it is a matrix."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3, 7))]
    theirs = copy.deepcopy(ours)
    optimizer = AdamW(iter(ours), learning_rate=1e-2, weight_decay=0.3)
    judge = torch.optim.AdamW(theirs, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.3)
    for _ in range(20):
        for parameters, each in ((ours, optimizer), (theirs, judge)):
            each.zero_grad()
            sum(parameter.square().sum() for parameter in parameters).backward()
            each.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    Muon({"a": nn.Parameter(torch.randn(3, 3))}.items(), matrix_learning_rate=0.1)
    with pytest.raises(FledgeError, match="no parameters"):
        AdamW([])
    with pytest.raises(FledgeError, match="learning_rat"):
        AdamW(ours, learning_rat=1.0)


def test_a_model_that_was_changed_afterwards_is_followed_or_refused() -> None:
    model = Small()
    optimizer = build_optimizer(model, OptimizerConfig())
    model.up.weight.data = torch.ones(30, 12)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert model.up.weight.unique().numel() == 1
    assert 0.998 < model.up.weight[0, 0].item() < 1.0
    model.double()
    with pytest.raises(FledgeError, match=r"is no longer the parameter .* torch\.float64.*Build the optimizer after"):
        optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_every_group_of_parameters_has_its_decay(name: str) -> None:
    """With gradients of zero a step only decays: by the rate of the group's method times the decay of its kind."""
    rates = {"matrix": 0.02 if name == "muon" else 0.01}
    for settings, expected in (
        ({}, {"matrix": 0.5, "head": 0.5, "embedding": 0.0, "vector": 0.0}),
        ({"decay_all": True}, {"matrix": 0.5, "head": 0.5, "embedding": 0.5, "vector": 0.5}),
        (
            {"head_decay": 0.1, "embedding_decay": 0.2},
            {"matrix": 0.5, "head": 0.1, "embedding": 0.2, "vector": 0.0},
        ),
    ):
        model = Small()
        kinds = parameter_kinds(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        config = OptimizerConfig(name=name, learning_rate=0.01, weight_decay=0.5, **settings)
        build_optimizer(model, config).step()
        for key, tensor in model.named_parameters():
            kept = 1 - rates.get(kinds[key], 0.01) * expected[kinds[key]]
            assert float(tensor.detach().mean()) == pytest.approx(kept, abs=1e-6), key


@pytest.mark.parametrize("limit", [0.1, 1e3])
def test_gradients_are_clipped_as_torch_clips_them(limit: float) -> None:
    torch.manual_seed(0)
    ours = [
        torch.nn.Parameter(torch.randn(3, 4)),
        torch.nn.Parameter(torch.randn(5)),
        torch.nn.Parameter(torch.ones(2)),
    ]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    for one, other in zip(ours[:2], theirs, strict=False):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    norm = clip_gradients(ours, limit)
    assert torch.allclose(norm, torch.nn.utils.clip_grad_norm_(theirs, limit))
    for one, other in zip(ours[:2], theirs, strict=False):
        assert torch.allclose(one.grad, other.grad, rtol=1e-5)


def test_gradients_made_anew_are_those_that_were_added_up() -> None:
    """As a GPU takes them: handed over by autograd and gathered, instead of added to zeros."""
    torch.manual_seed(0)
    ours = Small()
    theirs = copy.deepcopy(ours)
    layouts = [build_optimizer(model, OptimizerConfig()).layout for model in (ours, theirs)]
    for step in range(3):
        ids, targets = torch.randint(20, (32,)), torch.randint(20, (32,))
        layouts[1].zero()
        layouts[0].release()
        for part in range(2):  # the second part is added to the first
            for model in (ours, theirs):
                nn.functional.cross_entropy(model(ids), targets).backward()
            if not part:
                layouts[0].gather()
        for mine, other in zip(*(layout.gradients() for layout in layouts), strict=True):
            torch.testing.assert_close(mine, other, atol=0, rtol=0)
            assert step or float(mine.norm()) > 0
    next(ours.parameters()).requires_grad_(False)
    layouts[0].release()
    nn.functional.cross_entropy(ours(ids), targets).backward()
    layouts[0].gather()
    assert float(next(ours.parameters()).grad.norm()) == 0  # type: ignore[union-attr]
