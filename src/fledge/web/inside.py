"""A look inside a model as it reads a text: attention, what each layer would say, gates and neurons, in small pictures.

One request looks; later ones ask for a token or a head of what was seen, which is kept for the last few looks.
"""

from __future__ import annotations

import math
import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from fledge.errors import FledgeError
from fledge.web.library import NotFound
from fledge.web.schemas import Answer, Name, Request
from fledge.web.shelf import Shelf
from fledge.web.worker import Busy
from fledge.web.writing import as_base64

if TYPE_CHECKING:
    from torch import Tensor

    from fledge.bundle import Bundle
    from fledge.model.inside import Inside, Text
    from fledge.tokenizer import Tokenizer

TOKENS = 1024
DOCUMENTS = 64
KEPT = 3
PATIENCE = 20.0  # seconds that a look waits for the one before it
MOST_FLOPS = 4e12  # of a forward pass on a CPU: half a minute on two cores
LENS_FLOPS = 2e10
PICTURE = 48  # cells on a side of a small picture
LIKELIEST = 5


class LookRequest(Request):
    bundle: Name
    text: Annotated[str, Field(min_length=1, max_length=20_000)]
    paragraphs: bool = False
    "Each paragraph is a document of its own, which sees no other."


class LookedToken(Answer):
    id: int
    bytes: str
    document: int
    logprob: float | None
    "Of this token after those before it; none for the first of a document."


class Picture(Answer):
    """Bytes in base64, row by row: 255 times the square root of a value's share of 1, or of the largest one."""

    rows: int
    columns: int
    data: str


class GatePicture(Answer):
    layer: int
    name: str
    picture: Picture
    "Tokens from left to right, units from top to bottom. Gates lie between 0 and 1, states between -1 and 1."


class NeuronLayer(Answer):
    share: list[float]
    "For each token the share of neurons that fire."
    gated_share: list[float]
    "And of those that the text before lets through."
    grown: list[list[int]]
    "For each head the neurons whose synapses grew most."


class LookAnswer(Answer):
    """What one look saw. Layer 0 of `lens` stands before the first layer."""

    look: str
    "Name it to ask for more."
    architecture: str
    tokens: list[LookedToken]
    heads: list[list[Picture]]
    "For each layer and head where tokens look: rows look, columns are looked at."
    lens: list[list[float | None]] | None
    "For each layer and token the log-probability of the next one; none where that would take long."
    gates: list[GatePicture]
    neurons: list[NeuronLayer]
    note: str | None


class Likely(Answer):
    id: int
    bytes: str
    logprob: float


class LayerWords(Answer):
    likeliest: list[Likely]
    next_logprob: float | None


class StrongNeuron(Answer):
    head: int
    neuron: int
    value: float


class TokenAnswer(Answer):
    place: int
    layers: list[LayerWords]
    "What each layer would say next; the first stands before any layer."
    attention: list[list[str]]
    "For each layer and head the row of this token, a byte a token that it sees, as in a picture."
    neurons: list[list[StrongNeuron]]


@dataclass
class Look:
    bundle: Bundle
    text: Text
    inside: Inside


