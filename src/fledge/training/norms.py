"""Norms of the weights and activations of each part of a model, for the metrics: `training.norms` asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from fledge.model.plan import PADDING

if TYPE_CHECKING:
    from fledge.tokens import Windows
    from fledge.training.stepper import Stepper

WEIGHTS, ACTIVATIONS = "weight_norm", "activation_norm"


def part_of(parameter: str) -> str:
    """The part of a model that a parameter belongs to: one layer of several, or what lies beside them.

    >>> part_of("layers.3.attn.qkv.weight"), part_of("ln_final.weight")
    ('layers.3', 'ln_final')
    """
    words = parameter.split(".")
    number = next((place for place, word in enumerate(words) if word.isdecimal()), 0)
    return ".".join(words[: number + 1])


class Norms:
    """Measures the parts of a model in training: its weights as they are, its activations on the first window.

    The window is the same each time and is read in eval mode by the uncompiled model, so training does not notice.
    """

    def __init__(self, stepper: Stepper, windows: Windows) -> None:
        self.stepper, self.windows = stepper, windows
        model = stepper.model
        self.parts = list(dict.fromkeys(part_of(name) for name, _ in model.named_parameters()))
        modules = dict(model.named_modules())
        # The head is fused with the loss; what it reads is measured in its place.
        head = getattr(model, "lm_head", None)
        self.watched = {name: modules[name] for name in self.parts if modules.get(name) not in (None, head)}

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the numbers, known before the first is measured."""
        return (
            *(f"{WEIGHTS}.{name}" for name in self.parts),
            *(f"{ACTIVATIONS}.{name}" for name in (*self.watched, "hidden")),
        )

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Of a part's weights the norm of all together; of its output the mean norm of a token's vector.

        Sharded, every process takes part.
        """
        found = {f"{WEIGHTS}.{name}": norm for name, norm in zip(self.parts, self._weights(), strict=True)}
        found |= {f"{ACTIVATIONS}.{name}": norm for name, norm in self._activations().items()}
        return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))  # one look at the device

    def _weights(self) -> Tensor:
        squares = dict.fromkeys(self.parts, torch.zeros((), device=self.stepper.device))
        for name, parameter in self.stepper.model.named_parameters():
            local: Tensor = getattr(parameter, "to_local", lambda parameter=parameter: parameter)()
            squares[part_of(name)] = squares[part_of(name)] + vector_norm(local, dtype=torch.float32).square()
        total = torch.stack(list(squares.values()))
        if self.stepper.sharded:
            self.stepper.ranks.reduce([total])
        return total.sqrt()

    def _activations(self) -> dict[str, Tensor]:
        stepper = self.stepper
        batch = self.windows.batch(range(1)).to(stepper.device)
        real_BT = None if batch.documents_BT is None else batch.documents_BT != PADDING
        found: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                while isinstance(output, tuple) and output:
                    output = output[0]  # of a recurrent network, before its state; of packed rows, their data
                if isinstance(output, Tensor) and output.is_floating_point() and output.ndim:
                    found[name] = mean_norm(output, real_BT)

            return hook

        hooks = [module.register_forward_hook(keep(name)) for name, module in self.watched.items()]
        stepper.plain.eval()
        try:
            with stepper.precision.autocast(stepper.device), stepper.unsharded():
                hidden_BTD, _ = stepper.model.hidden(batch.inputs_BT, stepper.model.plan(batch))
        finally:
            stepper.plain.train()
            for hook in hooks:
                hook.remove()
        return {**found, "hidden": mean_norm(hidden_BTD, real_BT)}


def mean_norm(vectors: Tensor, real: Tensor | None) -> Tensor:
    """The mean norm of the vectors of real tokens."""
    norms: Tensor = vector_norm(vectors, dim=-1, dtype=torch.float32)
    return (norms if real is None or real.shape != norms.shape else norms[real]).mean()
