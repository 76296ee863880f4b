"""The decode loop: prompts in, texts out, one token per row and step.

Rows may have prompts of any length. A row that has ended is dropped from the batch once half of the rows have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from fledge import devices
from fledge.bundle.fit import NOT_FINITE, require_fit
from fledge.config import SamplingConfig
from fledge.errors import FledgeError, note
from fledge.generation.burst import LONG, Bursts, Written
from fledge.generation.prepare import is_prepared, prepare
from fledge.generation.results import Alternative, Generation, Piece, TextStream, as_text
from fledge.generation.sampling import choose, row_by_row, uniforms
from fledge.generation.step import NativeStep
from fledge.model.state import State

if TYPE_CHECKING:
    from fledge.model import Model
    from fledge.model.transformer import Transformer
    from fledge.tokenizer import Tokenizer

NUMBERS = 256  # steps whose random numbers are drawn at once: a limit that is never reached costs nothing
ON_DEVICE = 1 << 20  # random numbers that lie ready on a GPU at once
ROOM = 1 << 30  # bytes for the states and scores of texts that are written together; on a GPU, a quarter of the free
BURST = 16  # tokens between two looks at what a GPU has written

Prompt = str | bytes | Sequence[int]


def generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    sampling: SamplingConfig | None = None,
    stream: Callable[[Piece], None] | None = None,
    *,
    alternatives: int = 0,
) -> list[Generation]:
    """Go on from each prompt: `sampling.samples` texts per prompt, those of the first prompt first.

    `stream` is called with every piece of text as soon as it is certain: whole characters, and never a part of a stop
    text. Prompts are plain text, or its bytes, which need not be UTF-8: the text of a special token in one does not
    become that token. Or they are ids, which the model meets as they are. A model that is not in training mode is made
    ready for it once, as `prepare` says.
    """
    decoding = Decoding(model, tokenizer, prompts, sampling or SamplingConfig(), alternatives)
    for piece in decoding.pieces():
        if stream is not None:
            stream(piece)
    return decoding.results


class Decoding:
    """One call of `generate` while it runs; `pieces` drives it, and the first `finished` of `results` are whole."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        alternatives: int = 0,
    ) -> None:
        if isinstance(prompts, str | bytes):
            raise FledgeError("The prompts are a single text. Give a list of texts, such as ['Once upon a time'].")
        if type(alternatives) is not int or alternatives < 0:
            raise FledgeError(f"alternatives = {alternatives!r:.40} is not allowed: it is a whole number, 0 or more.")
        require_fit(tokenizer.vocab_size, model.vocabulary_size)
        self.model, self.tokenizer, self.sampling, self.alternatives = (
            model,
            tokenizer,
            sampling,
            alternatives,
        )
        self.stop_ids, self.stop_texts = stops_of(tokenizer, sampling)
        self.histories = [list(ids) for ids in map(self.prompt_ids, prompts) for _ in range(sampling.samples)]
        self.results = [Generation(self.text_of(prompt)) for prompt in prompts for _ in range(sampling.samples)]
        self.streams = [TextStream(tokenizer, self.stop_texts) for _ in self.results]
        self.device = next(model.parameters()).device
        holes = holes_of(tokenizer)
        self.holes = torch.tensor(holes, device=self.device) if holes else None
        self.finished = 0
        self.said: set[str] = set()
        if not model.decodes:
            self._say(
                f"model.architecture = {model.config.architecture} has no init_state: the whole context is read again "
                "for every token, which is slow."
            )

    @cached_property
    def stepper(self) -> NativeStep | None:
        """Made with the first step, since it may hold weights of its own: a decoding that waits has none."""
        return NativeStep.make(self.model)

    def text_of(self, prompt: Prompt) -> str:
        return as_text(prompt) if isinstance(prompt, str | bytes) else self.tokenizer.decode(list(prompt))

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """A prompt as the model meets it: text after the start token where the tokenizer has one of its own."""
        if not isinstance(prompt, str | bytes):
            check_ids(prompt, self.tokenizer)
            if len(prompt):
                return list(prompt)
            prompt = ""
        roles = self.tokenizer.roles
        if isinstance(prompt, str):
            try:
                prompt.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise FledgeError(
                    f"The prompt contains U+{ord(prompt[error.start]):04X}, half of a surrogate pair. Leave "
                    "it out, or write the whole character."
                ) from None
        ids: list[int] = self.tokenizer.encode(prompt, special="text")
        start = roles.own_start
        if start is None and not ids:
            start = roles.separator
            if start is None:
                raise FledgeError(
                    "The prompt is empty, and this tokenizer has no token that begins a text. Give a prompt."
                )
        return ids if start is None else [start, *ids]

    @torch.inference_mode()
    def pieces(self) -> Iterator[Piece]:
        """Decode until every row has ended, giving out text as it becomes certain."""
        was_training = self.model.training
        if not was_training:
            prepare(self.model)
        self.model.eval()
        try:
            for rows, share in self._groups():
                yield from self._decode(rows, share)
                self.finished = rows[-1] + 1
        finally:
            self.model.train(was_training)

    def _groups(self) -> Iterator[tuple[list[int], int]]:
        """Rows to write together, as many as memory holds with ease, and how many neighbours among them have the same
        prompt."""
        count, samples = len(self.results), self.sampling.samples
        most = self._most_rows() if count > 1 else 1
        if samples <= most:
            size = most // samples * samples
            yield from ((list(range(first, min(first + size, count))), samples) for first in range(0, count, size))
            return
        for prompt in range(0, count, samples):
            for first in range(prompt, prompt + samples, most):
                rows = list(range(first, min(first + most, prompt + samples)))
                yield rows, len(rows)

    def _most_rows(self) -> int:
        capacity = min(max(map(len, self.histories)) + self.sampling.max_tokens, self.model.context_length)
        if not self.model.decodes:
            one = 4 * capacity * (64 * self.model.config.width + self.model.vocabulary_size)
            return max(1, ROOM // one)
        state = self.model.init_state(1, device="meta", capacity=capacity)
        one = sum(tensor.nbytes for tensor in state.tensors.values()) + 64 * self.model.vocabulary_size
        free = devices.free_memory(self.device)
        room = ROOM if free is None else free // 4
        return max(1, room // one)

    def _decode(self, rows: list[int], share: int) -> Iterator[Piece]:
        state, logits = self._read(rows, share)
        if is_prepared(self.model) and Bursts.fit(self.model, state, self.sampling):
            yield from self._decode_in_bursts(rows, state, logits)
        else:
            yield from self._decode_singly(rows, state, logits)
        for row in rows:
            result, stream = self.results[row], self.streams[row]
            if result.stopped == "length":
                if text := stream.finish():
                    yield Piece(row, text)
                if stream.stopped:
                    result.stopped = "stop"
            result.text = stream.text

    def _numbers(self, rows: list[int], start: int, count: int) -> Tensor:
        """What the rows' tokens are drawn by, from the step `start` on."""
        numbers = uniforms(self.sampling.seed, self.sampling.samples, start, count)
        if self.device.type == "mps":  # which has no 64-bit numbers
            numbers = numbers.float().clamp(max=1 - 2**-24)
        numbers = numbers.to(self.device)
        return numbers[[row % self.sampling.samples for row in rows]]

    def _decode_in_bursts(self, rows: list[int], state: State, logits: Tensor) -> Iterator[Piece]:
        """On a GPU: some tokens of every row at once, before their ends are looked for."""
        sampling = self.sampling
        wanted = min(self.alternatives, len(self.tokenizer.vocab))
        ahead = max(LONG, ON_DEVICE // (len(rows) * (1 + wanted)))
        numbers = self._numbers(rows, 0, min(ahead, sampling.max_tokens))
        usable = self._usable(logits)
        chosen = choose(usable, sampling, numbers[:, 0])
        self._note(rows, usable, chosen)
        yield from self._take_all(rows, chosen.tolist())
        if sampling.max_tokens == 1 or all(self.results[row].stopped != "length" for row in rows):
            return
        try:
            size, transformer = self.tokenizer.vocab_size, cast("Transformer", self.model)
            bursts = Bursts(transformer, state, sampling, numbers, size, self.holes, wanted)
            bursts.start(chosen, 1)
        except Exception as error:  # of the driver, of a compiler, of memory: the same text comes without it
            reason = "".join(str(error).splitlines()[:1]) or type(error).__name__
            self._say(f"Fast decoding failed, and the text is written more slowly: {reason:.200}")
            yield from self._decode_singly(rows, *self._step(rows, chosen, state), 1)
            return
        asked = 1
        coming: Written | None = None
        while running := [row for row in rows if self.results[row].stopped == "length"]:
            self._say_outgrown([row for row in running if len(self.histories[row]) > self.model.context_length])
            written, coming = coming, None
            if asked < sampling.max_tokens:  # before the last ones are read: the GPU goes on while the text is made
                if not bursts.left:
                    bursts.refill(self._numbers(rows, asked, min(ahead, sampling.max_tokens - asked)))
                length = min(BURST, bursts.left)
                coming = bursts.burst(length)
                asked += length
            elif written is None:
                return
            if written is not None:
                for tokens, *scores in written.columns():
                    self._keep(rows, *scores)
                    yield from self._take_all(rows, tokens)

    def _take_all(self, rows: list[int], tokens: list[int]) -> Iterator[Piece]:
        for row, token in zip(rows, tokens, strict=True):
            text, _ = self._take(row, token)
            if text:
                yield Piece(row, text)

    def _decode_singly(self, rows: list[int], state: State, logits: Tensor, first: int = 0) -> Iterator[Piece]:
        sampling = self.sampling
        seen = self._seen() if sampling.repetition_penalty != 1 else None
        numbers = torch.empty(0)
        for step in range(first, sampling.max_tokens):
            place = (step - first) % NUMBERS
            if place == 0:
                numbers = self._numbers(rows, step, min(NUMBERS, sampling.max_tokens - step))
            usable = self._usable(logits)
            chosen = choose(usable, sampling, numbers[:, place], None if seen is None else seen[rows])
            if seen is not None:
                seen[rows, chosen] = True
            tokens = chosen.tolist()
            self._note(rows, usable, chosen)
            running = []
            for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
                text, ended = self._take(row, token)
                if text:
                    yield Piece(row, text)
                if not ended:
                    running.append(place)
            if not running or step == sampling.max_tokens - 1:
                break
            if len(running) <= len(rows) // 2:
                rows = [rows[place] for place in running]
                chosen, numbers, state = chosen[running], numbers[running], state.select(running)
            state, logits = self._step(rows, chosen, state)

    def _read(self, rows: list[int], share: int = 1) -> tuple[State, Tensor]:
        """A state that has read the rows' tokens so far, and the scores of their next ones.

        `share` neighbouring rows have the same tokens, which are read once.
        """
        histories = [self.histories[row] for row in rows[::share]]
        limit = self.model.context_length
        if not self.model.decodes:
            return self._read_whole(rows)
        capacity = max(map(len, histories)) + self.sampling.max_tokens
        state = self.model.init_state(len(histories), device=self.device, capacity=min(capacity, limit))
        if state.capacity is not None:
            if any(len(ids) > limit for ids in histories):
                self._say(f"The prompt is longer than the model's context: it goes on from its last {limit:,} tokens.")
            histories = [ids[-limit:] for ids in histories]
        lengths = torch.tensor([len(ids) for ids in histories], device=self.device)
        padded = torch.zeros(len(histories), int(lengths.max()), dtype=torch.long)
        for place, ids in enumerate(histories):
            padded[place, : len(ids)] = torch.tensor(ids)
        self.model.check_ids(padded)
        padded = padded.to(self.device)
        even = bool((lengths == lengths[0]).all())
        last = torch.empty(0)
        for start in range(0, padded.shape[1], limit):
            piece = padded[:, start : start + limit]
            real = (lengths - start).clamp(0, piece.shape[1])
            hidden, after = self.model.hidden(piece, state=state, lengths=None if even else real)
            assert after is not None
            state = after
            found = hidden[torch.arange(len(histories), device=self.device), (real - 1).clamp(min=0)]
            last = found if start == 0 else torch.where((real > 0)[:, None], found, last)
        logits = self.model.head(last)
        if share > 1:
            copies = torch.arange(len(rows), device=self.device) // share
            state, logits = state.select(copies), logits[copies]
        return state, logits

    def _read_whole(self, rows: list[int]) -> tuple[State, Tensor]:
        """The next scores from the last tokens that fit the context, without a memory; padding lies on the right,
        where no token looks."""
        limit = self.model.context_length
        histories = [self.histories[row][-limit:] for row in rows]
        lengths = torch.tensor([len(ids) for ids in histories], device=self.device)
        padded = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in histories], batch_first=True)
        self.model.check_ids(padded)
        hidden, _ = self.model.hidden(padded.to(self.device))
        last = hidden[torch.arange(len(rows), device=self.device), lengths - 1]
        return State({}, lengths, limit, int(lengths.max()), even=False), self.model.head(last)

    def _step(self, rows: list[int], chosen: Tensor, state: State) -> tuple[State, Tensor]:
        """The scores after one more token a row; a text that outgrows a context with fixed places starts again from
        the last half of it."""
        limit = self.model.context_length
        if not self.model.decodes:
            self._say_outgrown([row for row in rows if len(self.histories[row]) > limit])
            return self._read_whole(rows)
        if state.capacity is not None and state.longest >= limit:
            running = [row for row in rows if self.results[row].stopped == "length"]
            full = [row for row in running if len(self.histories[row]) > limit]
            if self.model.endless:
                self._say_outgrown(full)
            else:
                keep = max(1, limit // 2)
                if full:
                    self._say(
                        f"The text outgrows the context of {limit:,} tokens, and this model's positions end there: "
                        f"it is read again from its last {keep:,} tokens, each time the context is full."
                    )
                # A row with room left keeps all of its text, whatever its neighbours do; one that has ended needs none.
                for row in rows:
                    if row in full or row not in running:
                        self.histories[row] = self.histories[row][-keep:]
                return self._read(rows)
        if self.stepper is not None and self.stepper.fits(state):
            return state, self.stepper(state, chosen)
        hidden, after = self.model.hidden(chosen[:, None], state=state)
        assert after is not None
        return after, self.model.head(hidden[:, -1])

    def _take(self, row: int, token: int) -> tuple[str, bool]:
        """Add a token to a row: the text to show, and whether the row has ended with it."""
        result, stream = self.results[row], self.streams[row]
        if result.stopped != "length":
            return "", True
        if token in self.stop_ids:
            result.stopped = "end" if token == self.tokenizer.roles.end else "stop"
            for kept in (result.logprobs, result.alternatives):
                del kept[len(result.ids) :]
            return stream.finish(), True
        result.ids.append(token)
        self.histories[row].append(token)
        text = stream.push(token)
        if stream.stopped:
            result.stopped = "stop"
        return text, stream.stopped

    def _usable(self, logits_BV: Tensor) -> Tensor:
        """The scores of the tokenizer's ids in 32 bits, nothing left to those that are no token."""
        usable = logits_BV[:, : self.tokenizer.vocab_size].float()
        return usable if self.holes is None else usable.index_fill(1, self.holes, -torch.inf)

    def _note(self, rows: list[int], logits: Tensor, chosen: Tensor) -> None:
        """Keep each choice's log-probability, and the likeliest tokens where they are wanted."""
        everything = row_by_row(lambda row: torch.log_softmax(row, dim=-1), logits)
        logprobs = everything.gather(1, chosen[:, None])[:, 0]
        wanted = min(self.alternatives, len(self.tokenizer.vocab))
        best, ids = everything.topk(wanted) if wanted else (everything[:, :0], everything[:, :0])
        self._keep(rows, logprobs.tolist(), ids.tolist(), best.tolist())

    def _keep(self, rows: list[int], logprobs: list[float], ids: list[list[int]], best: list[list[float]]) -> None:
        for row, logprob, names, values in zip(rows, logprobs, ids, best, strict=True):
            result = self.results[row]
            if result.stopped == "length":
                _check(logprob)
                result.logprobs.append(logprob)
                if self.alternatives:
                    result.alternatives.append([Alternative(*pair) for pair in zip(names, values, strict=True)])

    def _say_outgrown(self, rows: list[int]) -> None:
        """Of texts that are longer than the context of a model that goes on without what falls out of it."""
        if rows:
            self._say(
                f"The text outgrows the context of {self.model.context_length:,} tokens: from here on, each token "
                "looks back at no more than these."
            )

    def _say(self, sentence: str) -> None:
        """What the person should know of this text, once."""
        if sentence not in self.said:
            self.said.add(sentence)
            note(sentence)

    def _seen(self) -> Tensor:
        seen = torch.zeros(len(self.results), self.tokenizer.vocab_size, dtype=torch.bool)
        for row, ids in enumerate(self.histories):
            seen[row, ids] = True
        return seen.to(self.device)


def _check(logprob: float) -> None:
    if logprob != logprob:
        raise FledgeError(NOT_FINITE)


def check_ids(ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Refuse ids that come from outside and are no token."""
    for token in ids:
        if token not in tokenizer.vocab:
            raise FledgeError(f"The id {token} is not in this tokenizer's vocabulary of {tokenizer.vocab_size:,}.")


def holes_of(tokenizer: Tokenizer) -> list[int]:
    """Ids below the greatest that the tokenizer has no token for, such as 100256 of cl100k."""
    vocab, size = tokenizer.vocab, tokenizer.vocab_size
    return [] if len(vocab) == size else [token for token in range(size) if token not in vocab]


def stops_of(tokenizer: Tokenizer, sampling: SamplingConfig) -> tuple[set[int], list[str]]:
    """The ids that end a text, and the texts that do; a special token's own text stands for its id."""
    ids = {tokenizer.special_tokens[stop] for stop in sampling.stop if stop in tokenizer.special_tokens}
    if sampling.stop_at_end and tokenizer.roles.end is not None:
        ids.add(tokenizer.roles.end)
    return ids, [stop for stop in sampling.stop if stop not in tokenizer.special_tokens]