def routes(shelf: Shelf) -> APIRouter:
    router = APIRouter(prefix="/api/inside", tags=["inside"])
    kept: OrderedDict[str, Look] = OrderedDict()
    looking, keeping = Lock(), Lock()

    def find(name: str) -> Look:
        with keeping:
            if name not in kept:
                raise NotFound("What this look saw is not kept any more: look again.")
            kept.move_to_end(name)
            return kept[name]

    @router.post("")
    def look(request: LookRequest) -> LookAnswer:
        """A text through a bundle's model: loss of each token, and small pictures of everything inside."""
        bundle = shelf.bundle(request.bundle)
        documents, note = read(bundle, request)
        if not looking.acquire(timeout=PATIENCE):
            raise Busy("Another look takes long. Try again in a moment.")
        try:
            name, seen = secrets.token_hex(8), see(bundle, documents)
            answer = describe(name, seen, note)
        finally:
            looking.release()
        with keeping:
            kept[name] = seen
            while len(kept) > KEPT:
                kept.popitem(last=False)
        return answer

    @router.get("/token")
    def token(
        look: str = Query(max_length=40),
        place: int = Query(ge=0, le=TOKENS),
        likeliest: int = Query(LIKELIEST, ge=1, le=20),
    ) -> TokenAnswer:
        """One token of a look: what each layer would say after it, and where each head looks from it."""
        return describe_token(find(look), place, likeliest)

    @router.get("/head")
    def head(
        look: str = Query(max_length=40), layer: int = Query(ge=0, le=1 << 16), head: int = Query(ge=0, le=1 << 16)
    ) -> Picture:
        """One head of a look at its full size: a row and a column a token."""
        inside = find(look).inside
        if layer >= len(inside.attention) or head >= inside.heads:
            raise NotFound(
                f"There is no head {head} in layer {layer}: this model has {len(inside.attention)} layers with "
                f"{inside.heads} heads."
            )
        return picture(scaled(inside.attention[layer](head)))

    return router


def read(bundle: Bundle, request: LookRequest) -> tuple[list[list[int]], str | None]:
    """The text's documents as ids, as many as the model sees, and what was left out."""
    texts = re.split(r"\n\s*\n", request.text) if request.paragraphs else [request.text]
    texts = [text for text in texts if text.strip()] or [request.text]
    if len(texts) > DOCUMENTS:
        raise FledgeError(f"The text has {len(texts)} paragraphs, and at most {DOCUMENTS} are shown at once.")
    tokenizer, limit = bundle.tokenizer, min(TOKENS, bundle.model.context_length)
    left, found, cut = limit, [], False
    for text in texts:
        ids = ids_of(tokenizer, text, several=len(texts) > 1)
        cut = cut or len(ids) > left
        if ids[:left]:
            found.append(ids[:left])
        left = max(0, left - len(ids))
    if not found:
        raise FledgeError("The text has no tokens. Write something.")
    length = limit - left
    flops = 2 * bundle.model.parameters_count() * length
    if flops > MOST_FLOPS and next(bundle.model.parameters()).device.type == "cpu":
        fits = int(MOST_FLOPS / flops * length)
        raise FledgeError(f"{length:,} tokens of this model would take long on a CPU. At most {fits:,} are shown here.")
    return found, f"These are the first {limit:,} tokens: as many as are shown at once." if cut else None


def ids_of(tokenizer: Tokenizer, text: str, several: bool) -> list[int]:
    """A document as a model meets it: after its start token, or of several before what separates them."""
    ids: list[int] = tokenizer.encode(text, special="text")
    start, end = tokenizer.roles.own_start, tokenizer.roles.separator
    if start is not None:
        return [start, *ids]
    return [*ids, end] if several and end is not None else ids


def see(bundle: Bundle, documents: list[list[int]]) -> Look:
    from fledge.model.inside import Text, look_inside

    text = Text.of(documents, next(bundle.model.parameters()).device)
    return Look(bundle, text, look_inside(bundle.model, text))


def describe(name: str, look: Look, note: str | None) -> LookAnswer:
    from fledge.model.inside import speak

    model, tokenizer, text, inside = look.bundle.model, look.bundle.tokenizer, look.text, look.inside
    size = tokenizer.vocab_size
    ids: list[int] = text.inputs_BT[0].tolist()
    documents = [0] * len(ids) if text.documents_BT is None else text.documents_BT[0].tolist()
    last = finite(speak(model, inside.hidden[-1], text, size, 0).next_logprob_T)
    # A token's own probability was told at the one before it.
    before = [None, *last[:-1]]
    tokens = [
        LookedToken(id=token, bytes=as_base64(tokenizer.vocab.get(token, b"")), document=number, logprob=logprob)
        for token, number, logprob in zip(ids, documents, before, strict=True)
    ]
    lens = None
    if 2 * len(ids) * model.config.width * size * len(inside.hidden) < LENS_FLOPS:
        lens = [finite(speak(model, hidden, text, size, 0).next_logprob_T) for hidden in inside.hidden[:-1]] + [last]
    return LookAnswer(
        look=name,
        architecture=model.config.architecture,
        tokens=tokens,
        heads=[
            [
                picture(scaled(pooled(weights(head).abs() if inside.neurons else weights(head))))
                for head in range(inside.heads)
            ]
            for weights in inside.attention
        ],
        lens=lens,
        gates=[
            GatePicture(layer=layer, name=gate, picture=gate_picture(gate, values))
            for layer, gates in enumerate(inside.gates)
            for gate, values in gates.items()
        ],
        neurons=[
            NeuronLayer(
                share=rounded(layer.share_T), gated_share=rounded(layer.gated_share_T), grown=layer.grown_hK.tolist()
            )
            for layer in inside.neurons
        ],
        note=note,
    )


