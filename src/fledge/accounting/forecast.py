"""What the account expects of a run before it starts, and how far off it was when it has ended."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.accounting.bars import readable_flops
from fledge.accounting.devices import peak_flops
from fledge.accounting.ledger import DEFAULT_MFU, Account
from fledge.files import readable_bytes


@dataclass(frozen=True)
class Forecast:
    """A step's FLOPs, the peak of the memory, and the speed, where the device's peak is known."""

    step_flops: float
    memory: float
    tokens_per_second: float | None
    mfu: float

    def sentence(self) -> str:
        """For before the first step."""
        speed = ""
        if self.tokens_per_second is not None:
            speed = f", {self.tokens_per_second:,.0f} tokens/s at {self.mfu:.0%} of the device's peak"
        memory = readable_bytes(self.memory)
        return f"Expected: {readable_flops(self.step_flops)} a step, {memory} of memory{speed}."

    def held_against(self, memory: float, tokens_per_second: float | None = None) -> str:
        """For after the last step, beside what was measured."""
        text = f"Memory was {readable_bytes(memory)}, {_off(memory, self.memory)} expected"
        if tokens_per_second is not None and self.tokens_per_second is not None:
            share = self.mfu * tokens_per_second / self.tokens_per_second
            off = _off(tokens_per_second, self.tokens_per_second)
            text += f"; speed was {tokens_per_second:,.0f} tokens/s, {off} expected"
            text += f": {share:.0%} of the device's peak"
        return text + "."


def forecast(account: Account, device_name: str, batch_size: int, mfu: float = DEFAULT_MFU) -> Forecast:
    """Of steps of `batch_size` windows, of which `account.batch` are on the device at once.

    >>> from fledge.accounting import SHAPES, account
    >>> found = forecast(account(SHAPES["small"].model, 50_257, 1_024, batch=32), "NVIDIA H200", 512)
    >>> round(found.tokens_per_second), round(found.step_flops / 1e12)
    (386407, 537)
    """
    peak = peak_flops(device_name, account.precision)
    speed = peak * mfu / account.flops_per_token if peak else None
    return Forecast(batch_size * account.step_flops / account.batch, account.memory.total, speed, mfu)


def _off(measured: float, expected: float) -> str:
    """
    >>> _off(11, 10), _off(9, 10)
    ('10% more than', '10% less than')
    """
    change = measured / expected - 1
    return f"{abs(change):.0%} {'more' if change > 0 else 'less'} than"
