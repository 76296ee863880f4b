"""Parts of a training step on a GPU, recorded once as CUDA graphs and replayed: Python then only says "again".

A small model's step is some hundred short kernels, and Python takes longer to launch them than the GPU to run them. A
recording reads its arguments from tensors of its own, into which each call copies; what it gives lies in tensors that
the next call overwrites. Random numbers follow torch's generator as they do without a recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fledge import devices
from fledge.errors import out_of_memory
from fledge.model.state import State
from fledge.tokens import Batch

WARM_UPS = 2  # calls as they are before the recording: they compile, choose kernels and take what stays taken

Argument = Tensor | Batch | State | float | None
"""What a part is called with. A number is one that changes from call to call: a recording reads it from the device."""


class Recording(NamedTuple):
    graph: Any
    arguments: list[Argument]
    "What the graph reads."
    found: Any
    "What the function gave: tensors that each replay writes anew."


class Replay:
    """Calls functions; from the third step on that calls one with arguments of the same shapes, a recording of it.

    Where one cannot be recorded, all are called as they are from then on, and `complaint` says why. So they are where
    `on` is false, and on a CPU.
    """

    def __init__(self, device: torch.device, on: bool) -> None:
        self.device, self.on = device, on and device.type == "cuda"
        self.complaint = ""
        self._step = 0
        self._seen: dict[Any, tuple[int, int]] = {}
        self._recordings: dict[Any, Recording] = {}
        self._pool: Any = None
        # What comes before a recording is done in its stream too: cuDNN keeps work space for each.
        self._stream: Any = torch.cuda.Stream(device) if self.on else None  # type: ignore[no-untyped-call]

    def forget(self) -> bool:
        """Let go of all recordings and of their memory, since what they read has moved or room is needed; whether there
        were any."""
        there = bool(self._recordings)
        self._seen, self._recordings, self._pool = {}, {}, None
        return there

    def give_up(self, why: str) -> None:
        """Call all functions as they are from now on."""
        self.forget()
        if self.on:
            self.on = False
            self.complaint = f"Training steps are not recorded as CUDA graphs, so small models train slower: {why:.200}"

    def begin_step(self) -> None:
        self._step += 1

    def __call__(self, function: Callable[..., Any], *arguments: Argument) -> Any:
        """What the function gives for these arguments, whose tensors may still lie in the processor's memory."""
        if not self.on:
            return function(*(_each(argument, self._here) for argument in arguments))
        key = (function.__name__, *map(_shapes, arguments))
        if key not in self._recordings:
            early = self._steps_with(key) <= WARM_UPS
            if early or not self._record(key, function, arguments):
                return self._aside(function, arguments)
        recording = self._recordings[key]
        for kept, argument in zip(recording.arguments, arguments, strict=True):
            _fill(kept, argument)
        recording.graph.replay()
        return recording.found

    def _steps_with(self, key: Any) -> int:
        """How many steps have called this, the present one included: the parts of a step are recorded in one step."""
        count, last = self._seen.get(key, (0, 0))
        if last != self._step:
            self._seen[key] = count, last = count + 1, self._step
        return count

    def _aside(self, function: Callable[..., Any], arguments: tuple[Argument, ...]) -> Any:
        """What the function gives, in the recordings' stream; what follows waits for it."""
        here = torch.cuda.current_stream(self.device)
        aside = here if self._stream is None else self._stream
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            found = function(*(_each(argument, self._here) for argument in arguments))
        here.wait_stream(aside)
        return found

    def _record(self, key: Any, function: Callable[..., Any], arguments: tuple[Argument, ...]) -> bool:
        """Record the function, for which nothing is computed; whether that was possible."""
        kept = [_each(argument, self._twin, numbers=True) for argument in arguments]
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        devices.give_back(self.device)  # a recording's memory is its own
        try:
            # Relaxed: the loader's thread takes page-locked memory meanwhile, and cuDNN looks at its events.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="relaxed"):
                found = function(*kept)
        except RuntimeError as error:
            generator = torch.cuda.default_generators[self.device.index or 0]
            generator.graphsafe_set_state(generator.clone_state())  # the old one would believe in the recording
            cause = error.__context__ or error
            if not isinstance(cause, Exception):  # Ctrl-C, which the end of a broken recording hides
                raise cause from None
            why = "there is no room for them." if out_of_memory(cause) else str(cause).partition("\n")[0]
            self.give_up(why)
            return False
        self._recordings[key] = Recording(graph, kept, found)
        return True

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=True)  # from page-locked memory nobody waits for the copy

    def _twin(self, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor, device=self.device)


def _each(argument: Argument, change: Callable[[Tensor], Tensor], numbers: bool = False) -> Argument:
    """The argument with its tensors changed; with `numbers`, those as tensors too."""
    if isinstance(argument, Tensor):
        return change(argument)
    if isinstance(argument, float):
        return change(torch.tensor(argument)) if numbers else argument
    return None if argument is None else argument.each(change)


def _tensors(argument: Argument) -> list[Tensor]:
    found: list[Tensor] = []
    _each(argument, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def _shapes(argument: Argument) -> Any:
    return argument is None, tuple((tensor.shape, tensor.dtype) for tensor in _tensors(argument))


def _fill(kept: Argument, argument: Argument) -> None:
    if isinstance(argument, float):
        assert isinstance(kept, Tensor)
        kept.fill_(argument)
        return
    for target, source in zip(_tensors(kept), _tensors(argument), strict=True):
        target.copy_(source, non_blocking=True)
