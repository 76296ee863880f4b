"""Facts about `/v1/completions`, judged by the `openai` package itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.documentation import examples

openai = pytest.importorskip("openai", reason="judged by the openai package")


@pytest.fixture
def api(address: str) -> Any:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_bundles_are_models(api: Any) -> None:
    names = [model.id for model in api.models.list()]
    assert "alpha" in names
    assert "beta/checkpoints/step-00000120" in names


def test_a_completion(api: Any) -> None:
    answer = api.completions.create(model="alpha", prompt="the egg", max_tokens=10, seed=3)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens <= 10


def test_a_stream_gives_the_same_text(api: Any) -> None:
    asked = {"model": "alpha", "prompt": "the egg", "max_tokens": 20, "seed": 3}
    whole = api.completions.create(**asked).choices[0].text
    chunks = list(api.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
    assert chunks[-1].usage.completion_tokens > 0


def test_several_prompts_and_samples(api: Any) -> None:
    answer = api.completions.create(model="alpha", prompt=["the egg", "a hen"], n=2, max_tokens=5, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text != answer.choices[1].text
    alone = api.completions.create(model="alpha", prompt="a hen", n=2, max_tokens=5, seed=1)
    assert [choice.text for choice in alone.choices] == [choice.text for choice in answer.choices[2:]]


def test_prompts_as_ids(api: Any, client: TestClient) -> None:
    tokens = client.post("/api/tokens", json={"text": "the egg", "tokenizers": ["alpha/checkpoints/step-00000200"]})
    ids = tokens.json()["results"][0]["ids"]
    asked = {"model": "alpha", "max_tokens": 8, "temperature": 0}
    by_ids = api.completions.create(prompt=ids, **asked).choices[0].text
    assert by_ids == api.completions.create(prompt="the egg", **asked).choices[0].text


def test_logprobs_and_echo(api: Any) -> None:
    answer = api.completions.create(model="alpha", prompt="the egg", max_tokens=4, logprobs=3, echo=True, temperature=0)
    choice = answer.choices[0]
    assert choice.text.startswith("the egg")
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == answer.usage.completion_tokens
    assert all(len(top) <= 3 for top in choice.logprobs.top_logprobs)
    for chosen, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        assert chosen == pytest.approx(max(top.values()))


def test_without_a_seed_texts_differ(api: Any) -> None:
    texts = {api.completions.create(model="alpha", prompt="a", max_tokens=12).choices[0].text for _ in range(4)}
    assert len(texts) > 1


def test_a_stop_text_ends_the_completion(api: Any) -> None:
    asked = {"model": "alpha", "prompt": "the egg", "max_tokens": 30, "seed": 3}
    whole = api.completions.create(**asked).choices[0].text
    stop = next(c for c in whole[3:] if c != "\N{REPLACEMENT CHARACTER}")
    answer = api.completions.create(**asked, stop=stop)
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"presence_penalty": 1}, "presence_penalty: not offered"),
        ({"logit_bias": {"3": 1}}, "logit_bias: not offered"),
        ({"suffix": "x"}, "suffix: not offered"),
        ({"best_of": 3}, "best_of: not offered"),
        ({"extra_body": {"top_k": 3}}, "top_k is not a field"),
        ({"prompt": ["a"] * 20, "n": 10}, "more than 64 texts"),
    ],
)
def test_what_would_do_nothing_is_refused(api: Any, values: dict[str, Any], words: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError), match=words):
        api.completions.create(**{"model": "alpha", "prompt": "a", **values})


def test_what_asks_for_nothing_is_allowed(api: Any) -> None:
    neutral = {"suffix": "", "best_of": 1, "presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}}
    assert api.completions.create(model="alpha", prompt="a", max_tokens=1, **neutral).choices


def test_offsets_count_from_the_beginning_of_an_echoed_text(api: Any) -> None:
    choice = api.completions.create(model="alpha", prompt="the egg", max_tokens=2, logprobs=1, echo=True).choices[0]
    assert choice.text.startswith("the egg")
    assert choice.logprobs.text_offset[0] == len("the egg")


def test_a_model_by_its_name(api: Any) -> None:
    assert api.models.retrieve("alpha").id == "alpha"
    assert api.models.retrieve("beta/checkpoints/step-00000120").id == "beta/checkpoints/step-00000120"
    with pytest.raises(openai.NotFoundError, match="There is no bundle called 'gpt-9'"):
        api.models.retrieve("gpt-9")


def test_an_unknown_model_is_not_found(api: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="There is no bundle called 'gpt-9'"):
        api.completions.create(model="gpt-9", prompt="a")


def test_the_handbook_s_example_runs(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "workshop.md"
    [example] = [example for example in examples(page.read_text()) if example.language == "python"]
    code = example.code.replace("http://127.0.0.1:8765", address).replace('"akjv"', '"alpha"')
    exec(compile(code, str(page), "exec"), {})
    assert capsys.readouterr().out
