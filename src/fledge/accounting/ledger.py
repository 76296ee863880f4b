"""The account of a model: parameters, products, memory and time, from its settings alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from fledge.accounting.activations import FP32, activations
from fledge.accounting.budget import ADAMW_FLOPS, Bound, Time
from fledge.accounting.devices import Device, find_device
from fledge.accounting.flops import Product, list_products
from fledge.accounting.memory import ACTIVATION_BYTES, Memory, optimizer_numbers, training_memory
from fledge.accounting.parameters import Parameters, list_parameters
from fledge.config import ModelConfig
from fledge.errors import FledgeError

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

    @cached_property
    def parameters(self) -> Parameters:
        return list_parameters(self.config, self.vocabulary_size, self.context_length)

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
            device_memory=self.device.memory if self.device else 80e9,
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
    def step_flops(self) -> int:
        """Of one training step: forward and backward of the whole batch."""
        return self.batch * (self.forward_flops + self.backward_flops)

    @property
    def recomputed_flops(self) -> int:
        """Of one window: what recomputation does again, which is each block up to its last product."""
        if not self.recompute or self.config.architecture != "transformer":
            return 0
        return sum(product.flops for product in self.products if product.name not in ("w2", "lm_head"))

    @property
    def optimizer_flops(self) -> int:
        """Of one AdamW update; elementwise, and so small beside the products that no account counts it."""
        return ADAMW_FLOPS * self.parameters.total

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
        return replace(self, batch=max(1, min(self.batch, self.memory.largest_batch(self.device.memory))))

    def time(self, tokens: float, mfu: float = DEFAULT_MFU, device: Device | str | None = None) -> Time:
        """The time to train on so many tokens, using a share `mfu` of the device's peak."""
        if not 0 < mfu <= 1:
            raise FledgeError(f"mfu = {mfu} is not allowed: it is a share of the peak, above 0 and at most 1.")
        return Time(tokens * self.flops_per_token, tokens, self._peak(device), mfu)

    def bound(self, device: Device | str | None = None) -> Bound:
        """Whether products or memory traffic set the floor of a training step.

        Traffic: activations are written and read once; weights are read twice; the optimizer reads and writes
        weights and state and reads gradients.
        """
        found = self._device(device)
        weights = FP32 * self.parameters.total
        state = FP32 * optimizer_numbers(self.optimizer, self.parameters)
        size = ACTIVATION_BYTES[self.precision]
        kept = self.batch * sum(b for _, b in activations(self.config, self.context_length, size, self.flash))
        traffic = 2 * kept + 2 * weights + 4 * weights + 2 * state
        return Bound(self.step_flops / self._peak(device), traffic / found.bandwidth)

    def _device(self, device: Device | str | None) -> Device:
        found = find_device(device) if isinstance(device, str) else device or self.device
        if found is None:
            raise FledgeError("A time needs a device, such as device='h200'.")
        return found

    def _peak(self, device: Device | str | None) -> float:
        found = self._device(device)
        if (peak := found.peak(self.precision)) is None:
            raise FledgeError(
                f"{found.title} has no units for {self.precision}. Its precisions: {', '.join(found.peaks)}."
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
