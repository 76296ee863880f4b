"""A look inside a model as it reads a text: attention, what each layer would say, gates and neurons, in small pictures.

One request looks; later ones ask for a token or a head of what was seen, which is kept for the last few looks.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from fledge.errors import FledgeError
from fledge.evaluation.look import TOKENS, ReadText, gate_shades, read_documents, scaled, see, shades, small
from fledge.web.library import NotFound
from fledge.web.schemas import Answer, Name, Request
from fledge.web.shelf import Shelf
from fledge.web.worker import Busy
from fledge.web.writing import as_base64

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

KEPT = 3
PATIENCE = 20.0  # seconds that a look waits for the one before it
MOST_FLOPS = 4e12  # of a forward pass on a CPU: half a minute on two cores
LENS_FLOPS = 2e10
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


def routes(shelf: Shelf) -> APIRouter:
    router = APIRouter(prefix="/api/inside", tags=["inside"])
    kept: OrderedDict[str, ReadText] = OrderedDict()
    looking, keeping = Lock(), Lock()

    def find(name: str) -> ReadText:
        with keeping:
            if name not in kept:
                raise NotFound("What this look saw is not kept any more: look again.")
            kept.move_to_end(name)
            return kept[name]

    @router.post("")
    def look(request: LookRequest) -> LookAnswer:
        """A text through a bundle's model: loss of each token, and small pictures of everything inside."""
        bundle = shelf.bundle(request.bundle)
        documents, note = read_documents(bundle.model, bundle.tokenizer, request.text, request.paragraphs)
        device = next(bundle.model.parameters()).device
        require_little(bundle.model.parameters_count(), sum(map(len, documents)), device)
        if not looking.acquire(timeout=PATIENCE):
            raise Busy("Another look takes long. Try again in a moment.")
        try:
            name, seen = secrets.token_hex(8), see(bundle.model, bundle.tokenizer, documents, note)
            answer = describe_look(name, seen)
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
        return as_picture(shades(scaled(inside.attention[layer](head))))

    return router


def require_little(parameters: int, tokens: int, device: torch.device) -> None:
    """Refuse what would keep a processor busy for long."""
    flops = 2 * parameters * tokens
    if flops > MOST_FLOPS and device.type == "cpu":
        fits = int(MOST_FLOPS / flops * tokens)
        raise FledgeError(f"{tokens:,} tokens of this model would take long on a CPU. At most {fits:,} are shown here.")


def describe_look(name: str, look: ReadText) -> LookAnswer:
    from fledge.model.inside import speak

    model, tokenizer, text, inside = look.model, look.tokenizer, look.text, look.inside
    size = tokenizer.vocab_size
    ids = look.ids
    last = finite_or_none(speak(model, inside.hidden[-1], text, size, 0).next_logprob_T)
    # A token's own probability was told at the one before it.
    before = [None, *last[:-1]]
    tokens = [
        LookedToken(id=token, bytes=as_base64(tokenizer.vocab.get(token, b"")), document=number, logprob=logprob)
        for token, number, logprob in zip(ids, look.documents, before, strict=True)
    ]
    lens = None
    if 2 * len(ids) * model.config.width * size * len(inside.hidden) < LENS_FLOPS:
        lens = [finite_or_none(speak(model, hidden, text, size, 0).next_logprob_T) for hidden in inside.hidden[:-1]] + [
            last
        ]
    return LookAnswer(
        look=name,
        architecture=model.config.architecture,
        tokens=tokens,
        heads=[[as_picture(head) for head in small(look, layer)] for layer in range(len(inside.attention))],
        lens=lens,
        gates=[
            GatePicture(layer=layer, name=gate, picture=as_picture(gate_shades(gate, values)))
            for layer, gates in enumerate(inside.gates)
            for gate, values in gates.items()
        ],
        neurons=[
            NeuronLayer(
                share=rounded_shares(layer.share_T),
                gated_share=rounded_shares(layer.gated_share_T),
                grown=layer.grown_hK.tolist(),
            )
            for layer in inside.neurons
        ],
        note=look.note,
    )


def describe_token(look: ReadText, place: int, likeliest: int) -> TokenAnswer:
    from fledge.model.inside import speak_at

    model, tokenizer, text, inside = look.model, look.tokenizer, look.text, look.inside
    length = text.inputs_BT.shape[1]
    if place >= length:
        raise NotFound(f"There is no token {place}: the text has {length}, counted from 0.")
    said = speak_at(model, inside, text, tokenizer.vocab_size, place, likeliest)
    layers = [
        LayerWords(
            likeliest=[
                Likely(id=token, bytes=as_base64(tokenizer.vocab.get(token, b"")), logprob=value)
                for token, value in zip(ids, logprobs, strict=True)
            ],
            next_logprob=came,
        )
        for ids, logprobs, came in zip(
            said.ids_TK.tolist(), said.logprobs_TK.tolist(), finite_or_none(said.next_logprob_T), strict=True
        )
    ]
    # Scores without a softmax are shares of the largest one of all rows.
    seen = slice(None) if inside.neurons else slice(place, place + 1)
    row = place if inside.neurons else 0
    rows = [
        [as_base64(shades(scaled(weights(head, seen))[row, : place + 1]).tobytes()) for head in range(inside.heads)]
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


def as_picture(values: NDArray[np.uint8]) -> Picture:
    return Picture(rows=values.shape[0], columns=values.shape[1], data=as_base64(values.tobytes()))


def finite_or_none(values: Tensor) -> list[float | None]:
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]


def rounded_shares(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
