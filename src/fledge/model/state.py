"""What a model remembers between calls: a KV cache, an LSTM's hidden state and BDH's synapses are one thing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fledge.errors import FledgeError

WHOLE = (torch.int32, torch.int64)


class State:
    """What a model remembers of the tokens it has seen, one row per sequence.

    A state is spent by `model.hidden(…, state=state)`: go on with the one it returns, and `clone` first to keep both.
    `tensors` have the rows first, so that selecting rows, copying and saving are the same for every architecture.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        lengths: Tensor,
        capacity: int | None,
        longest: int = 0,
        even: bool = True,
        kind: str | None = None,
    ) -> None:
        self.tensors = tensors
        self.lengths = lengths
        self.capacity = capacity
        # No row of a window is longer. Known, like `even`, without asking a GPU, so that decoding never waits; there,
        # after padding, it may be too large until `measure`.
        self.longest = longest
        self.even = even
        self.kind = kind  # the `state_kind` of the model it was made for

    @property
    def batch_size(self) -> int:
        return int(self.lengths.shape[0])

    def _with(self, tensors: dict[str, Tensor], lengths: Tensor) -> State:
        return State(tensors, lengths, self.capacity, self.longest, self.even, self.kind)

    def select(self, rows: Tensor | Sequence[int]) -> State:
        """The state of these rows, in this order; a row may be named more than once. A mask takes the rows it marks."""
        advice = f"name them by number, such as [0, 0, 2], or mark each of the {self.batch_size} with true or false."
        try:
            rows = torch.as_tensor(rows, device=self.lengths.device)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise FledgeError(f"Rows = {rows!r:.40} are not allowed: {advice}") from None
        if rows.dtype == torch.bool and rows.shape == self.lengths.shape:
            rows = rows.nonzero()[:, 0]
        if rows.ndim != 1 or (rows.dtype not in WHOLE and rows.numel()):
            raise FledgeError(f"Rows of shape {list(rows.shape)} and type {rows.dtype} are not allowed: {advice}")
        rows = rows.long()
        if rows.device.type == "cpu" and rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < self.batch_size:
            raise FledgeError(f"rows = {rows.tolist()} is not allowed: the state has rows 0 to {self.batch_size - 1}.")
        chosen = self._with({name: tensor[rows] for name, tensor in self.tensors.items()}, self.lengths[rows])
        if not self.even and self.lengths.device.type == "cpu":
            chosen.measure()
        return chosen

    def clone(self) -> State:
        """A copy that shares nothing."""
        return self.each(Tensor.clone)

    def each(self, change: Callable[[Tensor], Tensor]) -> State:
        """This state with each of its tensors changed, the lengths among them, in ways that keep the rows."""
        return self._with({name: change(tensor) for name, tensor in self.tensors.items()}, change(self.lengths))

    def detach(self) -> State:
        """The same values, cut off from the graph: what is carried from one training window to the next."""
        return self.each(Tensor.detach)

    def load(self, tensors: dict[str, Tensor], lengths: Tensor) -> State:
        """This state with saved `tensors` and `lengths` in place of its own."""
        if tensors.keys() != self.tensors.keys() or any(tensors[n].shape != t.shape for n, t in self.tensors.items()):
            raise FledgeError("The saved state is of another model or another batch size; start from an empty one.")
        like = self.lengths
        if lengths.shape != like.shape or lengths.dtype not in WHOLE or bool((lengths < 0).any()):
            raise FledgeError(
                f"The saved lengths {lengths.tolist()} are not those of a state of {self.batch_size} rows; start from "
                "an empty one."
            )
        loaded = {name: tensors[name].to(tensor) for name, tensor in self.tensors.items()}
        found = self._with(loaded, lengths.to(like))
        found.measure()
        return found

    def advance(self, steps: int, lengths: Tensor | None = None) -> None:
        """Count `steps` more tokens in every row, or `lengths` of them row by row."""
        self.lengths = self.lengths + (steps if lengths is None else lengths)
        self.longest += steps
        if lengths is not None:
            self.even = False
            if self.lengths.device.type == "cpu":
                self.measure()

    def measure(self) -> None:
        """Look at the lengths themselves, which waits for a GPU."""
        self.longest = int(self.lengths.max()) if len(self.lengths) else 0
        self.even = bool((self.lengths == self.longest).all())
