"""The model card: a README.md in every bundle, so that whoever finds the folder knows what it is and how to use it.

It is for people alone: no checksum covers it, and editing it breaks nothing.
"""

from __future__ import annotations

from typing import Any

from fledge.bundle.manifest import Manifest
from fledge.config import RunConfig

CARD = "README.md"
IMPORTED = "imported_from"  # the metric of a model that another program trained: its settings do not say how


def model_card(config: RunConfig, manifest: Manifest) -> str:
    """Markdown with a YAML head that model hubs read."""
    model, optimizer, facts = config.model, config.optimizer, manifest.model
    shape = f"{model.layers} layers, {model.width} wide"
    if model.architecture == "transformer":
        shape += f", {model.heads} heads, {model.norm} norm, {model.position} positions, {model.feed_forward}"
    source = imported_from(manifest)
    rows = {
        "architecture": f"{model.architecture} ({shape})",
        "parameters": f"{facts.parameters:,} ({facts.dtype})",
        "context": f"{facts.context_length:,} tokens",
        "tokenizer": f"{manifest.tokenizer.kind}, {manifest.tokenizer.vocabulary_size:,} ids",
    }
    if source is None:
        rows |= {
            "corpus": ", ".join(config.corpus.source),
            "optimizer": f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, {config.schedule.name}",
            "batch": f"{config.training.batch_size} × {config.tokens.context_length} tokens",
            "seed": str(config.training.seed),
        }
    else:
        rows |= {"training": f"not known: imported from {source}"}
    rows |= {
        "written": f"{manifest.created} by fledge {manifest.software['fledge']}, torch {manifest.software['torch']}"
    }
    rows |= plain_metrics(manifest)
    tuned = "It was not tuned to follow instructions."
    if source is not None:
        tuned = "What that was, and whether it was tuned to follow instructions, is not known here."
    table = "\n".join(f"| {name} | {cell(value)} |" for name, value in rows.items())
    return f"""---
library_name: fledge
pipeline_tag: text-generation
tags: [fledge, {model.architecture}]
---

# {cell(config.name)}

A language model in a fledge bundle: weights, tokenizer and settings in one folder.

| | |
|---|---|
{table}

```
fledge generate . --prompt "In the beginning"
fledge evaluate . --text your.txt
fledge bundle show .
```

```python
import fledge

run = fledge.load(".")
```

The model repeats what its corpus taught it, mistakes and prejudices included. {tuned}
"""


def imported_from(manifest: Manifest) -> str | None:
    """The name of the folder that a model was imported from; None for one that fledge trained."""
    name = manifest.metrics.get(IMPORTED)
    return name if isinstance(name, str) else None


def plain_metrics(manifest: Manifest) -> dict[str, str]:
    """What was measured, as people read it."""
    return {n: readable(value) for n, value in manifest.metrics.items() if n != IMPORTED and is_plain(value)}


def is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def readable(value: Any) -> str:
    """A metric as people write it.

    >>> readable(3.14159265), readable(1500), readable("akjv")
    ('3.142', '1,500', 'akjv')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def cell(text: str) -> str:
    """Text that can't break out of a Markdown table or heading."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
