"""The decode loop against the plainest one there is: the whole text through the model again for every token."""

from __future__ import annotations

import itertools
import math
import tracemalloc
import warnings
from collections import Counter

import pytest
import torch
from torch.nn import functional

from fledge.config import SamplingConfig, parse
from fledge.errors import FledgeError, notes_kept
from fledge.generation import Generation, Piece, generate
from fledge.generation.generate import Decoding
from fledge.generation.sampling import uniforms
from fledge.generation.step import NativeStep
from fledge.model import Model
from fledge.tokenizer import Tokenizer
from tests.generation.conftest import CONTEXT, small_model

PROMPTS = ["In the beg", "And", "The heaven and the earth w"]


def naive_greedy(model: Model, ids: list[int], count: int) -> list[int]:
    """Full forward passes, no state."""
    ids, start = list(ids), len(ids)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[start:]


def greedy(count: int, **options: object) -> SamplingConfig:
    return SamplingConfig(temperature=0, max_tokens=count, stop_at_end=False, **options)


def test_greedy_text_equals_full_forward_passes(model: Model, tokenizer: Tokenizer) -> None:
    for prompt, result in zip(PROMPTS, generate(model, tokenizer, PROMPTS, greedy(6)), strict=True):
        ids = tokenizer.encode(prompt)
        assert result.ids == naive_greedy(model, ids, 6)
        assert result.text == tokenizer.decode(result.ids)
        assert result.stopped == "length"


