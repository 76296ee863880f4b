"""A look inside a model as it reads a text, for the page and for notebooks: what it reads, and numbers as pictures."""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fledge.errors import FledgeError
from fledge.notebook import FONT, SEEN, SMALL, SURPRISE, TEXT, Html, element, picture, shaded, table
from fledge.tokenizer.display import visible_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from fledge.model import Model
    from fledge.model.inside import Inside, Spoken, Text
    from fledge.tokenizer import Tokenizer

TOKENS = 1024
DOCUMENTS = 64
PICTURE = 48  # cells on a side of a small picture
SMALL_SIZE, LARGE_SIZE = 64, 420  # pixels
WORDS = 4


@dataclass
class ReadText:
    """What was seen of one text. Leave it, or one of its parts, as the last line of a notebook's cell."""

    model: Model
    tokenizer: Tokenizer
    text: Text
    inside: Inside
    note: str | None = None
    "What was left out."

    @property
    def ids(self) -> list[int]:
        found: list[int] = self.text.inputs_BT[0].tolist()
        return found

    @property
    def documents(self) -> list[int]:
        """The number of each token's document."""
        found = self.text.documents_BT
        return [0] * len(self.ids) if found is None else [int(number) for number in found[0].tolist()]

    def losses(self) -> Html:
        """Each token in the shade of its loss; its tip says what the model expected."""
        said = _spoken(self, WORDS)
        parts, known = [], []
        for place, (token, document) in enumerate(zip(self.ids, self.documents, strict=True)):
            first = place == 0 or self.documents[place - 1] != document
            logprob = math.nan if first else float(said.next_logprob_T[place - 1])
            if first:
                tip = "nothing before it"
            else:
                known.append(-logprob)
                words = ", ".join(_likely(self, said, place - 1))
                tip = f"{-logprob:.2f} nats, {percent(logprob)}; expected: {words}"
            parts.append(
                "<hr>" * (first and place > 0)
                + shaded(_word(self, token), -logprob / SURPRISE if known and not first else 0, title=tip)
            )
        mean = f"{sum(known) / len(known):.2f} nats each on average" if known else "one token, which nothing told of"
        note = f"{len(self.ids):,} tokens; {mean}. The deeper a shade, the more the token surprised the model."
        note = f"{note} {self.note or ''}".strip()
        return _cell(
            "Loss of each token", [element("div", "".join(parts), TEXT), element("div", html.escape(note), SMALL)], note
        )

    def attention(self, layer: int | None = None, head: int = 1, token: int | None = None) -> Html:
        """All heads as small pictures; one of them enlarged, with the text in the shades of what one token looks at.

        Layers, heads and tokens count from 1; the last layer and the last token, unless given.
        """
        inside = self.inside
        if not inside.heads:
            raise FledgeError(
                f"A model of the architecture {self.model.config.architecture} has no attention: try states()."
            )
        number = _chosen("layer", layer, len(inside.attention))
        one, place = _chosen("head", head, inside.heads), _chosen("token", token, len(self.ids))
        rows = [
            [
                str(index + 1),
                " ".join(
                    picture(each, f"layer {index + 1}, head {at + 1}", SMALL_SIZE)
                    for at, each in enumerate(small(self, index))
                ),
            ]
            for index in range(len(inside.attention))
        ]
        weights_TT = scaled(inside.attention[number](one))
        row = shades(weights_TT[place])
        words = [
            shaded(_word(self, each), float(share) / 255, SEEN, title=f"token {at + 1}")
            if at != place
            else element("b", html.escape(_word(self, each)), "text-decoration:underline", title=f"token {at + 1}")
            for at, (each, share) in enumerate(zip(self.ids, row, strict=True))
        ]
        chosen = f"Layer {number + 1}, head {one + 1}: the text in the shades of what token {place + 1} looks at."
        caption = f"{chosen} In a picture, a row is a token that looks, a column one that is looked at."
        kind = "Scores" if inside.neurons else "Attention"
        parts = [
            table(["layer", "heads"], rows),
            element("div", html.escape(caption), SMALL),
            element("div", "".join(words), TEXT),
        ]
        large = picture(shades(pooled(weights_TT, LARGE_SIZE)), caption, LARGE_SIZE)
        return _cell(f"{kind} of each head", [*parts, large], caption)

    def lens(self, token: int | None = None) -> Html:
        """The logit lens: what each layer would say after a token, were it the last layer.

        Tokens count from 1; the one before the greatest surprise, unless given.
        """
        from fledge.model.inside import speak_at

        place = _chosen("token", _surprised(self) if token is None else token, len(self.ids))
        said = speak_at(self.model, self.inside, self.text, self.tokenizer.vocab_size, place, WORDS)
        rows, came = [], ""
        for layer in range(len(self.inside.hidden)):
            chances = said.logprobs_TK[layer].exp().tolist()
            words = [
                shaded(_word(self, each), chance, SEEN, percent(math.log(chance)) if chance else "")
                for each, chance in zip(said.ids_TK[layer].tolist(), chances, strict=True)
            ]
            next_logprob = float(said.next_logprob_T[layer])
            came = "" if math.isnan(next_logprob) else percent(next_logprob)
            rows.append([str(layer) if layer else "before", " ".join(words), came])
        header = ["layer", "likeliest", *([f"then came “{_word(self, self.ids[place + 1])}”"] if came else [])]
        title = f"What each layer would say after “{_word(self, self.ids[place])}” (token {place + 1})"
        return _cell(title, [table(header, [row[: len(header)] for row in rows])], title)

    def states(self) -> Html:
        """Gates and states of a recurrent network over the text, or the neurons of a BDH."""
        rows = [
            [f"{name}, layer {layer + 1}", picture(gate_shades(name, values), name, LARGE_SIZE)]
            for layer, gates in enumerate(self.inside.gates)
            for name, values in gates.items()
        ]
        for layer, found in enumerate(self.inside.neurons):
            for name, shares in (("neurons that fire", found.share_T), ("let through", found.gated_share_T)):
                mean = f"{name}, layer {layer + 1}: {100 * float(shares.mean()):.1f} %"
                rows.append([mean, picture(shades(shares[None]).repeat(12, 0), mean, LARGE_SIZE)])
        if not rows:
            raise FledgeError("A transformer has no states over the text: try attention().")
        return _cell("Over the text", [table([], rows)], f"{len(rows)} pictures of states over the text")

    def _repr_html_(self) -> str:
        inside = self.inside
        parts = [self.losses(), *([self.attention()] if inside.heads else []), self.lens()]
        if inside.gates or inside.neurons:
            parts.append(self.states())
        return "".join(part.body for part in parts)

    def __repr__(self) -> str:
        layers = len(self.inside.hidden) - 1
        return f"<a {self.model.config.architecture} of {layers} layers reads {len(self.ids):,} tokens>"


