"""Sampling settings as other programs keep them: `generation_config.json` of a Hugging Face folder, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.config import RunConfig, SamplingConfig, parse
from fledge.errors import FledgeError, note
from fledge.files import read_json

if TYPE_CHECKING:
    from fledge.tokenizer import Tokenizer

GENERATION = "generation_config.json"
OURS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "stop_strings": "stop",
}
OFF = {"top_k": 0, "top_p": 1, "min_p": 0}  # how their files say that nothing is filtered
# What changes no token, is the tokenizer's or the model's own, or has been looked at already.
SILENT = {"transformers_version", "bos_token_id", "pad_token_id", "eos_token_id", "do_sample", "use_cache"}

_USUAL = SamplingConfig().model_dump()


def hub_sampling(config: RunConfig, context_length: int) -> dict[str, Any]:
    """The settings in their names; what was set and is not written is said in one line.

    A length that the context has no room for becomes the context's own. Stop strings stay here: transformers refuses to
    generate with them unless it is handed a tokenizer each time.
    """
    sampling = config.sampling
    found: dict[str, Any] = {"do_sample": sampling.temperature > 0}
    # transformers crashes past the last learned position: half of them are left to the prompt.
    room = context_length // 2 if config.model.position == "learned" else context_length - 1
    if sampling.max_tokens <= room:
        found["max_new_tokens"] = sampling.max_tokens
    else:
        found["max_length"] = context_length
    if sampling.temperature > 0:
        found["temperature"] = sampling.temperature
        found["top_k"] = sampling.top_k or 0
        found["top_p"] = sampling.top_p or 1.0
        if sampling.min_p is not None:
            found["min_p"] = sampling.min_p
    if sampling.repetition_penalty != 1:
        found["repetition_penalty"] = sampling.repetition_penalty
    written = {OURS[name] for name in found.keys() & OURS.keys()}
    left = {name: value for name, value in sampling if name not in written and value != _USUAL[name]}
    if shown := [f"{name} = {value!r:.40}" for name, value in sorted(left.items()) if name != "temperature"]:
        note(f"Not written to {GENERATION}: sampling.{', sampling.'.join(shown)}. Give them when you generate text.")
    return found


def sampling_from_hub(folder: Path, tokenizer: Tokenizer, context_length: int) -> SamplingConfig:
    """The sampling settings of a Hugging Face folder, ours where it has none; what is not taken is said in one line."""
    path = folder / GENERATION
    if not path.is_file():
        return SamplingConfig()
    values = read_json(path)
    if not isinstance(values, dict):
        raise FledgeError(f"{path} is not a table of settings. Fix it, or remove it to import without it.")
    taken: dict[str, Any] = {}
    left: dict[str, str] = {}
    for name, value in values.items():
        if value is None or value is False or name in SILENT or name.startswith("_"):
            continue
        if name == "max_length":
            if value != context_length and "max_new_tokens" not in values:
                left[name] = "it counts the prompt, too: set sampling.max_tokens"
        elif name not in OURS:
            left[name] = "there is no such setting here"
        elif not (name in OFF and value == OFF[name]):
            left |= _take(taken, name, value)
    if values.get("do_sample") is False:
        taken["temperature"] = 0.0
    left |= _other_end(values, tokenizer)
    if left:
        shown = "; ".join(f"{name} = {values[name]!r:.40} ({why})" for name, why in left.items())
        note(f"Not taken from {path}: {shown}.")
    return SamplingConfig(**taken)


def _take(taken: dict[str, Any], name: str, value: Any) -> dict[str, str]:
    """Add a value that is allowed here; else say why it is not."""
    try:
        if isinstance(value, bool) or (isinstance(value, str) and OURS[name] != "stop"):
            raise FledgeError("is not allowed: it must be a number.")
        parse(SamplingConfig, {OURS[name]: value})
    except FledgeError as error:
        return {name: str(error).partition("is not allowed: ")[2].rstrip(".") or "it is not allowed here"}
    taken[OURS[name]] = value
    return {}


def _other_end(values: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """An end of text that is not the tokenizer's, whose end token is what generation stops at here."""
    given, end = values.get("eos_token_id"), tokenizer.roles.end
    if given is None or given == end or given == [end]:
        return {}
    return {"eos_token_id": "the tokenizer has no end token" if end is None else f"the tokenizer's end token is {end}"}
