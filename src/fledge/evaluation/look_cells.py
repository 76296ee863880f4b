"""The parts of a look inside a model as cells of a notebook: shaded text, small pictures and tables."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from fledge.errors import FledgeError
from fledge.evaluation.look import gate_shades, pooled, scaled, shades, small
from fledge.model.inside import Spoken, speak
from fledge.notebook import FONT, SEEN, SMALL, SURPRISE, TEXT, Html, element, picture, shaded, table
from fledge.tokenizer.display import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fledge.evaluation.look import Look

SMALL_SIZE, LARGE_SIZE = 64, 420  # pixels
WORDS = 4


def losses(look: Look) -> Html:
    said = _spoken(look, -1, WORDS)
    parts, known = [], []
    for place, (token, document) in enumerate(zip(look.ids, look.documents, strict=True)):
        first = place == 0 or look.documents[place - 1] != document
        logprob = math.nan if first else float(said.next_logprob_T[place - 1])
        if first:
            tip = "nothing before it"
        else:
            known.append(-logprob)
            words = ", ".join(_likely(look, said, place - 1))
            tip = f"{-logprob:.2f} nats, {percent(logprob)}; expected: {words}"
        parts.append(
            "<hr>" * (first and place > 0)
            + shaded(_word(look, token), -logprob / SURPRISE if known and not first else 0, title=tip)
        )
    mean = f"{sum(known) / len(known):.2f} nats each on average" if known else "one token, which nothing told of"
    note = f"{len(look.ids):,} tokens; {mean}. The deeper a shade, the more the token surprised the model."
    note = f"{note} {look.note or ''}".strip()
    return _cell(
        "Loss of each token", [element("div", "".join(parts), TEXT), element("div", html.escape(note), SMALL)], note
    )


def attention(look: Look, layer: int | None, head: int, token: int | None) -> Html:
    inside = look.inside
    if not inside.heads:
        raise FledgeError(
            f"A model of the architecture {look.model.config.architecture} has no attention: try states()."
        )
    number = _chosen("layer", layer, len(inside.attention))
    one, place = _chosen("head", head, inside.heads), _chosen("token", token, len(look.ids))
    rows = [
        [
            str(index + 1),
            " ".join(
                picture(each, f"layer {index + 1}, head {at + 1}", SMALL_SIZE)
                for at, each in enumerate(small(look, index))
            ),
        ]
        for index in range(len(inside.attention))
    ]
    weights_TT = scaled(inside.attention[number](one))
    row = shades(weights_TT[place])
    words = [
        shaded(_word(look, each), float(share) / 255, SEEN, title=f"token {at + 1}")
        if at != place
        else element("b", html.escape(_word(look, each)), "text-decoration:underline", title=f"token {at + 1}")
        for at, (each, share) in enumerate(zip(look.ids, row, strict=True))
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


def lens(look: Look, token: int | None) -> Html:
    place = _chosen("token", _surprised(look) if token is None else token, len(look.ids))
    rows, came = [], ""
    for layer in range(len(look.inside.hidden)):
        said = _spoken(look, layer, WORDS, place)
        chances = said.logprobs_TK[0].exp().tolist()
        words = [
            shaded(_word(look, each), chance, SEEN, percent(math.log(chance)) if chance else "")
            for each, chance in zip(said.ids_TK[0].tolist(), chances, strict=True)
        ]
        next_logprob = float(said.next_logprob_T[0])
        came = "" if math.isnan(next_logprob) else percent(next_logprob)
        rows.append([str(layer) if layer else "before", " ".join(words), came])
    header = ["layer", "likeliest", *([f"then came “{_word(look, look.ids[place + 1])}”"] if came else [])]
    title = f"What each layer would say after “{_word(look, look.ids[place])}” (token {place + 1})"
    return _cell(title, [table(header, [row[: len(header)] for row in rows])], title)


def states(look: Look) -> Html:
    rows = [
        [f"{name}, layer {layer + 1}", picture(gate_shades(name, values), name, LARGE_SIZE)]
        for layer, gates in enumerate(look.inside.gates)
        for name, values in gates.items()
    ]
    for layer, found in enumerate(look.inside.neurons):
        for name, shares in (("neurons that fire", found.share_T), ("let through", found.gated_share_T)):
            mean = f"{name}, layer {layer + 1}: {100 * float(shares.mean()):.1f} %"
            rows.append([mean, picture(shades(shares[None]).repeat(12, 0), mean, LARGE_SIZE)])
    if not rows:
        raise FledgeError("A transformer has no states over the text: try attention().")
    return _cell("Over the text", [table([], rows)], f"{len(rows)} pictures of states over the text")


def percent(logprob: float) -> str:
    """
    >>> percent(math.log(0.25)), percent(-9)
    ('25 %', '< 0.1 %')
    """
    chance = 100 * math.exp(logprob)
    return f"{chance:.0f} %" if chance >= 10 else f"{chance:.1f} %" if chance >= 0.1 else "< 0.1 %"


def _spoken(look: Look, layer: int, likeliest: int, place: int | None = None) -> Spoken:
    return speak(look.model, look.inside.hidden[layer], look.text, look.tokenizer.vocab_size, likeliest, place)


def _surprised(look: Look) -> int:
    """The token, counted from 1, after which the least likely one came."""
    logprobs = _spoken(look, -1, 0).next_logprob_T.nan_to_num(0)
    return int(logprobs.argmin()) + 1


def _likely(look: Look, said: Spoken, place: int) -> list[str]:
    found = zip(said.ids_TK[place].tolist(), said.logprobs_TK[place].tolist(), strict=True)
    return [f"“{_word(look, token)}” {percent(logprob)}" for token, logprob in found]


def _word(look: Look, token: int) -> str:
    return visible(look.tokenizer.vocab.get(token, b""))


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