def look(model: Model, tokenizer: Tokenizer, text: str, paragraphs: bool = False) -> ReadText:
    """Let the model read a text; with `paragraphs`, each is a document of its own, which sees no other."""
    documents, note = read_documents(model, tokenizer, text, paragraphs)
    return see(model, tokenizer, documents, note)


def see(model: Model, tokenizer: Tokenizer, documents: list[list[int]], note: str | None = None) -> ReadText:
    """Let the model read documents."""
    from fledge.model.inside import Text, look_inside

    seen = Text.of(documents, next(model.parameters()).device)
    return ReadText(model, tokenizer, seen, look_inside(model, seen), note)


def read_documents(
    model: Model, tokenizer: Tokenizer, text: str, paragraphs: bool
) -> tuple[list[list[int]], str | None]:
    """The text's documents as ids, as many as the model sees, and what was left out."""
    texts = re.split(r"\n\s*\n", text) if paragraphs else [text]
    texts = [each for each in texts if each.strip()] or [text]
    if len(texts) > DOCUMENTS:
        raise FledgeError(f"The text has {len(texts)} paragraphs, and at most {DOCUMENTS} are shown at once.")
    limit = min(TOKENS, model.context_length)
    left, found, cut = limit, [], False
    for each in texts:
        ids = ids_of(tokenizer, each, several=len(texts) > 1)
        cut = cut or len(ids) > left
        if ids[:left]:
            found.append(ids[:left])
        left = max(0, left - len(ids))
    if not found:
        raise FledgeError("The text has no tokens. Write something.")
    return found, f"These are the first {limit:,} tokens: as many as are shown at once." if cut else None


