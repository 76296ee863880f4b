"""The account of a model: parameters, products, memory and time, from its settings alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil

from fledge.accounting.activations import FP32, activations, recomputed
from fledge.accounting.budget import Bound, Time, check_counted, check_number
from fledge.accounting.devices import Device, best_precision, find_device
from fledge.accounting.flops import Product, list_products, product_flops
from fledge.accounting.memory import ACTIVATION_BYTES, Memory, elementwise_flops, optimizer_numbers, training_memory
from fledge.accounting.parameters import Parameters, list_parameters
from fledge.config import ModelConfig, RunConfig
from fledge.config.sizes import OPTIMIZER_SIZES
from fledge.errors import FledgeError, nearest

DEFAULT_MFU = 0.4


@dataclass(frozen=True)
class Account:
    """What a model costs. FLOPs are of one window unless a name says otherwise; memory is of a batch."""

    config: ModelConfig
    vocabulary_size: int
    context_length: int
    batch: int = 1
    precision: str = "bf16"
    optimizer: str = "adamw"
    recompute: bool = False
    flash: bool = True
    device: Device | None = None
    step_batch: int | None = None
    "Windows of a whole step, where it takes several batches; none for one batch a step."
    shards: int = 1
    "Processes that weights, gradients and state are spread over."
    positions: int | None = None
    "Context length that the model was built with, where its windows may be shorter; none for that of its windows."
    average: bool = False
    "Whether training keeps averaged weights too."

    def __post_init__(self) -> None:
        """What can be known to be wrong is refused here, before anything is reckoned or printed."""
        for name in ("vocabulary_size", "context_length", "batch", "shards", "step_batch", "positions"):
            value = getattr(self, name)
            if value is not None or name not in ("step_batch", "positions"):
                check_counted(name, value)
        if not isinstance(self.config, ModelConfig):
            raise FledgeError(
                f"config = {self.config!r} is not allowed: it is a ModelConfig, such as a recipe's model."
            )
        for name, known in (("precision", tuple(ACTIVATION_BYTES)), ("optimizer", tuple(OPTIMIZER_SIZES))):
            if (value := getattr(self, name)) not in known:
                raise FledgeError(f"{name} = {value!r} is not allowed. {nearest(str(value), known)}")
        for name in ("recompute", "flash", "average"):
            if not isinstance(value := getattr(self, name), bool):
                raise FledgeError(f"{name} = {value!r} is not allowed: it is True or False.")
        if not isinstance(self.device, Device | None):
            raise FledgeError(f"device = {self.device!r} is not allowed: it is a device, or the name of one.")

    @cached_property
    def parameters(self) -> Parameters:
        return list_parameters(self.config, self.vocabulary_size, max(self.context_length, self.positions or 1))

    @cached_property
    def products(self) -> list[Product]:
        return list_products(self.config, self.vocabulary_size, self.context_length)

    @cached_property
    def memory(self) -> Memory:
        return training_memory(
            self.config,
            self.vocabulary_size,
            self.context_length,
            batch=self.batch,
            precision=self.precision,
            optimizer=self.optimizer,
            recompute=self.recompute,
            flash=self.flash,
            device_memory=self.device.memory if self.device else None,
            cpu=self.device is not None and self.device.name == "cpu",
            shards=self.shards,
            positions=self.positions,
            average=self.average,
        )

    @property
    def forward_flops(self) -> int:
        """Of one window."""
        return sum(product.flops for product in self.products)

    @property
    def backward_flops(self) -> int:
        """Of one window, without recomputation."""
        return sum(product.backward_flops for product in self.products)

    @property
    def flops_per_token(self) -> float:
        """Of training, forward and backward: the figure that MFU is reckoned with."""
        return (self.forward_flops + self.backward_flops) / self.context_length

    @property
    def windows(self) -> int:
        """Of one optimizer step: its batch, or the batches whose gradients it adds up."""
        return self.step_batch or self.batch

    @property
    def step_flops(self) -> int:
        """Of one optimizer step: forward and backward of all its windows."""
        return self.windows * (self.forward_flops + self.backward_flops)

    @property
    def recomputed_flops(self) -> int:
        """Of one window: what recomputation does again, which is each block up to the last tensor that is kept of it.

        That enters w2; or it comes after w2, where the output of w2 is dropped from, or normed with its residual.
        """
        config = self.config
        if not self.recompute or config.architecture != "transformer":
            return 0
        after_w2 = config.dropout > 0 or (config.norm_place == "post" and config.norm != "none")
        once = ("lm_head",) if after_w2 else ("w2", "lm_head")
        return sum(product.flops for product in self.products if product.name not in once)

    @property
    def optimizer_flops(self) -> int:
        """Of one update: elementwise, and with Muon the products of Newton and Schulz."""
        return elementwise_flops(self.optimizer, self.parameters) + self.optimizer_product_flops

    @property
    def optimizer_product_flops(self) -> int:
        """The matrix products of one update: Muon's; none with other optimizers."""
        return product_flops(self.optimizer, self.parameters)

    @property
    def flops_by_component(self) -> dict[str, int]:
        """Forward FLOPs of one window by component."""
        found: dict[str, int] = {}
        for product in self.products:
            found[product.component] = found.get(product.component, 0) + product.flops
        return found

    def at_context(self, context_length: int) -> Account:
        """The same model at another context length."""
        return replace(self, context_length=context_length)

    def fitted(self) -> Account:
        """The same with as much of the batch as fits the device at once, which is what training takes."""
        if self.device is None:
            return self
        fits = max(1, min(self.batch, self.memory.largest_batch(self.device.memory)))
        return replace(self, batch=fits, step_batch=self.windows)

    @property
    def fits(self) -> bool:
        """Whether the batch fits the memory of the device, where one is named."""
        return self.device is None or self.memory.total <= self.device.memory

    def time(self, tokens: float, mfu: float = DEFAULT_MFU, device: Device | str | None = None) -> Time:
        """The time to train on so many tokens.

        Products take a share `mfu` of the device's peak, those of recomputation and of Muon too; where moving
        what they need through the memory takes longer, that is the time.
        """
        tokens = check_number("tokens", tokens, "a number above 0", above=0)
        mfu = check_number("mfu", mfu, "a share of the peak, above 0 and at most 1", above=0, most=1)
        bound = self.bound(device)
        products = bound.product_seconds / mfu
        steps = tokens / (self.windows * self.context_length)
        return Time(
            steps * max(products, bound.traffic_seconds),
            tokens,
            self._peak(device),
            mfu,
            "compute" if products >= bound.traffic_seconds else "memory",
        )

    def bound(self, device: Device | str | None = None, processes: int = 1) -> Bound:
        """The two floors of a training step, its windows shared by so many processes with a device each.

        Products: the model's, those of recomputation, and the optimizer's. Traffic: activations are written and
        read once; weights are read twice for each batch; the optimizer reads and writes weights and state and
        reads gradients; averaged weights are read beside the others and written.
        """
        check_counted("processes", processes)
        found, windows = self._device(device), self.windows / processes
        work = self.forward_flops + self.backward_flops + self.recomputed_flops
        weights = FP32 * self.parameters.total
        state = FP32 * optimizer_numbers(self.optimizer, self.parameters)
        size = ACTIVATION_BYTES[self.precision]
        saved = recomputed if self.recompute else partial(activations, flash=self.flash)
        kept = windows * sum(count for _, count in saved(self.config, self.context_length, size))
        traffic = 2 * kept + 2 * weights * ceil(windows / self.batch) + 4 * weights + 2 * state
        traffic += 3 * weights * self.average
        products = windows * work + self.optimizer_product_flops
        return Bound(products / self._peak(device), traffic / found.bandwidth)

    def _device(self, device: Device | str | None) -> Device:
        found = find_device(device) if isinstance(device, str) else device or self.device
        if not isinstance(found, Device):
            raise FledgeError("A time estimate needs a device, such as device='h200'.")
        return found

    def _peak(self, device: Device | str | None) -> float:
        found = self._device(device)
        if (peak := found.peak(self.precision)) is None:
            raise FledgeError(
                f"{found.title} does not support {self.precision}. It supports: {', '.join(found.peaks)}."
            )
        return peak


