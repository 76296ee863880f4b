"""Weights under the names other programs use, both ways, and the settings in their config.json.

Our RoPE turns adjacent pairs; most files turn pairs half a head apart: the rows of queries and keys are permuted on the
way, which changes no result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fledge.config import ModelConfig
from fledge.errors import FledgeError
from fledge.model.families import HUB, OWN, Family, home, nearest_home
from fledge.model.layers import rotary_frequencies, sinusoids

Weights = Mapping[str, Tensor]

TABLES = re.compile(r"\.(?:attn|attention)\.(?:bias|masked_bias)$|rotary_emb\.inv_freq$")
"What old files carry along, and we calculate."
_BDH_TOP = {"token_embeddings.weight": "embed.weight"}
_BDH_NAMES = {"token_embeddings.weight", "encoder", "encoder_v", "decoder", "lm_head"}
_PER_HEAD = ("attn.q_proj", "attn.k_proj", "attn.q_norm", "attn.k_norm")


def export_weights(
    config: ModelConfig, weights: Weights, context_length: int = 0, family: Family | None = None
) -> dict[str, Tensor]:
    """A model's state dict under the names of `family`, or of its own in transformers.

    `context_length` is needed where positions that we calculate become a table."""
    return dict(exported(config, weights, context_length, family or require_home(config)))


def exported(
    config: ModelConfig, weights: Weights, context_length: int, family: Family
) -> Iterator[tuple[str, Tensor]]:
    """The same, each made when it is asked for: a large model is never in memory a second time."""
    if config.architecture == "bdh":
        for name, tensor in weights.items():
            head = name == "lm_head.weight"
            yield "lm_head" if head else _BDH_TOP.get(name, name), tensor.T.contiguous() if head else tensor
        return
    if family.file:
        yield from weights.items()
        return
    own = _with_everything(config, dict(weights), context_length, family)
    for name, tensor in own.items():
        layer, part, kind = _split_name(name)
        if layer is None:
            yield f"{family.top[part]}.{kind}", tensor
            continue
        if family.fused and part in ("attn.k_proj", "attn.v_proj"):
            continue
        if family.fused and part == "attn.q_proj":
            pieces = [
                _turned(config, family, f"attn.{x}_proj", own[f"layers.{layer}.attn.{x}_proj.{kind}"]) for x in "qkv"
            ]
            part, tensor = "attn.qkv", _fuse(config, family, pieces)
        else:
            tensor = _turned(config, family, part, tensor)
        if family.inputs_first and tensor.ndim == 2:
            tensor = tensor.T.contiguous()
        yield f"{family.layer.format(layer)}{family.parts[part]}.{kind}", tensor
    if family.inputs_first and config.tied:  # GPT-2 files carry the head all the same
        yield "lm_head.weight", own["token_embeddings.weight"]


def import_weights(config: ModelConfig, weights: Weights, family: Family | None = None) -> dict[str, Tensor]:
    """Weights in the names of `family` as a state dict that the built model loads."""
    if family is None:
        family = require_home(config)
    if config.architecture == "bdh":
        return _from_bdh(weights)
    found = dict(_renamed(config, weights, family))
    if family.fused:
        prefix = family.layer.partition("{}")[0]
        for number in range(config.layers):
            for kind in ("weight", "bias"):  # fused in our modules too, whose own error would name neither's tensor
                if f"layers.{number}.attn.q_proj.{kind}" not in found and (kind == "weight" or config.bias):
                    raise FledgeError(
                        f"{family.layer.format(number)[prefix.find('.') + 1 :]}{family.parts['attn.qkv']}.{kind} is "
                        f"missing: it is a weight of {_known(family)}."
                    )
    return _without_zeros(config, found, family)


def imported(config: ModelConfig, weights: Weights, family: Family, wanted: Weights) -> Iterator[tuple[str, Tensor]]:
    """The weights of `import_weights`, in its order, each made when it is asked for; `wanted` is what it made of
    tensors without memory."""
    if config.architecture == "bdh":
        yield from _from_bdh(weights).items()
        return
    absent = dict(wanted)
    for name, tensor in _renamed(config, weights, family):
        if absent.pop(name, None) is not None:
            yield name, tensor
    for name, tensor in absent.items():
        yield name, torch.zeros(tensor.shape, dtype=tensor.dtype)


def _renamed(config: ModelConfig, weights: Weights, family: Family) -> Iterator[tuple[str, Tensor]]:
    if family.file:
        yield from weights.items()
        return
    top = {theirs: own for own, theirs in family.top.items()}
    parts = {theirs: own for own, theirs in family.parts.items()}
    prefix = family.layer.partition("{}")[0]
    root = prefix[: prefix.find(".") + 1]
    layered = re.compile(rf"(?:{re.escape(root)})?{re.escape(prefix[len(root) :])}(\d+)\.(.+)\.(weight|bias)")
    for name, tensor in weights.items():
        if TABLES.search(name):
            continue
        stem, _, kind = name.rpartition(".")
        own = top.get(stem, top.get(root + stem))
        if own == "lm_head" and config.tied:
            embeddings = family.top["token_embeddings"] + ".weight"
            _require_tied(tensor, weights.get(embeddings, weights.get(embeddings.removeprefix(root))))
            continue
        if own is not None:
            yield f"{own}.{kind}", tensor
            continue
        match = layered.fullmatch(name)
        if match is None or match[2] not in parts:
            raise FledgeError(f"{name} is not a weight of {_known(family)}.")
        number, part, kind = match[1], parts[match[2]], match[3]
        straight = tensor.T.contiguous() if family.inputs_first and tensor.ndim == 2 else tensor
        if part == "attn.qkv":
            for letter, piece in zip("qkv", _unfuse(config, family, straight, name), strict=True):
                yield f"layers.{number}.attn.{letter}_proj.{kind}", piece
        else:
            yield f"layers.{number}.{part}.{kind}", _turned_back(config, family, part, straight, name)


def _known(family: Family) -> str:
    return {"gpt2": "GPT-2", "llama": "Llama", "openai-gpt": "GPT"}.get(family.name, family.name)


def require_home(config: ModelConfig) -> Family:
    """The model of transformers that holds such a one, or our own file for it."""
    found = home(config, (*HUB, *OWN))
    if found is None:
        raise FledgeError(f"transformers has no model like this one. {nearest_home(config, HUB)}")
    return found


def _from_bdh(weights: Weights) -> dict[str, Tensor]:
    back = {foreign: own for own, foreign in _BDH_TOP.items()}
    skipped = ("attn.", "ln.")  # tables, computed here
    renamed = {back.get(name, name): tensor for name, tensor in weights.items() if not name.startswith(skipped)}
    if strange := renamed.keys() - _BDH_NAMES:
        raise FledgeError(f"{min(strange)} is not a weight of BDH.")
    if lacking := _BDH_NAMES - renamed.keys():
        raise FledgeError(f"{_BDH_TOP.get(min(lacking), min(lacking))} is missing: it is a weight of BDH.")
    renamed["lm_head.weight"] = renamed.pop("lm_head").T.contiguous()
    return renamed


def _with_everything(
    config: ModelConfig, weights: dict[str, Tensor], context_length: int, family: Family
) -> dict[str, Tensor]:
    """Our weights, with zero biases where the family has some and we have none, and a table of positions."""
    for name, tensor in list(weights.items()):
        stem, _, kind = name.rpartition(".")
        part = stem.split(".", 2)[2] if stem.startswith("layers.") else stem
        if kind == "weight" and part in family.zeros:
            weights.setdefault(f"{stem}.bias", tensor.new_zeros(tensor.shape[0]))
        elif kind == "bias" and part in family.unbiased:
            del weights[name]
    if "position_embeddings" in family.top and config.position != "learned":
        like = weights["token_embeddings.weight"]
        table = like.new_zeros(context_length, config.width)
        if config.position == "sinusoidal":
            frequencies = rotary_frequencies(config.width + config.width % 2, 10_000.0)
            table += sinusoids(torch.arange(context_length), frequencies, config.width).to(table)
        weights["position_embeddings.weight"] = table
    return weights


def _without_zeros(config: ModelConfig, found: dict[str, Tensor], family: Family) -> dict[str, Tensor]:
    """The other direction: a bias that the family lacks is zero here, and one that we lack is left out."""
    for name, tensor in list(found.items()):
        stem, _, kind = name.rpartition(".")
        part = stem.split(".", 2)[2] if stem.startswith("layers.") else stem
        if kind == "weight" and config.bias and part in family.unbiased:
            found.setdefault(f"{stem}.bias", tensor.new_zeros(tensor.shape[0]))
        elif kind == "bias" and not config.bias and part in family.zeros:
            del found[name]
    return found


def _turned(config: ModelConfig, family: Family, part: str, tensor: Tensor) -> Tensor:
    if family.halves and part in _PER_HEAD:
        return halves_from_pairs(tensor, config.head_width)
    return tensor


def _turned_back(config: ModelConfig, family: Family, part: str, tensor: Tensor, name: str) -> Tensor:
    if not family.halves or part not in _PER_HEAD:
        return tensor
    size = config.head_width
    if tensor.ndim == 0 or tensor.shape[0] % size:
        raise FledgeError(f"{name} has the shape {list(tensor.shape)}: heads of {size} do not fill it.")
    return pairs_from_halves(tensor, size)


def _fuse(config: ModelConfig, family: Family, pieces: list[Tensor]) -> Tensor:
    if family.fused == "rows" and pieces[0].is_meta:  # torch.cat would import for a second to find the same shape
        return pieces[0].new_empty((sum(map(len, pieces)), *pieces[0].shape[1:]))
    if family.fused == "rows":
        return torch.cat(pieces)
    return torch.stack([piece.reshape(config.heads, -1, *piece.shape[1:]) for piece in pieces], dim=1).flatten(0, 2)


def _unfuse(config: ModelConfig, family: Family, whole: Tensor, name: str) -> list[Tensor]:
    if whole.ndim == 0 or whole.shape[0] % (3 if family.fused == "rows" else 3 * config.heads):
        raise FledgeError(f"{name} has the shape {list(whole.shape)}: it does not hold three equal parts.")
    if family.fused == "rows":
        return [piece.contiguous() for piece in whole.chunk(3)]
    pieces = whole.reshape(config.heads, 3, -1, *whole.shape[1:]).unbind(1)
    return [
        _turned_back(config, family, f"attn.{letter}_proj", piece.flatten(0, 1).contiguous(), name)
        for letter, piece in zip("qkv", pieces, strict=True)
    ]


def _require_tied(head: Tensor, embeddings: Tensor | None) -> None:
    """A head beside embeddings that it is said to be one with must be so: some programs would use it, others not."""
    if embeddings is not None and not head.is_meta and not torch.equal(head, embeddings):
        raise FledgeError(
            "tie_word_embeddings is true, and lm_head.weight is another matrix than the embeddings. Set "
            "tie_word_embeddings to false in config.json to import it as it is, or remove lm_head.weight."
        )


def _split_name(name: str) -> tuple[str | None, str, str]:
    """The number of the layer, the part and `weight` or `bias`."""
    match = re.fullmatch(r"(?:layers\.(\d+)\.)?(.+)\.(weight|bias)", name)
    if match is None:
        raise FledgeError(f"{name} is not a weight of this model.")
    return match[1], match[2], match[3]


def halves_from_pairs(rows: Tensor, head_size: int) -> Tensor:
    """Rows of each head in half-split order: all even ones, then all odd ones."""
    return rows.reshape(-1, head_size // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def pairs_from_halves(rows: Tensor, head_size: int) -> Tensor:
    """The inverse of `halves_from_pairs`."""
    return rows.reshape(-1, 2, head_size // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
