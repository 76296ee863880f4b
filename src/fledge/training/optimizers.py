"""SGD, AdamW and Muon: an optimizer applies the functions of `rules.py` to laid-out parameters.

Weights and gradients that share a rule lie end to end in memory, so that an update is a few large operations instead
of a few per parameter. On a GPU the rule is compiled into one kernel, and the clipping factor is folded into it; the
numbers that change from step to step lie on the device, so that an update can be recorded once and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from fledge.config import OptimizerConfig, parse
from fledge.errors import FledgeError
from fledge.training.layout import Layout, Rule, UpdateGroup
from fledge.training.rules import adamw, muon, orthogonalise, quick_type, sgd, shift

Parameters: TypeAlias = nn.Module | Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]]
NUMBERS = 3  # at most, that a rule's update depends on besides tensors
CACHE_BLOCK = 1 << 18  # elements updated at once on a CPU: weights, gradient and state stay in the cache together


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
        self.steps = 0
        self.numbers: dict[Rule, tuple[float, ...]] = {}
        "What each rule's update depends on besides tensors: of the step that was begun."
        devices = {group.weights.device for rule in layout.rules for group in layout.groups(rule)}
        self._on_device = {device: torch.zeros(len(layout.rules), NUMBERS, device=device) for device in devices}
        self.state: dict[tuple[str, Rule], list[Tensor]] = {
            (kind, rule): [torch.zeros_like(group.weights) for group in layout.groups(rule)]
            for rule in layout.rules
            for kind in self.kinds(rule)
        }

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        """The names of the tensors that a rule keeps for each parameter."""
        raise NotImplementedError

    def scalars(self, rule: Rule) -> tuple[float, ...]:
        """The numbers of this step for a rule, at most three of them."""
        raise NotImplementedError

    def update(self, rule: Rule, group: UpdateGroup, state: list[Tensor], scale: Tensor | None) -> None:
        """Move the weights of a group by its gradients, which are multiplied by the scale."""
        raise NotImplementedError

    def step(self, scale: Tensor | None = None) -> None:
        self.begin()
        self.move(scale)

    @torch.no_grad()
    def begin(self) -> None:
        """Count a step, and put its numbers where `move` reads them."""
        self.steps += 1
        self.numbers = {rule: self.scalars(rule) for rule in self.layout.rules}
        padded = [[*numbers, *[0.0] * (NUMBERS - len(numbers))] for numbers in self.numbers.values()]
        for device, numbers in self._on_device.items():
            if device.type == "cuda":
                numbers.copy_(torch.tensor(padded), non_blocking=True)

    @torch.no_grad()
    def move(self, scale: Tensor | None = None) -> None:
        """Move the weights. Nothing here depends on the step but tensors on the device, where that is a GPU."""
        for rule in self.layout.rules:
            for index, group in enumerate(self.layout.groups(rule)):
                state = [self.state[kind, rule][index] for kind in self.kinds(rule)]
                left_out = set(group.left_out())
                kept = [
                    (part, part.clone())
                    for tensor in (group.weights, *state)
                    for part in (group.views(tensor, left_out) if left_out else ())
                ]
                self.update(rule, group, state, scale)
                for part, before in kept:
                    part.copy_(before)

    def zero_grad(self) -> None:
        self.layout.zero()

    def decay(self, rule: Rule) -> float:
        return rule.decay * self.decay_factor

    def apply(
        self, function: Any, rule: Rule, tensors: list[Tensor], *settings: Any, scale: Tensor | None = None
    ) -> None:
        """Run a function over tensors, value by value: on a CPU in blocks that fit the cache, on a GPU as one kernel.

        The second tensor is multiplied by the scale.
        """
        device = tensors[0].device
        if device.type == "cuda":
            numbers = self._on_device[device][self.layout.rules.index(rule)]
            _compiled(function, settings, len(self.numbers[rule]))(scale, numbers, *tensors)
            return
        if scale is not None:
            tensors = [tensors[0], tensors[1].mul_(scale), *tensors[2:]]
        flat = [tensor.reshape(-1) for tensor in tensors]
        for start in range(0, flat[0].numel(), CACHE_BLOCK):
            function(*(tensor[start : start + CACHE_BLOCK] for tensor in flat), self.numbers[rule], *settings)

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


def _compiled(function: Any, settings: tuple[Any, ...], count: int) -> Any:
    """The function with its settings as one kernel, which multiplies its second tensor by a scale on the way."""
    key = (function, settings, count)
    if key not in _kernels:

        def kernel(scale: Tensor | None, scalars: Tensor, weights: Tensor, second: Tensor, *others: Tensor) -> None:
            scaled = second if scale is None else second * scale
            function(weights, scaled, *others, scalars.unbind()[:count], *settings)

        _kernels[key] = torch.compile(kernel, dynamic=True)
    return _kernels[key]


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    name = "adamw"

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        return ("mean", "square")

    def scalars(self, rule: Rule) -> tuple[float, ...]:
        config, rate = self.config, self.config.learning_rate * self.factor
        return (
            1 - rate * self.decay(rule),
            rate / (1 - config.beta1**self.steps),
            math.sqrt(1 - config.beta2**self.steps),
        )

    def update(self, rule: Rule, group: UpdateGroup, state: list[Tensor], scale: Tensor | None) -> None:
        config = self.config
        settings = (config.beta1, config.beta2, config.epsilon, config.cautious_decay)
        self.apply(adamw, rule, [group.weights, group.gradient, *state], *settings, scale=scale)


class SGD(Optimizer):
    """Gradient descent with momentum."""

    name = "sgd"

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        return ("velocity",)

    def scalars(self, rule: Rule) -> tuple[float, ...]:
        rate = self.config.learning_rate * self.factor
        return 1 - rate * self.decay(rule), rate

    def update(self, rule: Rule, group: UpdateGroup, state: list[Tensor], scale: Tensor | None) -> None:
        settings = (self.config.momentum, self.config.nesterov, self.config.cautious_decay)
        self.apply(sgd, rule, [group.weights, group.gradient, *state], *settings, scale=scale)


class Muon(AdamW):
    """Momentum made orthogonal for the matrices inside the model, AdamW for embeddings, head, norms and biases."""

    name = "muon"

    def kinds(self, rule: Rule) -> tuple[str, ...]:
        return ("momentum",) if rule.method == "matrix" else super().kinds(rule)

    def scalars(self, rule: Rule) -> tuple[float, ...]:
        if rule.method != "matrix":
            return super().scalars(rule)
        rate = self.config.matrix_learning_rate * self.factor
        return 1 - rate * self.decay(rule), rate

    def update(self, rule: Rule, group: UpdateGroup, state: list[Tensor], scale: Tensor | None) -> None:
        if rule.method != "matrix":
            super().update(rule, group, state, scale)
            return
        config, weights = self.config, group.weights
        on_gpu = weights.device.type == "cuda"
        update = torch.empty_like(weights, dtype=quick_type(weights.device) if on_gpu else None)
        settings = (config.momentum, config.nesterov, config.cautious_decay)
        self.apply(muon, rule, [weights, group.gradient, *state, update], *settings, scale=scale)
        with Branches(weights.device) as branches:
            for stack in group.stacks(update):
                with branches.another():
                    rows, columns = stack.matrices.shape[-2:]
                    flat = stack.matrices.reshape(-1, rows, columns)
                    # One matrix at a time on a CPU: batched products gain nothing there.
                    turned = orthogonalise(flat) if on_gpu else torch.stack([orthogonalise(matrix) for matrix in flat])
                    change = stack.share(turned.view(stack.matrices.shape))
                    stretch = math.sqrt(max(1, rows / columns))
                    self.apply(shift, rule, [stack.weights, change], stretch, config.cautious_decay)


class Branches:
    """Work on a GPU that needs nothing of each other, side by side: small products leave much of it free."""

    streams: ClassVar[dict[torch.device, list[Any]]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device, self.on, self.count = device, device.type == "cuda", 0

    def __enter__(self) -> Branches:
        if self.on:
            self.here = torch.cuda.current_stream(self.device)
        return self

    def another(self) -> AbstractContextManager[Any]:
        """The next one's place."""
        if not self.on:
            return nullcontext()
        streams = self.streams.setdefault(self.device, [])
        if self.count == len(streams):
            streams.append(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        self.count += 1
        streams[self.count - 1].wait_stream(self.here)
        return torch.cuda.stream(streams[self.count - 1])

    def __exit__(self, *_: Any) -> None:
        for stream in self.streams.get(self.device, [])[: self.count]:
            self.here.wait_stream(stream)


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
