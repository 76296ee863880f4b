"""Facts about `/v1/completions`, judged by the `openai` package itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fledge.config import load_recipe
from fledge.corpus import Corpus
from fledge.generation.burst import Bursts
from fledge.tokenizer import WordTokenizer, train_bpe
from fledge.tokens import TokenStore, write_store
from fledge.tokens.index import CopiedPassage, PassageIndex
from fledge.web.app import create_app
from tests.documentation import examples
from tests.web.conftest import serving
from tests.web.world import SMALL, TEXT, make_bundle

openai = pytest.importorskip("openai", reason="judged by the openai package")


@pytest.fixture
def api(address: str) -> Any:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same for a bundle whose tokenizer puts a token of its own before every text."""
    config = load_recipe("akjv-demo", [*SMALL, "tokenizer.kind=word"])
    folder = tmp_path_factory.mktemp("served")
    make_bundle(folder / "words", config, WordTokenizer.train([TEXT]), seed=1)
    with serving([folder]) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
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


def test_ids_need_no_token_that_begins_a_text(tmp_path: Path) -> None:
    tokenizer = train_bpe([TEXT.encode()] * 3, 300, [])
    make_bundle(tmp_path / "bare", load_recipe("akjv-demo", SMALL), tokenizer, seed=1)
    ids = tokenizer.encode("the egg")
    asked = {"model": "bare", "max_tokens": 4, "temperature": 0}
    with TestClient(create_app([tmp_path / "bare"]), base_url="http://127.0.0.1") as client:
        texts = [
            client.post("/v1/completions", json={"prompt": prompt, **asked}).json()["choices"][0]["text"]
            for prompt in (ids, [ids], "the egg")
        ]
        answer = client.post("/v1/completions", json={"prompt": [300], **asked})
        empty = client.post("/v1/completions", json={"prompt": "", **asked})
    assert len(set(texts)) == 1
    assert (answer.status_code, empty.status_code) == (400, 400)
    assert "The id 300 is not in this tokenizer" in answer.json()["error"]["message"]
    assert "The prompt is empty" in empty.json()["error"]["message"]


