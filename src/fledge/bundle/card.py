"""The model card: a README.md in every bundle, so that whoever finds the folder knows what it is and how to use it.

It is for people alone: no checksum covers it, and editing it breaks nothing.
"""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from fledge.bundle.manifest import Manifest
from fledge.config import RunConfig

CARD = "README.md"
TUNED = "tuned_from"  # the metric of a model that began with the weights of another one
IMPORTED = "imported_from"  # the metric of a model that another program trained: its settings do not say how


class HubCard(NamedTuple):
    """What the card of a model on a hub tells beside: where it is, and which files lie beside it."""

    repository: str
    settings: str
    curve: str | None
    format: str
    code: str | None
    "The model's own code, where transformers has none."


def model_card(config: RunConfig, manifest: Manifest, hub: HubCard | None = None) -> bytes:
    """Markdown with a YAML head that model hubs read; bytes of a file's name that are no text are spelled out."""
    source = imported_from(manifest)
    rows = {**model_rows(config, manifest), **training_rows(config, manifest), **plain_metrics(manifest)}
    tuned = "It was not tuned to follow instructions."
    if source is not None:
        tuned = "What that was, and whether it was tuned to follow instructions, is not known here."
    prompt = config.sampling.prompt or ("In the beginning" if config.corpus.source == ("akjv",) else "")
    begin = f" --prompt {shlex.quote(' '.join(prompt.split()))}" if prompt.strip() else ""
    table = "\n".join(f"| {name} | {markdown_cell(value)} |" for name, value in rows.items())
    place = "." if hub is None else f"hf://{hub.repository}"
    library = "transformers" if hub is not None and hub.format == "huggingface" else "fledge"
    what = "A language model in a fledge bundle: weights, tokenizer and settings in one folder."
    if library == "transformers":
        what = "A language model trained with [fledge](https://pypi.org/project/fledge-lm/), for transformers too."
    text = f"""---
library_name: {library}
pipeline_tag: text-generation
tags: [fledge, {config.model.architecture}]
---

# {markdown_cell(config.name)}

{what}

| | |
|---|---|
{table}
{_curve(hub)}
```
fledge generate {place}{begin}
fledge evaluate {place} --text your.txt
fledge bundle show {place}
```

```python
import fledge

run = fledge.load("{place}")
```
{_elsewhere(hub)}
The model repeats what its corpus taught it, mistakes and prejudices included. {tuned}
"""
    return text.encode("utf-8", "backslashreplace")


def _curve(hub: HubCard | None) -> str:
    return f"\n![The loss while it was trained]({hub.curve})\n" if hub is not None and hub.curve else ""


def _elsewhere(hub: HubCard | None) -> str:
    """How to use a model of the hub without fledge, and how to train it again."""
    if hub is None:
        return ""
    again = f"\nTrained with the settings in `{hub.settings}`: `fledge train {hub.settings}` trains it again.\n"
    if hub.format != "huggingface":
        return again
    trust = ", trust_remote_code=True" if hub.code else ""
    read = f"\nIts code is `{hub.code}`: read it before you trust it.\n" if hub.code else ""
    return f"""
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{hub.repository}"{trust})
tokenizer = AutoTokenizer.from_pretrained("{hub.repository}"{trust})
```
{read}{again}"""


def model_rows(config: RunConfig, manifest: Manifest) -> dict[str, str]:
    """What the model is, as its card and `fledge bundle show` say it."""
    model, facts = config.model, manifest.model
    shape = f"{model.architecture}, {model.layers} layers, {model.width} wide"
    if model.architecture == "transformer":
        shape += f", {model.heads} heads, {model.norm} norm, {model.position} positions, {model.feed_forward}"
    return {
        "model": shape,
        "parameters": f"{facts.parameters:,}",
        "precision": facts.dtype,
        "context": f"{facts.context_length:,} tokens",
        "tokenizer": f"{manifest.tokenizer.kind}, {manifest.tokenizer.vocabulary_size:,} ids",
        "written": f"{manifest.created} with {', '.join(f'{k} {v}' for k, v in manifest.software.items())}",
    }


def training_rows(config: RunConfig, manifest: Manifest) -> dict[str, str]:
    """How it was trained: from which text or tokens, in what steps; of an imported model that is not known."""
    source = imported_from(manifest)
    if source is not None:
        return {"imported from": source, "training": "not known: the model was trained elsewhere"}
    tokens, optimizer = config.tokens, config.optimizer
    given = {"corpus": ", ".join(config.corpus.source)} if tokens.store is None else {"token store": tokens.store}
    origin = manifest.metrics.get(TUNED)
    return {
        **({"begun from": origin} if isinstance(origin, str) else {}),
        **given,
        "windows": f"{tokens.context_length} tokens, {tokens.policy}, {config.training.batch_size} a step",
        "optimizer": f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, {config.schedule.name}",
        "seed": str(config.training.seed),
    }


def imported_from(manifest: Manifest) -> str | None:
    """The name of the folder that a model was imported from; None for one that fledge trained."""
    name = manifest.metrics.get(IMPORTED)
    return name if isinstance(name, str) else None


def plain_metrics(manifest: Manifest) -> dict[str, str]:
    """What was measured, as people read it."""
    told = (IMPORTED, TUNED)  # elsewhere
    return {n: readable_metric(value) for n, value in manifest.metrics.items() if n not in told and is_plain(value)}


def is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def readable_metric(value: Any) -> str:
    """A metric as people write it.

    >>> readable_metric(3.14159265), readable_metric(1500), readable_metric("akjv")
    ('3.142', '1,500', 'akjv')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown_cell(text: str) -> str:
    """Text that can't break out of a Markdown table or heading."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