def describe_token(look: Look, place: int, likeliest: int) -> TokenAnswer:
    from fledge.model.inside import speak

    model, tokenizer, text, inside = look.bundle.model, look.bundle.tokenizer, look.text, look.inside
    length = text.inputs_BT.shape[1]
    if place >= length:
        raise NotFound(f"There is no token {place}: the text has {length}, counted from 0.")
    layers = []
    for hidden in inside.hidden:
        ids, logprobs, came = speak(model, hidden, text, tokenizer.vocab_size, likeliest, place)
        said = zip(ids[0].tolist(), logprobs[0].tolist(), strict=True)
        likely = [
            Likely(id=token, bytes=as_base64(tokenizer.vocab.get(token, b"")), logprob=value) for token, value in said
        ]
        layers.append(LayerWords(likeliest=likely, next_logprob=finite(came)[0]))
    rows = [
        [as_base64(quantised(scaled(weights(head))[place, : place + 1])) for head in range(inside.heads)]
        for weights in inside.attention
    ]
    strong = []
    for layer in inside.neurons:
        found = [
            StrongNeuron(head=head, neuron=neuron, value=value)
            for head in range(inside.heads)
            for neuron, value in zip(
                layer.strongest_hTK[head, place].tolist(), layer.strength_hTK[head, place].tolist(), strict=True
            )
            if value > 0
        ]
        strong.append(sorted(found, key=lambda each: -each.value)[:12])
    return TokenAnswer(place=place, layers=layers, attention=rows, neurons=strong)


def scaled(weights_TT: Tensor) -> Tensor:
    """Between 0 and 1: attention's weights are so already, and scores without a softmax are shares of the largest."""
    most = weights_TT.abs().amax().clamp(min=1)
    return weights_TT.abs() / most


def pooled(values_TT: Tensor) -> Tensor:
    """The largest of each cell of a small picture; a text of few tokens is shown as it is."""
    from torch.nn import functional

    length = values_TT.shape[0]
    cell = -(-length // PICTURE)
    if cell == 1:
        return values_TT
    cells = -(-length // cell)
    padded = functional.pad(values_TT, (0, cells * cell - length, 0, cells * cell - length))
    return padded.view(cells, cell, cells, cell).amax((1, 3))


def gate_picture(name: str, values_TD: Tensor) -> Picture:
    from torch.nn import functional

    wide = values_TD.T.float()
    if name in ("hidden", "cell"):
        wide = (wide.clamp(-1, 1) + 1) / 2
    rows, columns = min(PICTURE, wide.shape[0]), min(2 * PICTURE, wide.shape[1])
    return picture(functional.adaptive_avg_pool2d(wide[None], (rows, columns))[0].square())


def picture(values: Tensor) -> Picture:
    return Picture(rows=values.shape[0], columns=values.shape[1], data=as_base64(quantised(values)))


def quantised(values: Tensor) -> bytes:
    """The root spreads small weights apart: of a thousand tokens, each has a thousandth."""
    import torch

    return (values.float().clamp(0, 1).sqrt() * 255).round().to(torch.uint8).cpu().numpy().tobytes()


def finite(values: Tensor) -> list[float | None]:
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]


def rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
