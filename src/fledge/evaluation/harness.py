"""A bundle as a model of `lm_eval`, so that its tasks run on it.

`lm_eval` asks three things: how likely continuations are, how likely whole texts are, and what the model would write.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.bundle.fit import NOT_FINITE
from fledge.config import SamplingConfig, parse
from fledge.errors import FledgeError
from fledge.evaluation.losses import Window, token_losses, windows_over
from fledge.generation import generate
from fledge.progress import progress_bar
from fledge.tokens.store import end_token

if TYPE_CHECKING:
    from fledge.bundle import Bundle

ANSWERS_AT_ONCE = 32


def harness_model(bundle: Bundle, progress: bool = True) -> Any:
    """The bundle as an instance of `lm_eval.api.model.LM`.

    Texts of tasks are plain text: what looks like a special token in them does not become one.
    """
    try:
        from lm_eval.api.model import LM
    except ModuleNotFoundError:
        raise FledgeError("Tasks need lm_eval: pip install lm_eval") from None

    class BundleModel(LM):  # type: ignore[misc]  # lm_eval has no types
        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            return loglikelihoods(bundle, [request.args for request in requests], progress)

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            return rolling_loglikelihoods(bundle, [request.args[0] for request in requests], progress)

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return answers(bundle, [request.args for request in requests], progress)

    return BundleModel()


def loglikelihoods(
    bundle: Bundle, pairs: Sequence[tuple[str, str]], progress: bool = False
) -> list[tuple[float, bool]]:
    """For each (context, continuation): the log-probability of the latter, and whether greedy text would be it."""
    found: list[tuple[float, bool]] = []
    with progress_bar("Scoring", len(pairs), unit="requests", scale=1, shown=progress) as bar:
        for context, continuation in pairs:
            before, after = split_ids(bundle, context, continuation)
            found.append(score(bundle, before + after, len(before)))
            bar.advance(1)
    return found


def score(bundle: Bundle, ids: Sequence[int], first: int) -> tuple[float, bool]:
    """The log-probability of the ids from place `first` on, and whether each of them is the likeliest."""
    import torch

    model, size = bundle.model, bundle.model.context_length
    device = next(model.parameters()).device
    first = max(1, first)  # nothing stands before the very first token
    if first >= len(ids):
        return 0.0, True
    # What fits into one window is read in one, as lm_eval does; more than that in several, the first of them full.
    start = len(ids) - size - 1 if len(ids) - first <= size else first - size
    total, greedy = 0.0, True
    with torch.inference_mode():
        for window in windows_over([max(0, start)], [len(ids)], size, max(1, size // 2)):
            scored = max(first, window.scored)
            inputs = torch.tensor([ids[window.start : window.end - 1]], device=device)
            hidden = model.hidden(inputs)[0][0, scored - window.start - 1 :]
            logits = model.head(hidden)[:, : bundle.tokenizer.vocab_size].float()
            targets = torch.tensor(ids[scored : window.end], device=device)
            total += float(torch.log_softmax(logits, -1).gather(1, targets[:, None]).sum())
            greedy = greedy and bool((logits.argmax(-1) == targets).all())
    if not isfinite(total):
        raise FledgeError(NOT_FINITE)
    return total, greedy


def split_ids(bundle: Bundle, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The ids of both parts as they are in the joined text; spaces at the border belong to the continuation."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    tokenizer = bundle.tokenizer
    start = beginning(bundle)
    before = tokenizer.encode(context, special="text")
    whole = tokenizer.encode(context + continuation, special="text")
    if len(whole) <= len(before):  # the border lies in the middle of a token
        return [*start, *before], tokenizer.encode(continuation, special="text")
    return [*start, *whole[: len(before)]] if before else start, whole[len(before) :]


def beginning(bundle: Bundle) -> list[int]:
    """What stands before a text: a start token, or the separator of the document before."""
    roles = bundle.tokenizer.roles
    start = roles.start if roles.start is not None else end_token(roles)
    return [] if start is None else [start]


def rolling_loglikelihoods(bundle: Bundle, texts: Sequence[str], progress: bool = False) -> list[float]:
    """The log-probability of each text, every token predicted once from as much of the text as the context holds."""
    start = beginning(bundle)
    stretches = [[*start, *bundle.tokenizer.encode(text, special="text")] for text in texts]
    ends = np.cumsum([len(ids) for ids in stretches])
    starts = ends - [len(ids) for ids in stretches]
    tokens = np.array([token for ids in stretches for token in ids])
    context = bundle.model.context_length
    windows: list[Window] = list(windows_over(starts.tolist(), ends.tolist(), context, max(1, context // 2)))
    found = token_losses(bundle.model, tokens, windows, progress=progress)
    owners = np.searchsorted(starts, found.places, side="right") - 1
    sums = np.bincount(owners, weights=found.nats, minlength=len(texts))
    return [-float(total) for total in sums]


def answers(bundle: Bundle, requests: Sequence[tuple[str, dict[str, Any]]], progress: bool = False) -> list[str]:
    """What the model writes after each context, up to the texts at which the task wants it to stop."""
    found = [""] * len(requests)
    groups: dict[str, list[int]] = {}
    for number, (_, options) in enumerate(requests):
        groups.setdefault(json.dumps(options, sort_keys=True, default=str), []).append(number)
    with progress_bar("Writing", len(requests), unit="answers", scale=1, shown=progress) as bar:
        for numbers in groups.values():
            sampling = sampling_of(requests[numbers[0]][1])
            for first in range(0, len(numbers), ANSWERS_AT_ONCE):
                part = numbers[first : first + ANSWERS_AT_ONCE]
                contexts = [requests[number][0] for number in part]
                for number, result in zip(
                    part, generate(bundle.model, bundle.tokenizer, contexts, sampling), strict=True
                ):
                    found[number] = result.text
                bar.advance(len(part))
    return found


def sampling_of(options: Mapping[str, Any]) -> SamplingConfig:
    """A task's wishes as our settings; it means greedy text unless it asks for samples."""
    until, temperature = options.get("until") or (), options.get("temperature")
    stops = [stop for stop in until if stop] if isinstance(until, list | tuple) else until
    values = {"max_tokens": options.get("max_gen_toks") or 256, "stop": stops}
    if options.get("do_sample", bool(temperature)):
        values |= {"temperature": 1.0 if temperature is None else temperature, "top_p": options.get("top_p")}
        values["top_k"] = options.get("top_k") or None  # 0 is all of them, as transformers has it
    else:
        values["temperature"] = 0.0
    return parse(SamplingConfig, values, where="The task's generation_kwargs")


