"""A look inside a model as it reads a text, for the page and for notebooks: what it reads, and numbers as pictures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fledge.errors import FledgeError

if TYPE_CHECKING:
    from torch import Tensor

    from fledge.model import Model
    from fledge.model.inside import Inside, Text
    from fledge.notebook import Html
    from fledge.tokenizer import Tokenizer

TOKENS = 1024
DOCUMENTS = 64
PICTURE = 48  # cells on a side of a small picture


@dataclass
class Look:
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
        from fledge.evaluation import look_cells

        return look_cells.losses(self)

    def attention(self, layer: int | None = None, head: int = 1, token: int | None = None) -> Html:
        """All heads as small pictures; one of them enlarged, with the text in the shades of what one token looks at.

        Layers, heads and tokens count from 1; the last layer and the last token, unless given.
        """
        from fledge.evaluation import look_cells

        return look_cells.attention(self, layer, head, token)

    def lens(self, token: int | None = None) -> Html:
        """The logit lens: what each layer would say after a token, were it the last layer.

        Tokens count from 1; the one before the greatest surprise, unless given.
        """
        from fledge.evaluation import look_cells

        return look_cells.lens(self, token)

    def states(self) -> Html:
        """Gates and states of a recurrent network over the text, or the neurons of a BDH."""
        from fledge.evaluation import look_cells

        return look_cells.states(self)

    def _repr_html_(self) -> str:
        inside = self.inside
        parts = [self.losses(), *([self.attention()] if inside.heads else []), self.lens()]
        if inside.gates or inside.neurons:
            parts.append(self.states())
        return "".join(part.body for part in parts)

    def __repr__(self) -> str:
        layers = len(self.inside.hidden) - 1
        return f"<a {self.model.config.architecture} of {layers} layers reads {len(self.ids):,} tokens>"


def look(model: Model, tokenizer: Tokenizer, text: str, paragraphs: bool = False) -> Look:
    """Let the model read a text; with `paragraphs`, each is a document of its own, which sees no other."""
    documents, note = read(model, tokenizer, text, paragraphs)
    return see(model, tokenizer, documents, note)


def see(model: Model, tokenizer: Tokenizer, documents: list[list[int]], note: str | None = None) -> Look:
    """Let the model read documents."""
    from fledge.model.inside import Text, look_inside

    seen = Text.of(documents, next(model.parameters()).device)
    return Look(model, tokenizer, seen, look_inside(model, seen), note)


def read(model: Model, tokenizer: Tokenizer, text: str, paragraphs: bool) -> tuple[list[list[int]], str | None]:
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


def small(look: Look, layer: int) -> list[NDArray[np.uint8]]:
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
