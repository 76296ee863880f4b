"""The adapter to lm_eval: what it asks for, answered as a plain forward pass would; and small tasks from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fledge.bundle import Bundle, load_bundle, save_bundle
from fledge.cli.evaluate import write_tasks
from fledge.config import ModelConfig, RunConfig, SamplingConfig, TokensConfig
from fledge.errors import FledgeError
from fledge.evaluation.harness import answers, loglikelihoods, rolling_loglikelihoods, run_tasks, sampling_of, split_ids
from fledge.generation import generate
from fledge.model import build_model
from fledge.tokenizer import train_bpe

TEXT = b"In the beginning God created the heaven and the earth. And the earth was without form, and void. "


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    tokenizer = train_bpe([TEXT * 4], 290, ["<|endoftext|>"])
    config = RunConfig(model=ModelConfig(layers=1, width=32, heads=2), tokens=TokensConfig(context_length=16))
    torch.manual_seed(0)
    model = build_model(config.model, tokenizer.vocab_size, 16)
    return load_bundle(save_bundle(tmp_path_factory.mktemp("harness") / "bundle", config, tokenizer, model))


def logprob(bundle: Bundle, ids: list[int], count: int) -> float:
    with torch.inference_mode():
        scores = torch.log_softmax(bundle.model(torch.tensor([ids[:-1]]))[0], -1)
    return sum(float(scores[place - 1, ids[place]]) for place in range(len(ids) - count, len(ids)))


def test_loglikelihood_is_that_of_the_continuation(bundle: Bundle) -> None:
    tokenizer = bundle.tokenizer
    context, continuation = "In the beg", "inning"
    ids = tokenizer.encode(context + continuation)
    count = len(ids) - len(tokenizer.encode(context))
    (found, greedy), (spaced, _) = loglikelihoods(bundle, [(context, continuation), ("And ", "the")])
    assert found == pytest.approx(logprob(bundle, ids, count), abs=1e-4)
    assert isinstance(greedy, bool)
    assert spaced == pytest.approx(logprob(bundle, tokenizer.encode("And the"), 1), abs=1e-4)


def test_a_border_inside_a_token_and_an_empty_continuation_are_scored(bundle: Bundle) -> None:
    tokenizer = bundle.tokenizer
    joined = next(data.decode() for data in tokenizer.vocab.values() if len(data) == 2 and data.isalpha())
    (inside, _), (nothing, greedy) = loglikelihoods(bundle, [(joined[0], joined[1]), ("And the", "")])
    ids = [*tokenizer.encode(joined[0]), *tokenizer.encode(joined[1])]
    assert inside == pytest.approx(logprob(bundle, ids, len(tokenizer.encode(joined[1]))), abs=1e-4)
    assert (nothing, greedy) == (0.0, True)


def test_greedy_is_recognised(bundle: Bundle) -> None:
    tokenizer = bundle.tokenizer
    contexts = [f"And the{number}" for number in range(40)]
    for context in contexts:
        ids = tokenizer.encode(context)
        with torch.inference_mode():
            likeliest = int(bundle.model(torch.tensor([ids]))[0, -1].argmax())
        said = tokenizer.decode([likeliest])
        if tokenizer.encode(context + said) != [*ids, likeliest]:
            continue
        (_, greedy), (_, other) = loglikelihoods(bundle, [(context, said), (context, "~")])
        assert (greedy, other) == (True, False)
        return
    pytest.fail("no context with a likeliest token that is a text of its own")


def test_what_generate_writes_is_greedy(bundle: Bundle) -> None:
    """Scoring reads a context as writing does; without one, both begin a new document."""
    tokenizer, greedy = bundle.tokenizer, SamplingConfig(temperature=0, max_tokens=1)
    contexts = ["", *(f"And the {first}{last}" for first in "abehimnoprst" for last in "abehimnoprst")]
    found = generate(bundle.model, tokenizer, contexts, greedy)
    whole = [each for each in found if tokenizer.encode(each.prompt + each.text)[-1:] == each.ids]
    assert len(whole) > 3
    assert all(is_greedy for _, is_greedy in loglikelihoods(bundle, [(each.prompt, each.text) for each in whole]))


def test_all_likelihoods_are_of_the_whole_vocabulary(tmp_path: Path, bundle: Bundle) -> None:
    """Where a model has more ids than its tokenizer, as padded vocabularies do: the rest of the scores counts, too."""
    model = build_model(bundle.config.model, bundle.tokenizer.vocab_size + 50, 16)
    wide = load_bundle(save_bundle(tmp_path / "wide", bundle.config, bundle.tokenizer, model))
    (rolling,) = rolling_loglikelihoods(wide, ["And the"])
    assert loglikelihoods(wide, [("", "And the")])[0][0] == pytest.approx(rolling, abs=1e-4)


def test_a_request_that_is_repeated_gets_other_samples(bundle: Bundle) -> None:
    wish = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 8}
    found = answers(bundle, [("In", wish)] * 4 + [("And", wish)])
    assert len(set(found[:4])) == 4
    assert found == answers(bundle, [("In", wish)] * 4 + [("And", wish)])
    assert len(set(answers(bundle, [("In", {"max_gen_toks": 8})] * 3))) == 1


def test_texts_longer_than_the_context_keep_their_end(bundle: Bundle) -> None:
    context = " and void. " * 20
    before, after = split_ids(bundle, context, "And the")
    ids = (before + after)[-(bundle.model.context_length + 1) :]
    (found, _) = loglikelihoods(bundle, [(context, "And the")])[0]
    assert found == pytest.approx(logprob(bundle, ids, len(after)), abs=1e-4)


@pytest.mark.parametrize("context", ["", "And the earth was without form, and void. " * 4])
def test_every_token_of_a_long_continuation_counts(bundle: Bundle, context: str) -> None:
    """The first after as much as a window holds; the windows then move by half."""
    size, long = bundle.model.context_length, " and void." * 20
    before, after = split_ids(bundle, context, long)
    assert len(after) > 3 * size
    ids, start, total = before + after, max(0, len(before) - size), 0.0
    for place in range(len(before), len(ids)):
        moved = max(0, -(-(place - start - size) // (size // 2)))
        total += logprob(bundle, ids[start + moved * (size // 2) : place + 1], 1)
    assert loglikelihoods(bundle, [(context, long)])[0][0] == pytest.approx(total, abs=1e-3)


def test_rolling_loglikelihood_counts_every_token(bundle: Bundle) -> None:
    ids = bundle.tokenizer.encode("And the earth")
    long = "And the earth was without form, and void. " * 3
    short, longer = rolling_loglikelihoods(bundle, ["And the earth", long])
    assert short == pytest.approx(logprob(bundle, [0, *ids], len(ids)), abs=1e-4)
    assert longer < short


def test_answers_stop_where_the_task_says(bundle: Bundle) -> None:
    requests = [("And", {"until": ["e", "\n"], "max_gen_toks": 20}), ("In", {"until": "a", "max_gen_toks": 3})]
    first, second = answers(bundle, requests)
    assert "e" not in first
    assert "a" not in second
    assert sampling_of({"until": ["\n"], "temperature": 0.7, "do_sample": True}).temperature == 0.7
    assert sampling_of({"until": None}).temperature == 0


def test_a_task_s_wishes_are_followed_or_refused_with_a_sentence() -> None:
    asked = sampling_of({"do_sample": True, "top_k": 5, "top_p": 0.9})
    assert (asked.temperature, asked.top_k, asked.top_p) == (1, 5, 0.9)
    assert sampling_of({"temperature": 0.7, "top_k": 0}).top_k is None
    more = sampling_of(
        {"do_sample": True, "min_p": 0.3, "repetition_penalty": 1.5, "max_new_tokens": 3, "num_beams": 1}
    )
    assert (more.min_p, more.repetition_penalty, more.max_tokens) == (0.3, 1.5, 3)
    with pytest.warns(UserWarning, match="that fledge does not have: num_beams = 4, typo = 'x'"):
        sampling_of({"num_beams": 4, "typo": "x"})
    assert sampling_of({"do_sample": False, "temperature": 0.7, "top_k": 5}).temperature == 0
    for wrong, sentence in [
        ({"do_sample": True, "top_p": 0}, "top_p = 0 is not allowed"),
        ({"temperature": -0.5}, "temperature = -0.5 is not allowed"),
        ({"temperature": "warm"}, "temperature = 'warm' is not allowed"),
        ({"until": 5}, "stop = 5 is not allowed"),
        ({"max_gen_toks": -1}, "max_tokens = -1 is not allowed"),
        ({"max_gen_toks": 0}, "max_tokens = 0 is not allowed"),
    ]:
        with pytest.raises(FledgeError, match=f"The task's generation_kwargs: {sentence}"):
            sampling_of(wrong)


@pytest.mark.slow
def test_a_local_task_from_end_to_end(bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lm_eval")
    examples = [{"question": "And the earth was without", "choices": [" form", " void"], "answer": 0} for _ in range(4)]
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, examples)))
    common = (
        f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path}/examples.jsonl\ntest_split: test\n"
    )
    (tmp_path / "choice.yaml").write_text(
        f"task: fledge_choice\n{common}output_type: multiple_choice\n"
        'doc_to_text: "{{question}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: answer\ntarget_delimiter: ""\n'
        "metric_list:\n  - metric: acc\n"
    )
    (tmp_path / "rolling.yaml").write_text(
        f"task: fledge_rolling\n{common}output_type: loglikelihood_rolling\n"
        'doc_to_text: ""\ndoc_to_target: "{{question}}"\nmetric_list:\n  - metric: bits_per_byte\n'
    )
    (tmp_path / "writing.yaml").write_text(
        f"task: fledge_writing\n{common}output_type: generate_until\n"
        'doc_to_text: "{{question}}"\ndoc_to_target: "{{choices[0]}}"\n'
        'generation_kwargs:\n  until: ["."]\n  max_gen_toks: 5\n'
        "metric_list:\n  - metric: exact_match\n"
    )
    tasks = ["fledge_choice", "fledge_rolling", "fledge_writing"]
    whole = run_tasks({"bundle": bundle}, tasks, tmp_path)
    found = whole["bundle"]["results"]
    assert found["fledge_choice"]["acc,none"] in (0.0, 1.0)
    scores = loglikelihoods(bundle, [(examples[0]["question"], choice) for choice in (" form", " void")])
    assert found["fledge_choice"]["acc,none"] == float(scores[0][0] > scores[1][0])
    (total,) = rolling_loglikelihoods(bundle, [str(examples[0]["question"])])
    bits = -total / torch.log(torch.tensor(2.0)).item() / len(str(examples[0]["question"]).encode())
    assert found["fledge_rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
    assert "exact_match,none" in found["fledge_writing"]
    write_tasks(whole, as_json=False)
    assert "fledge_choice" in capsys.readouterr().out
    write_tasks(whole, as_json=True)
    assert json.loads(capsys.readouterr().out)["bundle"].keys() == set(tasks)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of lm_eval as naming tasks needs; an unknown one is a KeyError in it."""

    class TaskManager:
        def __init__(self, include_path: str | None = None) -> None:
            self.all_tasks = ["lambada_openai", "wikitext"]

    def simple_evaluate(tasks: list[str], task_manager: TaskManager, **options: Any) -> dict[str, Any]:
        return {"results": {{name: name for name in task_manager.all_tasks}[task]: {"acc": 1.0} for task in tasks}}

    parts: dict[str, dict[str, object]] = {
        "lm_eval": {"simple_evaluate": simple_evaluate},
        "lm_eval.api": {},
        "lm_eval.api.model": {"LM": object},
        "lm_eval.tasks": {"TaskManager": TaskManager},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("tasks", "folder", "sentence"),
    [
        (["nonexist"], None, "lm_eval has no task 'nonexist'. lm_eval's own command lists"),
        (["wikitext", "lambada_openia"], None, "Did you mean lambada_openai"),
        (["wikitext"], "nowhere", "nowhere is not a folder"),
    ],
)
def test_what_lm_eval_does_not_have_is_one_sentence(
    bundle: Bundle, tmp_path: Path, tasks: list[str], folder: str | None, sentence: str
) -> None:
    with pytest.raises(FledgeError, match=sentence):
        run_tasks({"bundle": bundle}, tasks, None if folder is None else tmp_path / folder)


@pytest.mark.usefixtures("stand_in")
def test_a_task_file_that_is_no_yaml_is_named(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\n  : [")
    with pytest.raises(FledgeError, match="mine.yaml is not YAML: .* Fix it"):
        run_tasks({"bundle": bundle}, ["mine"], tmp_path)


@pytest.mark.usefixtures("stand_in")
def test_what_lm_eval_fails_at_is_one_sentence(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def simple_evaluate(**options: Any) -> None:
        raise KeyError("doc_to_text")

    monkeypatch.setattr(sys.modules["lm_eval"], "simple_evaluate", simple_evaluate)
    with pytest.raises(
        FledgeError, match="lm_eval could not run wikitext .KeyError: 'doc_to_text'.. Fix the task's description"
    ):
        run_tasks({"bundle": bundle}, ["wikitext"])


@pytest.mark.usefixtures("stand_in")
def test_known_tasks_run(bundle: Bundle, tmp_path: Path) -> None:
    assert run_tasks({"bundle": bundle}, ["wikitext"], tmp_path) == {"bundle": {"results": {"wikitext": {"acc": 1.0}}}}