def account(
    config: ModelConfig,
    vocabulary_size: int,
    context_length: int,
    *,
    batch: int = 1,
    precision: str = "bf16",
    optimizer: str = "adamw",
    recompute: bool = False,
    flash: bool = True,
    device: Device | str | None = None,
) -> Account:
    """The account of a configuration; nothing is built, so the largest model is as quick as the smallest.

    >>> xl = ModelConfig(layers=48, width=1600, heads=25, hidden=6400)
    >>> account(xl, 50_257, 1_024).parameters.total
    2127057600
    >>> account(xl, 50_257, 1_024).forward_flops
    4513336524800
    """
    found = find_device(device) if isinstance(device, str) else device
    return Account(config, vocabulary_size, context_length, batch, precision, optimizer, recompute, flash, found)


def account_run(
    run: RunConfig,
    vocabulary_size: int,
    positions: int | None = None,
    *,
    batch: int | None = None,
    context: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    recompute: bool | None = None,
    flash: bool = True,
) -> Account:
    """The account of a run's settings: its own batch, precision and optimizer, unless others are given."""
    found = find_device(device) if device is not None else None
    precision = run.training.precision if precision is None else precision.lower()
    step_batch = batch or run.training.batch_size
    whole = Account(
        run.model,
        vocabulary_size,
        context or run.tokens.context_length,
        batch=batch or min(run.training.micro_batch or step_batch, step_batch),
        precision=best_precision(found) if precision == "auto" else precision,
        optimizer=run.optimizer.name,
        average=run.training.average > 0,
        recompute=run.training.recompute if recompute is None else recompute,
        flash=flash,
        device=found,
        step_batch=step_batch,
        positions=positions,
    )
    return whole if batch else whole.fitted()
