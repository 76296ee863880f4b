"""What an optimizer does to weights, as short functions of plain tensors.

`scalars` are the numbers that change from step to step: floats, or tensors on the device, which a recorded step reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fledge.config.sizes import NEWTON_SCHULZ


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


def muon(
    weights: Tensor,
    gradient: Tensor,
    momentum: Tensor,
    update: Tensor,
    scalars: Any,
    inertia: float,
    nesterov: bool,
    cautious: bool,
) -> None:
    """What Muon does before it looks at whole matrices: `update` becomes the matrices to make orthogonal."""
    keep = scalars[0]
    momentum.lerp_(gradient, 1 - inertia)
    update.copy_(gradient.lerp(momentum, inertia) if nesterov else momentum)
    if not cautious:
        weights.mul_(keep)


def shift(weights: Tensor, update: Tensor, scalars: Any, stretch: float, cautious: bool) -> None:
    """What Muon does with a matrix that was made orthogonal. `scalars` are (decay factor, learning rate)."""
    keep, rate = scalars[0], scalars[1]
    if cautious:
        weights.mul_(torch.where(update * weights > 0, keep, 1.0))
    if isinstance(rate, Tensor):
        weights.sub_(rate * stretch * update)
    else:
        weights.add_(update, alpha=-rate * stretch)


def quick_type(device: torch.device) -> torch.dtype:
    """The type in which matrix products are fastest where 8 bits of precision do: bfloat16 where the device has a unit
    for it. A CPU without one takes 1.4 to 50 times as long with it as with float32."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    has_unit = device.type != "cpu" or any(getattr(torch.cpu, check, bool)() for check in checks)
    return torch.bfloat16 if has_unit else torch.float32


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearly U·Vᵀ of each matrix U·S·Vᵀ in a batch: Newton–Schulz steps in `quick_type` push every S towards 1."""
    x = matrices.to(quick_type(matrices.device))
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT.contiguous()  # or each product would begin by turning it
    norms = x.flatten(1).norm(dim=1) if x.ndim == 3 else x.norm()
    x = x / norms.clamp(min=1e-7).reshape(-1, *([1] * (x.ndim - 1)) if x.ndim == 3 else ())
    multiply_add = torch.baddbmm if x.ndim == 3 else torch.addmm
    for a, b, c in NEWTON_SCHULZ:
        gram = x @ x.mT
        polynomial = multiply_add(gram, gram, gram, beta=b, alpha=c)
        x = multiply_add(x, polynomial, x, beta=a)
    return x.mT if tall else x
