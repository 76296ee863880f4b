"""Cross-entropy, plain and fused with the head: the sum over unmasked targets, and how many there are.

The fused form goes through the tokens in chunks and takes the gradients on the way, while a chunk's logits are at
hand: the logits of the whole batch never exist, in any precision, and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fledge import devices
from fledge.config.sizes import CHUNK, CPU_CHUNK, KERNEL_CHUNK, KERNEL_SHARE
from fledge.model import Model
from fledge.model.base import has_kernels
from fledge.tokens.batch import MASKED

_SUMS_WIDE = "dtype_out" in torch.ops.aten.addmm.overloads()  # type: ignore[no-untyped-call]


def cross_entropy(
    logits_BTV: Tensor, targets_BT: Tensor, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The summed loss of the unmasked targets, in nats, and their count. Masked targets are −100.

    >>> loss, count = cross_entropy(torch.zeros(1, 3, 8), torch.tensor([[5, 1, -100]]))
    >>> int(count), round(float(loss / count), 4)  # the logarithm of 8
    (2, 2.0794)
    """
    logits = _wide(logits_BTV).flatten(0, -2)
    targets = targets_BT.flatten()
    loss = functional.cross_entropy(
        logits, targets, ignore_index=MASKED, reduction="sum", label_smoothing=label_smoothing
    )
    kept = targets != MASKED
    if z_loss:
        loss = loss + z_loss * (torch.logsumexp(logits, -1).square() * kept).sum()
    return loss, kept.sum()


def head_loss(
    model: Model, hidden_BTD: Tensor, targets_BT: Tensor, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`cross_entropy(model.head(hidden), targets)` without the logits in memory."""
    if type(model).head is not Model.head:  # a head of its own: not one matrix
        return cross_entropy(model.head(hidden_BTD), targets_BT, label_smoothing, z_loss)
    weight = model.head_weight
    if hasattr(weight, "full_tensor"):  # sharded over devices: the product needs all of it
        weight = weight.full_tensor()
    grad = torch.is_grad_enabled() and (hidden_BTD.requires_grad or weight.requires_grad)
    hidden, targets = hidden_BTD.flatten(0, -2), targets_BT.flatten()
    loss = _head_cross_entropy(hidden, weight, targets, model.vocabulary_size, label_smoothing, z_loss, grad)[0]
    return loss, (targets != MASKED).sum()


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@torch.library.custom_op("fledge::head_cross_entropy", mutates_args=())
def _head_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocabulary: int, smoothing: float, z_loss: float, grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss and its gradients. `weight` may have padding rows: their probability and gradient are zero."""
    loss = torch.zeros((), dtype=_wide(hidden[:0]).dtype, device=hidden.device)
    hidden_grad = torch.empty_like(hidden if grad else hidden[:0])
    weight_grad = torch.zeros_like(weight if grad else weight[:0])
    narrow = weight.to(hidden.dtype)
    if hidden.device.type == "cpu":
        narrow = narrow[:vocabulary]  # the padding is for matrix units
    rows = narrow.shape[0]
    run, chunk = _way(hidden)
    chunks = max(1, -(-hidden.shape[0] * rows // chunk))
    step = max(128, -(-hidden.shape[0] // chunks // 128) * 128)  # whole tiles
    with torch.autocast(hidden.device.type, enabled=False), torch.no_grad():
        for start in range(0, hidden.shape[0], step):
            here = slice(start, start + step)
            some = hidden[here]
            part, slope = run(some @ narrow.T, targets[here], vocabulary, smoothing, z_loss, grad)
            slope = slope.to(some.dtype)
            loss += part
            if grad:
                torch.mm(slope, narrow, out=hidden_grad[here])
                _add_product(weight_grad[:rows], slope.T, some)
            del slope  # or it would be held while the next chunk is made
    return loss, hidden_grad, weight_grad


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, where the total may be wider than the factors."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.device.type == "cuda" and _SUMS_WIDE:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)  # summed in the product itself
    else:
        total += a @ b


@_head_cross_entropy.register_fake
def _(hidden: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    loss = hidden.new_empty((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
    hidden_grad, weight_grad = (torch.empty_like(each if others[-1] else each[:0]) for each in (hidden, weight))
    return loss, hidden_grad, weight_grad


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[1], output[2])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    hidden_grad, weight_grad = ctx.saved_tensors
    return hidden_grad * grad.to(hidden_grad.dtype), weight_grad * grad.to(weight_grad.dtype), *[None] * 5


_head_cross_entropy.register_autograd(_backward, setup_context=_keep)


def _chunk(
    logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, z_loss: float, grad: bool
) -> tuple[Tensor, Tensor]:
    """A chunk's loss and its slope in the logits, as the formulas stand: for any device."""
    column = torch.arange(logits.shape[1], device=logits.device)
    real = column < vocabulary
    wide = torch.where(real, _wide(logits), -torch.inf)
    kept = targets != MASKED
    normaliser = torch.logsumexp(wide, dim=-1)
    chosen = column == targets[:, None]
    picked = torch.where(chosen, _wide(logits), 0).sum(-1)
    mean = torch.where(real, _wide(logits), 0).sum(-1) / vocabulary if smoothing else 0.0
    loss = normaliser - (1 - smoothing) * picked - smoothing * mean + z_loss * normaliser.square()
    loss = torch.where(kept, loss, 0).sum()
    if not grad:
        return loss, loss
    slope = torch.exp(wide - normaliser[:, None]) * (1 + 2 * z_loss * normaliser[:, None])
    slope = torch.where(chosen, slope - (1 - smoothing), slope)
    if smoothing:
        slope = torch.where(real, slope - smoothing / vocabulary, slope)
    return loss, torch.where(kept[:, None], slope, 0).to(logits.dtype)


def _chunk_on_cpu(
    logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, z_loss: float, grad: bool
) -> tuple[Tensor, Tensor]:
    """The same in one pass over memory, in place, by the native core. Its chunks have no padding."""
    from fledge._core import softmax_slope

    wide = logits.dtype == torch.float32
    loss = softmax_slope(
        logits.data_ptr(), wide, targets.numpy(), vocabulary, smoothing, z_loss, grad, torch.get_num_threads()
    )
    return torch.tensor(loss, dtype=torch.float32), logits


def _chunk_by_kernel(
    logits: Tensor, targets: Tensor, vocabulary: int, smoothing: float, z_loss: float, grad: bool
) -> tuple[Tensor, Tensor]:
    """The same in one pass over memory, in place, on a GPU."""
    from fledge.model.kernels import softmax_slope

    return softmax_slope(logits, targets, vocabulary, smoothing, z_loss, grad, MASKED)


def _way(hidden: Tensor) -> tuple[Callable[..., tuple[Tensor, Tensor]], int]:
    """How a chunk is done on this device, and how many logits it has: a cache full, or a small share of a GPU."""
    if hidden.device.type == "cpu" and hidden.dtype in (torch.float32, torch.bfloat16):
        return _chunk_on_cpu, CPU_CHUNK
    if has_kernels(hidden):
        memory = devices.total_memory(hidden.device) or 0
        return _chunk_by_kernel, min(KERNEL_CHUNK, memory // KERNEL_SHARE)
    return _chunk, CHUNK