def ids_of(tokenizer: Tokenizer, text: str, several: bool) -> list[int]:
    """A document as a model meets it: after its start token, or of several before what separates them."""
    ids: list[int] = tokenizer.encode(text, special="text")
    start, end = tokenizer.roles.own_start, tokenizer.roles.separator
    if start is not None:
        return [start, *ids]
    return [*ids, end] if several and end is not None else ids


def small(look: ReadText, layer: int) -> list[NDArray[np.uint8]]:
    """Every head of a layer as a small picture: rows look, columns are looked at."""
    weights = look.inside.attention[layer]
    heads = map(weights, range(look.inside.heads))
    return [shades(scaled(pooled(head.abs() if look.inside.neurons else head))) for head in heads]


def scaled(weights_TT: Tensor) -> Tensor:
    """Between 0 and 1: attention's weights are so already, and scores without a softmax are shares of the largest."""
    most = weights_TT.abs().amax().clamp(min=1)
    return weights_TT.abs() / most


def pooled(values_TT: Tensor, most: int = PICTURE) -> Tensor:
    """The largest of each cell of a picture of at most so many; a text of few tokens is shown as it is."""
    import torch
    from torch.nn import functional

    length = values_TT.shape[0]
    cell = -(-length // most)
    if cell == 1:
        return values_TT
    cells = -(-length // cell)
    # Rows first: they lie one after the other, and few are left to be widened.
    rows = torch.stack([some.amax(0) for some in torch.split(values_TT, cell)])
    return functional.pad(rows, (0, cells * cell - length)).view(cells, cells, cell).amax(2)


def gate_shades(name: str, values_TD: Tensor) -> NDArray[np.uint8]:
    """Tokens from left to right, units from top to bottom. Gates lie between 0 and 1, states between -1 and 1."""
    from torch.nn import functional

    wide = values_TD.T.float()
    if name in ("hidden", "cell"):
        wide = (wide.clamp(-1, 1) + 1) / 2
    rows, columns = min(PICTURE, wide.shape[0]), min(2 * PICTURE, wide.shape[1])
    return shades(functional.adaptive_avg_pool2d(wide[None], (rows, columns))[0].square())


def shades(values: Tensor) -> NDArray[np.uint8]:
    """255 times the root of values between 0 and 1. It spreads small weights apart: of a thousand tokens, each has a
    thousandth."""
    import torch

    found: Any = (values.float().clamp(0, 1).sqrt() * 255).round().to(torch.uint8).cpu().numpy()
    return found  # type: ignore[no-any-return]


def percent(logprob: float) -> str:
    """
    >>> percent(math.log(0.25)), percent(-9)
    ('25 %', '< 0.1 %')
    """
    chance = 100 * math.exp(logprob)
    return f"{chance:.0f} %" if chance >= 10 else f"{chance:.1f} %" if chance >= 0.1 else "< 0.1 %"


def _spoken(look: ReadText, likeliest: int) -> Spoken:
    from fledge.model.inside import speak

    return speak(look.model, look.inside.hidden[-1], look.text, look.tokenizer.vocab_size, likeliest)


def _surprised(look: ReadText) -> int:
    """The token, counted from 1, after which the least likely one came."""
    logprobs = _spoken(look, 0).next_logprob_T.nan_to_num(0)
    return int(logprobs.argmin()) + 1


def _likely(look: ReadText, said: Spoken, place: int) -> list[str]:
    found = zip(said.ids_TK[place].tolist(), said.logprobs_TK[place].tolist(), strict=True)
    return [f"“{_word(look, token)}” {percent(logprob)}" for token, logprob in found]


def _word(look: ReadText, token: int) -> str:
    return visible_bytes(look.tokenizer.vocab.get(token, b""))


def _chosen(what: str, number: int | None, count: int) -> int:
    """A number that counts from 1, as an index; the last, unless given."""
    if number is None:
        return count - 1
    if not 1 <= number <= count:
        raise FledgeError(f"{what} = {number} is not there: there are {count}, counted from 1.")
    return number - 1


def _cell(title: str, parts: Sequence[str], text: str) -> Html:
    head = element("div", html.escape(title), "font-weight:600;margin:0.6em 0 0.3em")
    return Html(element("div", head + "".join(parts), f"{FONT};max-width:60em"), text)