def run_tasks(
    bundles: Mapping[str, Bundle],
    tasks: Sequence[str],
    folder: Path | None = None,
    limit: int | None = None,
    as_json: bool = False,
) -> dict[str, Any]:
    """Run tasks of `lm_eval` on every bundle and print its tables; `folder` holds further task descriptions."""
    if folder is not None and not folder.is_dir():
        raise FledgeError(f"--task-folder {folder} is no folder. Name the one that holds the tasks' YAML files.")
    models = {name: harness_model(bundle) for name, bundle in bundles.items()}
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    manager = TaskManager(include_path=str(folder) if folder is not None else None)
    known = set(manager.all_tasks)
    for task in tasks:
        if task not in known:
            close = difflib.get_close_matches(task, known, n=3)  # they are thousands: not all of them are named
            hint = f"Did you mean {' or '.join(close)}?" if close else "lm_eval's own command lists what it has."
            raise FledgeError(f"lm_eval has no task {task!r}. {hint} Your own are found with --task-folder.")
    results = {}
    for name, model in models.items():
        found = simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, limit=limit, bootstrap_iters=1000)
        results[name] = found["results"]
        if not as_json:
            print(name)
            print(make_table(found))
    if as_json:
        print(json.dumps(results, indent=2, default=str))
    return results