def test_a_row_does_not_depend_on_its_batch(model: Model, tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(temperature=1.0, max_tokens=8, samples=2, seed=5)
    together = generate(model, tokenizer, PROMPTS, sampling)
    alone = [result for prompt in PROMPTS for result in generate(model, tokenizer, [prompt], sampling)]
    assert [result.ids for result in together] == [result.ids for result in alone]
    assert [result.prompt for result in together] == [prompt for prompt in PROMPTS for _ in range(2)]


def test_a_seed_gives_the_same_text_on_every_run(rope: Model, tokenizer: Tokenizer) -> None:
    def texts(seed: int) -> list[str]:
        sampling = SamplingConfig(temperature=1.0, max_tokens=12, samples=3, seed=seed)
        return [result.text for result in generate(rope, tokenizer, ["In"], sampling)]

    torch.manual_seed(123)
    first = texts(1)
    torch.manual_seed(456)  # the global generator is not asked
    assert texts(1) == first
    assert texts(2) != first
    assert len(set(first)) == 3


def test_numbers_drawn_as_they_are_needed_are_the_same_numbers(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model("gru", tokenizer)
    sampling = SamplingConfig(temperature=1.2, max_tokens=60, samples=8, seed=3)

    def texts(block: int) -> list[list[int]]:
        monkeypatch.setitem(Decoding._decode_singly.__globals__, "NUMBERS", block)
        return [result.ids for result in generate(model, tokenizer, ["In", "And the"], sampling)]

    at_once = texts(1 << 20)
    assert len({len(ids) for ids in at_once}) > 1  # some have ended, and left the batch
    assert texts(7) == at_once


def test_a_limit_that_is_never_reached_costs_nothing(tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(temperature=1.0, max_tokens=1 << 24, samples=64)
    session = Decoding(small_model("gru", tokenizer), tokenizer, ["In"], sampling)
    tracemalloc.start()
    next(session.pieces())
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_tokens", 2**70, "at least 1 and at most 16777216"),
        ("max_tokens", 3_000_000_000, "at least 1 and at most 16777216"),
        ("samples", 1_000_000_000, "at least 1 and at most 65536"),
        ("seed", 2**64 - 1, "at least 0 and below 9223372036854775808"),
        ("seed", 2**128, "at least 0 and below 9223372036854775808"),
    ],
)
def test_what_no_machine_could_do_is_refused(name: str, value: int, allowed: str) -> None:
    with pytest.raises(FledgeError, match=f"{name} = {value} is not allowed: it must be {allowed}"):
        parse(SamplingConfig, {name: value})


def test_first_tokens_follow_the_model(rope: Model, tokenizer: Tokenizer) -> None:
    """Many samples of one token are distributed as the model says (chi-square over the likeliest ones)."""
    samples = 4000
    sampling = SamplingConfig(temperature=1.0, max_tokens=1, samples=samples, stop_at_end=False)
    counts = Counter(result.ids[0] for result in generate(rope, tokenizer, ["And the"], sampling))
    with torch.inference_mode():
        probabilities = torch.softmax(rope(torch.tensor([tokenizer.encode("And the")]))[0, -1], -1)
    likely = [token for token in range(tokenizer.vocab_size) if probabilities[token] * samples >= 5]
    wanted = {token: float(probabilities[token]) * samples for token in likely}
    rest = samples - sum(wanted.values())
    statistic = sum((counts[token] - count) ** 2 / count for token, count in wanted.items())
    statistic += (samples - sum(counts[token] for token in likely) - rest) ** 2 / max(rest, 1)
    freedom = len(likely)
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_logprobs_are_the_models_own(rope: Model, tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(temperature=1.7, top_k=5, max_tokens=6, seed=2, repetition_penalty=1.3)
    result = generate(rope, tokenizer, ["In the"], sampling, alternatives=3)[0]
    ids = tokenizer.encode("In the") + result.ids
    with torch.inference_mode():
        logprobs = torch.log_softmax(rope(torch.tensor([ids]))[0].float(), -1)
    start = len(ids) - len(result.ids) - 1
    for place, (token, logprob, others) in enumerate(
        zip(result.ids, result.logprobs, result.alternatives, strict=True), start=start
    ):
        assert logprob == pytest.approx(float(logprobs[place, token]), abs=1e-4)
        best = logprobs[place].topk(3)
        assert [other.id for other in others] == best.indices.tolist()
        assert [other.logprob for other in others] == pytest.approx(best.values.tolist(), abs=1e-4)


def force(model: Model, ids: list[int]) -> None:
    """Make the model say these ids one after the other, whatever came before: each token points to the next."""
    size, width = model.vocabulary_size, model.config.width
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.ln_final.weight.fill_(1)
        codes = torch.nn.functional.normalize(
            torch.randn(size, width, generator=torch.Generator().manual_seed(0)), dim=1
        )
        model.token_embeddings.weight[:size] = codes
        for here, after in itertools.pairwise(ids):
            model.head_weight[after] += 30 * codes[here]


def test_stops_at_the_end_token(rope: Model, tokenizer: Tokenizer) -> None:
    end = tokenizer.roles.end
    assert end is not None
    ids = [*tokenizer.encode("In"), *tokenizer.encode(" void"), end]
    force(rope, ids)
    result = generate(rope, tokenizer, ["In"], SamplingConfig(temperature=0, max_tokens=50))[0]
    assert (result.text, result.stopped) == (" void", "end")
    assert result.ids == tokenizer.encode(" void")
    assert len(result.logprobs) == len(result.ids)
    named = SamplingConfig(temperature=0, max_tokens=50, stop=("<|endoftext|>",), stop_at_end=False)
    assert generate(rope, tokenizer, ["In"], named)[0].text == " void"


def test_stop_texts_are_cut_out_and_never_streamed(rope: Model, tokenizer: Tokenizer) -> None:
    said = " heaven and the earth"
    ids = [*tokenizer.encode("In"), *tokenizer.encode(said)]
    assert len(set(ids)) == len(ids)
    force(rope, ids)
    pieces: list[Piece] = []
    sampling = SamplingConfig(temperature=0, max_tokens=len(ids) - 1, stop=("d the e", "never"))
    result = generate(rope, tokenizer, ["In"], sampling, pieces.append)[0]
    assert (result.text, result.stopped) == (" heaven an", "stop")
    assert "".join(piece.text for piece in pieces) == result.text
    whole = generate(rope, tokenizer, ["In"], sampling.model_copy(update={"stop": ("the end",)}), pieces.append)[0]
    assert whole.text.startswith(said)


def test_streaming_never_shows_half_a_character(rope: Model, tokenizer: Tokenizer) -> None:
    said = "é你😀"
    ids = [*tokenizer.encode("In"), *tokenizer.encode(said)]
    if len(set(ids)) == len(ids):
        force(rope, ids)
    pieces: list[str] = []
    sampling = SamplingConfig(temperature=0, max_tokens=len(ids) - 1)
    result = generate(rope, tokenizer, ["In"], sampling, lambda piece: pieces.append(piece.text))[0]
    assert "".join(pieces) == result.text
    random = SamplingConfig(temperature=1.0, max_tokens=20, samples=20)
    streamed: dict[int, str] = {}
    for number, found in enumerate(generate(rope, tokenizer, ["In"], random, lambda piece: collect(streamed, piece))):
        assert streamed.get(number, "") == found.text == tokenizer.decode(found.ids)


def collect(streamed: dict[int, str], piece: Piece) -> None:
    streamed[piece.row] = streamed.get(piece.row, "") + piece.text


def test_texts_longer_than_the_context(model: Model, tokenizer: Tokenizer) -> None:
    """Every architecture goes on past its context; those with a window say so, once."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = generate(model, tokenizer, ["And the"], greedy(3 * CONTEXT))[0]
    assert len(result.ids) == 3 * CONTEXT
    outgrown = [warning for warning in said if "outgrows the context" in str(warning.message)]
    assert len(outgrown) == (model.config.architecture == "transformer")


def test_learned_positions_start_again_from_the_last_half(tokenizer: Tokenizer) -> None:
    model = small_model("learned", tokenizer)
    ids = tokenizer.encode("And the")
    wanted = list(ids)
    window = list(ids)
    with torch.inference_mode():
        for _ in range(2 * CONTEXT):
            if len(window) > CONTEXT:
                window = window[-(CONTEXT // 2) :]
            token = int(model(torch.tensor([window]))[0, -1].argmax())
            wanted.append(token)
            window.append(token)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert generate(model, tokenizer, ["And the"], greedy(2 * CONTEXT))[0].ids == wanted[len(ids) :]


def test_a_full_row_does_not_cut_its_neighbours(tokenizer: Tokenizer) -> None:
    """Under learned positions each row starts again when its own context is full, whoever is beside it."""
    model = small_model("learned", tokenizer)
    with torch.no_grad():
        model.position_embeddings.weight.mul_(10)  # so that it shows where a row starts again
    prompts = [tokenizer.decode(tokenizer.encode("void and earth was " * 9)[:size]) for size in (10, 22, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for count in (13, 40):
            together = generate(model, tokenizer, prompts, greedy(count))
            alone = [generate(model, tokenizer, [prompt], greedy(count))[0] for prompt in prompts]
            assert [result.ids for result in together] == [result.ids for result in alone]
    short = tokenizer.encode(prompts[0])
    assert together[0].ids[: CONTEXT - len(short)] == naive_greedy(model, short, CONTEXT - len(short))


def test_prompts_longer_than_the_context(model: Model, tokenizer: Tokenizer) -> None:
    long = "And the earth was without form, and void. " * 10
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        results = generate(model, tokenizer, [long, "And"], greedy(3))
    ids = tokenizer.encode(long)
    if model.config.architecture == "transformer":
        assert "goes on from its last 24 tokens" in str(said[0].message)
        assert results[0].ids[0] == naive_greedy(model, ids[-CONTEXT:], 1)[0]
    else:
        state = model.init_state(1)
        with torch.inference_mode():
            hidden, _ = model.hidden(torch.tensor([ids]), state=state)
            assert results[0].ids[0] == int(model.head(hidden[:, -1]).argmax())
    assert results[1].ids == naive_greedy(model, tokenizer.encode("And"), 3)


def test_an_empty_prompt_begins_a_document(rope: Model, tokenizer: Tokenizer) -> None:
    result = generate(rope, tokenizer, [""], greedy(5))[0]
    assert result.ids == naive_greedy(rope, [0], 5)


def test_an_empty_prompt_without_a_start_token_is_refused(rope: Model, tokenizer: Tokenizer) -> None:
    from fledge.tokenizer import BPETokenizer

    bare = BPETokenizer({token: bytes([token]) for token in range(256)}, [])
    with pytest.raises(FledgeError, match="prompt is empty"):
        generate(rope, bare, [""])


def test_characters_begin_with_their_start_token(characters: Tokenizer) -> None:
    model = small_model("gru", characters)
    start = characters.roles.start
    assert start is not None
    result = generate(model, characters, ["café"], greedy(4))[0]
    assert result.ids == naive_greedy(model, [start, *characters.encode("café")], 4)


def test_special_tokens_in_a_prompt_are_plain_text(rope: Model, tokenizer: Tokenizer) -> None:
    result = generate(rope, tokenizer, ["a<|endoftext|>"], greedy(3))[0]
    assert result.ids == naive_greedy(rope, tokenizer.encode("a<|endoftext|>", special="text"), 3)


def test_a_session_that_waits_has_no_weights_of_its_own(
    model: Model, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way through a BDH turns its matrices round: many sessions may wait, and few run."""
    made, make = [], NativeStep.make
    monkeypatch.setattr(NativeStep, "make", lambda model: made.append(model) or make(model))
    session = Decoding(model, tokenizer, PROMPTS[:1], greedy(4))
    assert made == []
    assert list(session.pieces())
    assert made == [model]


def test_a_foreign_tokenizer_is_refused(tokenizer: Tokenizer, characters: Tokenizer) -> None:
    with pytest.raises(FledgeError, match="do not belong together"):
        generate(small_model("rope", characters), tokenizer, ["a"])
    with pytest.raises(FledgeError, match="a single text"):
        generate(small_model("rope", tokenizer), tokenizer, "abc")


def test_repetition_penalty_counts_the_prompt(rope: Model, tokenizer: Tokenizer) -> None:
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    force(rope, [a, a])  # after a most likely an a, and next to it a b
    with torch.no_grad():
        rope.head_weight[b] = rope.head_weight[a] / 2
    assert generate(rope, tokenizer, ["a"], greedy(1, repetition_penalty=1.9))[0].ids == [a]
    assert generate(rope, tokenizer, ["a"], greedy(1, repetition_penalty=2.1))[0].ids == [b]


def test_rows_that_end_early_leave_the_others_alone(rope: Model, tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(temperature=1.5, max_tokens=40, samples=16, stop=("e",), seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = generate(rope, tokenizer, ["In", "void"], sampling)
        alone = generate(rope, tokenizer, ["void"], sampling)
    assert {result.stopped for result in results} >= {"stop"}
    assert [r.ids for r in results[16:]] == [r.ids for r in alone]
    assert all("e" not in result.text for result in results)
    assert all(isinstance(result, Generation) and len(result.logprobs) == len(result.ids) for result in results)


def test_a_model_that_went_wrong_is_said_to_have(rope: Model, tokenizer: Tokenizer) -> None:
    with torch.no_grad():
        rope.head_weight.fill_(float("nan"))
    for temperature in (0.0, 1.0):
        with pytest.raises(FledgeError, match="not finite"):
            generate(rope, tokenizer, ["In"], SamplingConfig(temperature=temperature))


def test_training_mode_comes_back(rope: Model, tokenizer: Tokenizer) -> None:
    rope.train()
    generate(rope, tokenizer, ["In"], greedy(2))
    assert rope.training
    assert generate(rope, tokenizer, [], greedy(2)) == []
    assert uniforms(0, 1, 0, 1).shape == (1, 1)


def test_texts_are_the_same_however_many_are_written_at_once(
    rope: Model, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in groups, or one prompt's samples in groups, each as soon as the group before it is whole."""
    sampling = SamplingConfig(temperature=1.0, max_tokens=6, samples=3, stop_at_end=False)
    prompts = ["In", "And the earth", "void"]
    together = generate(rope, tokenizer, prompts, sampling)
    for rows, finished in ((2, [0, 2, 3, 5, 6, 8, 9]), (7, [0, 6, 9])):
        monkeypatch.setattr(Decoding, "_most_rows", lambda self, rows=rows: rows)
        session = Decoding(rope, tokenizer, prompts, sampling)
        seen = [session.finished, *(session.finished for _ in session.pieces()), session.finished]
        assert sorted(set(seen)) == finished
        assert [each.ids for each in session.results] == [each.ids for each in together]
        assert [each.text for each in session.results] == [each.text for each in together]


def test_many_texts_take_bounded_memory(rope: Model, tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(temperature=1.0, max_tokens=2**24, samples=2**16)
    assert 1000 < Decoding(rope, tokenizer, ["In"], sampling)._most_rows() < 2**16


def test_a_stop_text_that_the_end_completes_is_one(rope: Model, tokenizer: Tokenizer) -> None:
    """Half a character becomes U+FFFD when no more tokens come."""
    half = next(token for token, data in tokenizer.vocab.items() if data == b"\xc3")
    session = Decoding(rope, tokenizer, ["In"], SamplingConfig(temperature=0, max_tokens=1, stop=("\ufffd",)))
    session._usable = lambda logits: functional.one_hot(torch.tensor([half]), logits.shape[1]).float()  # type: ignore[method-assign]
    list(session.pieces())
    assert (session.results[0].ids, session.results[0].text, session.results[0].stopped) == ([half], "", "stop")


def test_a_number_of_alternatives_that_is_none_is_refused(rope: Model, tokenizer: Tokenizer) -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(FledgeError, match=f"alternatives = {wrong} is not allowed"):
            generate(rope, tokenizer, ["In"], alternatives=wrong)  # type: ignore[arg-type]


def test_a_model_without_a_state_reads_the_whole_context_for_every_token(tokenizer: Tokenizer) -> None:
    """The same texts as with a state, past the end of the context too, and said once that it is slow."""
    quick, slow = small_model("rope", tokenizer), small_model("rope", tokenizer)
    slow.__class__ = type("Plain", (type(slow),), {"init_state": Model.init_state})
    sampling = greedy(6, samples=2)
    wanted = [result.ids for result in generate(quick, tokenizer, PROMPTS, sampling)]
    with notes_kept() as said:
        assert [result.ids for result in generate(slow, tokenizer, PROMPTS, sampling)] == wanted
    assert said == [
        "model.architecture = transformer has no init_state: the whole context is read again for every token, which is "
        "slow."
    ]
    history = tokenizer.encode(PROMPTS[0])
    for token in generate(slow, tokenizer, PROMPTS[:1], greedy(CONTEXT + 4))[0].ids:
        assert token == naive_greedy(slow, history[-CONTEXT:], 1)[0]
        history.append(token)


def test_a_prompt_of_half_a_character_is_a_sentence(rope: Model, tokenizer: Tokenizer) -> None:
    with pytest.raises(FledgeError, match=r"The prompt contains U\+D800, half of a surrogate pair"):
        generate(rope, tokenizer, ["\ud800"])
