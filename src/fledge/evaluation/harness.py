"""A bundle as a model of `lm_eval`, so that its tasks run on it.

`lm_eval` asks three things: how likely continuations are, how likely whole texts are, and what the model would write.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fledge.bundle.fit import NOT_FINITE
from fledge.config import SamplingConfig, parse
from fledge.errors import FledgeError, note
from fledge.evaluation.losses import Window, token_losses, windows_over
from fledge.generation import generate
from fledge.generation.sampling import FILTERS
from fledge.progress import progress_bar
from fledge.tokens.store import end_token

if TYPE_CHECKING:
    from fledge.bundle import Bundle

ANSWERS_AT_ONCE = 32
PLAIN = {"num_beams": 1, "num_return_sequences": 1}  # wishes that everybody fulfils


def harness_model(bundle: Bundle) -> Any:
    """The bundle as an instance of `lm_eval.api.model.LM`.

    Texts of tasks are plain text: what looks like a special token in them does not become one.
    """
    try:
        from lm_eval.api.model import LM
    except ModuleNotFoundError:
        raise FledgeError("Tasks need lm_eval: pip install lm_eval") from None

    class BundleModel(LM):  # type: ignore[misc]  # lm_eval has no types
        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            return loglikelihoods(bundle, [request.args for request in requests], progress=True)

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            return rolling_loglikelihoods(bundle, [request.args[0] for request in requests], progress=True)

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return answers(bundle, [request.args for request in requests], progress=True)

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
            logits = model.head(hidden).float()
            targets = torch.tensor(ids[scored : window.end], device=device)
            total += float(torch.log_softmax(logits, -1).gather(1, targets[:, None]).sum())
            likeliest = logits[:, : bundle.tokenizer.vocab_size].argmax(-1)  # what has no token is never written
            greedy = greedy and bool((likeliest == targets).all())
    if not isfinite(total):
        raise FledgeError(NOT_FINITE)
    return total, greedy


def split_ids(bundle: Bundle, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The ids of both parts as they are in the joined text; spaces at the border belong to the continuation.

    A context is read as `generate` reads a prompt: after the start token of a tokenizer with one of its own. What
    follows nothing follows the separator of the document before.
    """
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, continuation = context[:-spaces], context[-spaces:] + continuation
    tokenizer = bundle.tokenizer
    own = tokenizer.roles.own_start
    start = first_ids(bundle) if not context else [] if own is None else [own]
    before = tokenizer.encode(context, special="text")
    whole = tokenizer.encode(context + continuation, special="text")
    if len(whole) <= len(before):  # the border lies in the middle of a token
        return [*start, *before], tokenizer.encode(continuation, special="text")
    return [*start, *whole[: len(before)]] if before else start, whole[len(before) :]


def first_ids(bundle: Bundle) -> list[int]:
    """What stands before a text: a start token, or the separator of the document before."""
    roles = bundle.tokenizer.roles
    start = roles.start if roles.start is not None else end_token(roles)
    return [] if start is None else [start]


def rolling_loglikelihoods(bundle: Bundle, texts: Sequence[str], progress: bool = False) -> list[float]:
    """The log-probability of each text, every token predicted once from as much of the text as the context holds."""
    start = first_ids(bundle)
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
    asked: Counter[tuple[str, str]] = Counter()
    groups: dict[tuple[str, int], list[int]] = {}
    for number, (context, options) in enumerate(requests):
        wishes = json.dumps(options, sort_keys=True, default=str)
        groups.setdefault((wishes, asked[wishes, context]), []).append(number)
        asked[wishes, context] += 1
    with progress_bar("Writing", len(requests), unit="answers", scale=1, shown=progress) as bar:
        for (_, again), numbers in groups.items():
            # A task that asks the same thing several times wants several samples.
            sampling = sampling_of(requests[numbers[0]][1]).model_copy(update={"seed": again})
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
    given = {name: value for name, value in options.items() if value is not None}
    until, temperature = given.pop("until", ()), given.pop("temperature", None)
    stops = [stop for stop in until if stop] if isinstance(until, list | tuple) else until
    lengths = [given.pop(name) for name in ("max_gen_toks", "max_new_tokens") if name in given]
    values = {"max_tokens": lengths[0] if lengths else 256, "stop": stops}
    values["repetition_penalty"] = given.pop("repetition_penalty", 1.0)
    filters = {name: given.pop(name, None) for name in FILTERS}
    if given.pop("do_sample", bool(temperature)):
        values |= {**filters, "temperature": 1.0 if temperature is None else temperature}
        values["top_k"] = filters["top_k"] or None  # 0 is all of them, as transformers has it
        values["min_p"] = filters["min_p"] or None
    else:
        values["temperature"] = 0.0
    given = {name: value for name, value in given.items() if PLAIN.get(name, ...) != value}
    if given:
        shown = ", ".join(f"{name} = {value!r:.40}" for name, value in given.items())
        note(f"The task's generation_kwargs contain options that fledge does not have: {shown}.")
    return parse(SamplingConfig, values, where="The task's generation_kwargs")


def run_tasks(
    bundles: Mapping[str, Bundle], tasks: Sequence[str], folder: Path | None = None, limit: int | None = None
) -> dict[str, Any]:
    """What `lm_eval` finds for every bundle on its tasks; `folder` holds further task descriptions."""
    if folder is not None and not folder.is_dir():
        raise FledgeError(f"--task-folder {folder} is not a folder. Name the folder with the tasks' YAML files.")
    models = {name: harness_model(bundle) for name, bundle in bundles.items()}
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder) if folder is not None else None)
    known = set(manager.all_tasks)
    for task in tasks:
        if task not in known:
            require_yaml(folder)
            close = difflib.get_close_matches(task, known, n=3)  # they are thousands: not all of them are named
            hint = f"Did you mean {' or '.join(close)}?" if close else "lm_eval's own command lists what it has."
            raise FledgeError(f"lm_eval has no task {task!r}. {hint} For tasks of your own, give --task-folder.")
    results = {}
    for name, model in models.items():
        try:
            results[name] = simple_evaluate(
                model=model, tasks=list(tasks), task_manager=manager, limit=limit, bootstrap_iters=1000
            )
        except (FledgeError, OSError, MemoryError):
            raise
        except Exception as error:  # a library of others, on a description that may be wrong in any way
            reason = " ".join(str(error).split()) or type(error).__name__
            raise FledgeError(
                f"lm_eval could not run {', '.join(tasks)} ({type(error).__name__}: {reason:.300}). Fix the "
                "task's description; --debug shows where it failed."
            ) from error
    return results


def require_yaml(folder: Path | None) -> None:
    """Name the file with a mistake in its YAML, which lm_eval passes over without a word."""
    import yaml

    for path in sorted(folder.rglob("*.yaml")) if folder is not None else ():
        try:
            yaml.compose(path.read_bytes())
        except yaml.YAMLError as error:
            raise FledgeError(f"{path} is not YAML: {' '.join(str(error).split()):.300}. Fix it.") from None
