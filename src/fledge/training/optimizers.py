"""SGD, AdamW and Muon. Each rule is a short function of plain tensors; an optimizer applies it to laid-out parameters.

Weights and gradients that share a rule lie end to end in memory, so that an update is a few large operations instead
of a few per parameter. On a GPU the rule is compiled into one kernel, and the clipping factor is folded into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fledge.config import OptimizerConfig, parse
from fledge.config.sizes import NEWTON_SCHULZ_STEPS
from fledge.errors import FledgeError
from fledge.training.layout import Layout, Rule, UpdateGroup

Parameters: TypeAlias = nn.Module | Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]]
CACHE_BLOCK = 1 << 18  # elements updated at once on a CPU: weights, gradient and state stay in the cache together


def adamw(
    weights: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    scalars: Any,
    beta1: float,
    beta2: float,
    eps: float,
    cautious: bool = False,
) -> None:
    """Adam with decoupled decay. `scalars` are (decay factor, step size, root of the square's bias correction)."""
    keep, step_size, root_correction = scalars
    if not cautious:
        weights.mul_(keep)
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = square.sqrt().div_(root_correction).add_(eps)
    update = step_size * mean / denominator
    if cautious:  # only what the update moves towards zero as well
        weights.mul_(torch.where(update * weights > 0, keep, 1.0))
    weights.sub_(update)


def sgd(
    weights: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    scalars: Any,
    momentum: float,
    nesterov: bool,
    cautious: bool = False,
) -> None:
    """Gradient descent with momentum and decoupled decay. `scalars` are (decay factor, learning rate)."""
    keep, rate = scalars
    if not cautious:
        weights.mul_(keep)
    velocity.mul_(momentum).add_(gradient)
    update = rate * (gradient + momentum * velocity if nesterov else velocity)
    if cautious:
        weights.mul_(torch.where(update * weights > 0, keep, 1.0))
    weights.sub_(update)


def quick_type(device: torch.device) -> torch.dtype:
    """The type in which matrix products are fastest where 8 bits of precision do: bfloat16 where the device has a unit
    for it. A CPU without one takes 1.4 to 50 times as long with it as with float32."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    has_unit = device.type != "cpu" or any(getattr(torch.cpu, check, bool)() for check in checks)
    return torch.bfloat16 if has_unit else torch.float32


def orthogonalise(matrices: Tensor, steps: int = NEWTON_SCHULZ_STEPS) -> Tensor:
    """Nearly U·Vᵀ of each matrix U·S·Vᵀ in a batch: five Newton–Schulz steps in `quick_type` push every S towards 1.

    The coefficients are Keller Jordan's: steepest at zero, at the price of ending between about 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.to(quick_type(matrices.device))
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    norms = x.flatten(1).norm(dim=1) if x.ndim == 3 else x.norm()
    x = x / norms.clamp(min=1e-7).reshape(-1, *([1] * (x.ndim - 1)) if x.ndim == 3 else ())
    multiply_add = torch.baddbmm if x.ndim == 3 else torch.addmm
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = multiply_add(x, polynomial, x, beta=a)
    return x.mT if tall else x


class Optimizer:
    """Parameters laid out by rule, and the state that each rule keeps for them.

    `factor` multiplies the learning rates and `decay_factor` the weight decay, as the schedules say. `step(scale)`
    reads the gradients, multiplied by `scale` where one is given, and moves the weights. Gradients are kept:
    `zero_grad()` sets them to zero. As with torch's optimizers, a parameter whose gradient is None, or that does not
    require one, is left as it is.

    >>> layer = nn.Linear(2, 1)
    >>> optimizer = AdamW(layer.parameters(), learning_rate=0.1)
    >>> layer(torch.ones(2)).sum().backward()
    >>> optimizer.step()
    >>> optimizer.zero_grad()
    """

    name = ""

    def __init__(
        self, parameters: Parameters, config: OptimizerConfig | None = None, flat: bool = True, **settings: Any
    ):
        """`parameters` are a model or, as for torch's, an iterable of parameters or of names with them.

        `settings` are those of `fledge.config.OptimizerConfig`, where no `config` is given. The storage of the
        parameters is laid out anew unless `flat` is False.
        """
        self.config = config = parse(OptimizerConfig, {"name": self.name, **settings}) if config is None else config
        self.layout = layout = lay_out(parameters, config, flat)
        self.factor = 1.0
        self.decay_factor = 1.0
        self._scale: Tensor | None = None
        self.steps = 0
        self.state: dict[tuple[str, Rule], list[Tensor]] = {
            (kind, rule): [torch.zeros_like(group.weights) for group in layout.groups(rule)]
            for rule in layout.rules
            for kind in self.kinds(rule)
        }

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        """The names of the tensors that a rule keeps for each parameter."""
        raise NotImplementedError

    def update(self, rule: Rule, group: UpdateGroup, gradient: Tensor, state: list[Tensor]) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, scale: Tensor | None = None) -> None:
        self.steps += 1
        self._scale = scale
        for rule in self.layout.rules:
            for index, group in enumerate(self.layout.groups(rule)):
                gradient = group.gradient
                if scale is not None and not self._folds(rule, gradient):
                    gradient = gradient.mul_(scale)
                state = [self.state[kind, rule][index] for kind in self.kinds(rule)]
                left_out = set(group.left_out())
                kept = [
                    (part, part.clone())
                    for tensor in (group.weights, *state)
                    for part in (group.views(tensor, left_out) if left_out else ())
                ]
                self.update(rule, group, gradient, state)
                for part, before in kept:
                    part.copy_(before)

    def zero_grad(self) -> None:
        self.layout.zero()

    def _folds(self, rule: Rule, gradient: Tensor) -> bool:
        """Whether the rule's kernel applies the scale itself."""
        return gradient.device.type == "cuda" and rule.method != "matrix"

    def decay(self, rule: Rule) -> float:
        return rule.decay * self.decay_factor

    def apply(self, rule: Any, scalars: tuple[float, ...], tensors: list[Tensor], *settings: Any) -> None:
        """Run a rule over flat tensors: in blocks that fit the cache on a CPU, as one compiled kernel on a GPU."""
        if tensors[0].device.type == "cuda":
            on_device = torch.tensor(scalars, dtype=torch.float32).to(tensors[0].device, non_blocking=True)
            scale = torch.ones_like(on_device[0]) if self._scale is None else self._scale
            _compiled(rule, settings)(scale, on_device, *tensors)
            return
        for start in range(0, tensors[0].numel(), CACHE_BLOCK):
            rule(*(tensor[start : start + CACHE_BLOCK] for tensor in tensors), scalars, *settings)

    def named_state(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the state as `kind/parameter`, whole and in the parameter's own shape."""
        for (kind, rule), tensors in self.state.items():
            for group, tensor in zip(self.layout.groups(rule), tensors, strict=True):
                for name, whole in group.split(tensor):
                    yield f"{kind}/{name}", whole

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Take up a saved state; every tensor must be there and fit."""
        self.steps = steps
        for (kind, rule), groups in self.state.items():
            for group, tensor in zip(self.layout.groups(rule), groups, strict=True):
                for name, shape in group.shapes.items():
                    saved = tensors.get(f"{kind}/{name}")
                    if saved is None or tuple(saved.shape) != tuple(shape) or not saved.is_floating_point():
                        found = "missing" if saved is None else f"of shape {tuple(saved.shape)} and {saved.dtype}"
                        raise FledgeError(
                            f"The checkpoint's optimizer state {kind}/{name} is {found}, and {tuple(shape)} is needed, "
                            "of floating-point numbers: it was written by another optimizer or model. Start from its "
                            "weights with --from."
                        )
                    if not saved.isfinite().all() or (kind == "square" and (saved < 0).any()):
                        raise FledgeError(
                            f"The checkpoint's optimizer state {kind}/{name} holds negative or non-finite "
                            "moments. Resume from an earlier checkpoint with --at STEP, or start from its "
                            "weights with --from."
                        )
                    group.fill(tensor, name, saved)


_kernels: dict[Any, Any] = {}


def _compiled(rule: Any, settings: tuple[Any, ...]) -> Any:
    """The rule with its settings as one kernel, which multiplies the gradient by a scale on the way."""
    key = (rule, settings)
    if key not in _kernels:

        def scaled(scale: Tensor, scalars: Tensor, weights: Tensor, gradient: Tensor, *state: Tensor) -> None:
            rule(weights, gradient * scale, *state, scalars.unbind(), *settings)

        _kernels[key] = torch.compile(scaled, dynamic=True)
    return _kernels[key]


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    name = "adamw"

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        return ("mean", "square")

    def update(self, rule: Rule, group: UpdateGroup, gradient: Tensor, state: list[Tensor]) -> None:
        config = self.config
        rate = config.learning_rate * self.factor
        scalars = (
            1 - rate * self.decay(rule),
            rate / (1 - config.beta1**self.steps),
            math.sqrt(1 - config.beta2**self.steps),
        )
        settings = (config.beta1, config.beta2, config.epsilon, config.cautious_decay)
        self.apply(adamw, scalars, [group.weights, gradient, *state], *settings)


class SGD(Optimizer):
    """Gradient descent with momentum."""

    name = "sgd"

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        return ("velocity",)

    def update(self, rule: Rule, group: UpdateGroup, gradient: Tensor, state: list[Tensor]) -> None:
        rate = self.config.learning_rate * self.factor
        scalars = (1 - rate * self.decay(rule), rate)
        settings = (self.config.momentum, self.config.nesterov, self.config.cautious_decay)
        self.apply(sgd, scalars, [group.weights, gradient, *state], *settings)


class Muon(AdamW):
    """Momentum made orthogonal for the matrices inside the model, AdamW for embeddings, head, norms and biases."""

    name = "muon"

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        return ("momentum",) if rule.method == "matrix" else super().kinds(rule)

    def update(self, rule: Rule, group: UpdateGroup, gradient: Tensor, state: list[Tensor]) -> None:
        if rule.method != "matrix":
            super().update(rule, group, gradient, state)
            return
        (momentum,) = state
        rate = self.config.matrix_learning_rate * self.factor
        momentum.lerp_(gradient, 1 - self.config.momentum)
        update = gradient.lerp(momentum, self.config.momentum) if self.config.nesterov else momentum
        keep, cautious = 1 - rate * self.decay(rule), self.config.cautious_decay
        if not cautious:
            group.weights.mul_(keep)
        for names, matrices in group.by_shape(update):
            batched = matrices.device.type == "cuda" or matrices.ndim > 3
            rows, columns = matrices.shape[-2:]
            flat = matrices.reshape(-1, rows, columns)
            # One matrix at a time on a CPU: batched products gain nothing there.
            turned = orthogonalise(flat) if batched else torch.stack([orthogonalise(matrix) for matrix in flat])
            turned = turned.reshape(matrices.shape)
            for name, change in zip(names, turned, strict=True):
                if cautious:
                    group.decay_cautiously(name, change, keep)
                group.add(name, change, -rate * math.sqrt(max(1, rows / columns)))


OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": AdamW, "sgd": SGD, "muon": Muon}


def build_optimizer(parameters: Parameters, config: OptimizerConfig, flat: bool = True) -> Optimizer:
    """The configured optimizer over a model's parameters, whose storage it lays out anew unless `flat` is False."""
    return OPTIMIZERS[config.name](parameters, config, flat)


def lay_out(parameters: Parameters, config: OptimizerConfig, flat: bool) -> Layout:
    """The parameters by rule: the method that moves them, and how much they decay."""
    if isinstance(parameters, nn.Module):
        named, kinds = dict(parameters.named_parameters()), parameter_kinds(parameters)
    else:
        pairs = [each if isinstance(each, tuple) else (str(place), each) for place, each in enumerate(parameters)]
        named = dict(pairs)
        kinds = {name: _kind(name, parameter, False) for name, parameter in named.items()}
    if not named:
        raise FledgeError("The optimizer was given no parameters. Give it a model, or model.parameters().")
    others = config.weight_decay if config.decay_all else 0.0
    decays = {
        "matrix": config.weight_decay,
        "head": config.weight_decay if config.head_decay is None else config.head_decay,
        "embedding": others if config.embedding_decay is None else config.embedding_decay,
        "vector": others,
    }
    rules = {
        name: Rule("matrix" if kind == "matrix" and config.name == "muon" else "plain", decays[kind])
        for name, kind in kinds.items()
    }
    return Layout(named, rules, flat)


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """What each parameter is: `embedding`, `head`, `matrix`, or `vector` (norms and biases)."""
    embeddings = {
        parameter
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return {name: _kind(name, parameter, parameter in embeddings) for name, parameter in model.named_parameters()}


def _kind(name: str, parameter: nn.Parameter, embedded: bool) -> str:
    if parameter.ndim < 2:
        return "vector"
    if embedded or "embedding" in name:
        return "embedding"
    return "head" if "head" in name.split(".")[-2:] or "lm_head" in name else "matrix"


@torch.no_grad()
def gradient_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The length of all gradients together, as a tensor: nothing waits for the device."""
    norms = torch.stack([torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients])
    return norms.square().sum().sqrt()


def clip_scale(norm: Tensor, limit: float | None) -> Tensor | None:
    """What gradients are multiplied by so that their global norm is at most `limit`; None leaves them."""
    return None if limit is None else (limit / (norm + 1e-6)).clamp(max=1.0)


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Shrink gradients whose common norm is above `limit` to it, in place; the norm that they had.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> float(clip_gradients([weight], 1.0)), [round(x, 4) for x in weight.grad.tolist()]
    (5.0, [0.6, 0.8])
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = gradient_norm(gradients)
    scale = clip_scale(norm, limit)
    if scale is not None:
        for gradient in gradients:
            gradient.mul_(scale)
    return norm