def test_several_prompts_are_written_in_recorded_steps(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does for the API and the page; here the same steps, unrecorded, on a CPU."""
    lengths: list[int] = []
    plain = Bursts.burst
    monkeypatch.setattr(Bursts, "fit", staticmethod(lambda *_: True))
    monkeypatch.setattr(Bursts, "burst", lambda self, length: (lengths.append(length), plain(self, length))[1])
    asked = {"model": "alpha", "prompt": ["the egg", "a", "And the hen said"], "max_tokens": 9, "logprobs": 2}
    answer = client.post("/v1/completions", json={**asked, "temperature": 0}).json()
    assert sum(lengths) == 8
    assert all(len(choice["logprobs"]["top_logprobs"]) == 9 for choice in answer["choices"])
    client.post("/api/generate", json={"bundle": "alpha", "prompt": "the egg", "max_tokens": 5, "stop": ["zzz"]})
    assert sum(lengths) == 8 + 4


def test_logprobs(api: Any) -> None:
    answer = api.completions.create(model="alpha", prompt="the egg", max_tokens=4, logprobs=3, temperature=0)
    choice = answer.choices[0]
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == answer.usage.completion_tokens
    assert all(len(top) <= 3 for top in choice.logprobs.top_logprobs)
    for chosen, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True):
        assert chosen == pytest.approx(max(top.values()))


@pytest.mark.parametrize("number", [0, 1])
def test_the_token_that_was_taken_is_always_among_the_likeliest(api: Any, number: int) -> None:
    asked = {"model": "alpha", "prompt": "the egg", "max_tokens": 30, "temperature": 2, "seed": 3}
    found = api.completions.create(**asked, logprobs=number).choices[0].logprobs
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == pytest.approx(logprob)
        assert len(top) <= number + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_token_stands_in_the_text_where_its_offset_says(api: Any, stream: bool) -> None:
    """Also behind tokens that hold a part of a character only, of which this model writes many."""
    asked = {"model": "alpha", "prompt": "the egg", "max_tokens": 60, "temperature": 2, "seed": 3, "logprobs": 0}
    answer = api.completions.create(**asked, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    text = "".join(choice.text for choice in choices)
    told = [choice.logprobs for choice in choices if choice.logprobs]
    tokens = [pair for part in told for pair in zip(part.tokens, part.text_offset, strict=True)]
    assert any(token.startswith("bytes:") for token, _ in tokens)
    for token, offset in tokens:
        assert token.startswith("bytes:") or text[offset : offset + len(token)] == token


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["the egg", "", ["a hen", ""]])
def test_an_echo_is_the_prompt_as_it_was_sent(api: Any, words: Any, prompt: Any, stream: bool) -> None:
    """Without the token that begins a text, which a model meets first."""
    for client, name in ((api, "alpha"), (words, "words")):
        asked = {"model": name, "prompt": prompt, "max_tokens": 2, "n": 2, "temperature": 0, "stream": stream}
        texts = ["", "", "", ""]
        echoed = client.completions.create(**asked, echo=True)
        for choice in (choice for part in (echoed if stream else [echoed]) for choice in part.choices):
            texts[choice.index] += choice.text
        for number, sent in enumerate([prompt] if isinstance(prompt, str) else prompt):
            alone = client.completions.create(**{**asked, "prompt": sent, "stream": False}).choices
            assert texts[2 * number : 2 * number + 2] == [sent + choice.text for choice in alone]


def test_an_echo_of_ids_is_their_text(api: Any, client: TestClient) -> None:
    tokens = client.post("/api/tokens", json={"text": "the egg", "tokenizers": ["alpha/checkpoints/step-00000200"]})
    ids = tokens.json()["results"][0]["ids"]
    answer = api.completions.create(model="alpha", prompt=ids, max_tokens=2, echo=True)
    assert answer.choices[0].text.startswith("the egg")


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
        ({"echo": True, "logprobs": 0}, "not offered with echo"),
    ],
)
def test_what_would_do_nothing_is_refused(api: Any, values: dict[str, Any], words: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError), match=words):
        api.completions.create(**{"model": "alpha", "prompt": "a", **values})


def test_what_asks_for_nothing_is_allowed(api: Any) -> None:
    neutral = {"suffix": "", "best_of": 1, "presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}}
    assert api.completions.create(model="alpha", prompt="a", max_tokens=1, **neutral).choices


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


def sources_of(folder: Path, **asked: Any) -> Any:
    values = {"model": "aaa/checkpoints/step-00000200", "prompt": "the egg", "temperature": 0, "max_tokens": 60}
    with TestClient(create_app([folder], rate=1e5), base_url="http://127.0.0.1:8765") as client:
        return client.post("/v1/completions", json={**values, "sources": True, **asked})


def test_a_completion_names_its_sources_where_it_is_asked_to(learned: Path) -> None:
    """At the end of a stream the same as at once; a text that is not asked about has none."""
    store = TokenStore.open(learned / "tokens")
    whole = sources_of(learned.parent, n=2).json()["choices"]
    again = [CopiedPassage(**source) for source in whole[0]["sources"]]
    assert again
    tokens, starts = store.split("train").tokens, store.split("train").documents
    for source in again:
        place = int(starts[source.document]) + source.place
        assert source.document == 1
        assert store.tokenizer.decode(tokens[place : place + source.length].tolist()) == source.text
    assert whole[1]["sources"] == whole[0]["sources"]
    lines = sources_of(learned.parent, stream=True).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    told = [choice["sources"] for event in events for choice in event["choices"]]
    assert told[-1] == whole[0]["sources"]
    assert not any(told[:-1])
    assert sources_of(learned.parent, sources=False).json()["choices"][0]["sources"] is None
    assert sources_of(learned.parent, sources="yes").status_code == 422


def test_sources_that_cannot_be_named_are_refused_in_a_sentence(learned: Path, tmp_path: Path) -> None:
    """Nothing outside the served folders is read, no index is made, and no path is told."""
    refused = sources_of(learned / "checkpoints", model="step-00000200")
    assert refused.status_code == 400
    assert "not beside it" in refused.json()["error"]["message"]
    copy = tmp_path / "runs" / "aaa"
    shutil.copytree(learned, copy)
    (copy / "tokens" / "train.bin").unlink()
    (copy / "tokens" / "train.bin").symlink_to(learned / "tokens" / "train.bin")
    assert "not beside it" in sources_of(copy.parent).json()["error"]["message"]
    shutil.rmtree(copy / "tokens")
    shutil.copytree(learned / "tokens", copy / "tokens", ignore=shutil.ignore_patterns("passages"))
    refused = sources_of(copy.parent)
    assert refused.status_code == 400
    assert "fledge generate RUN --sources" in refused.json()["error"]["message"]
    assert not (copy / "tokens" / "passages").exists()
    shutil.rmtree(copy / "tokens")
    other = write_store(
        Corpus.from_documents([TEXT.encode()]), WordTokenizer.train([TEXT]), copy / "tokens", progress=False
    )
    PassageIndex.of(other)
    message = sources_of(copy.parent).json()["error"]["message"]
    assert "no index of passages that fits" in message
    assert str(tmp_path) not in message
