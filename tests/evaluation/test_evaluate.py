"""Losses against one full forward pass per token; every token counted once; bits per byte fair to all tokenizers."""

from __future__ import annotations

import errno
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.config import ModelConfig
from fledge.corpus import Corpus
from fledge.errors import FledgeError
from fledge.evaluation import evaluate, evaluate_texts
from fledge.evaluation.compare import position_plot
from fledge.evaluation.losses import windows_over
from fledge.model import Model, build_model
from fledge.tokenizer import BPETokenizer, CharacterTokenizer, Roles, Tokenizer, train_bpe
from fledge.tokens import TokenStore, write_store

VERSES = [
    f"And the {word} was without form, and void; né{number}."
    for number, word in enumerate("abcdefghijklmnopqrstuvwxyz" * 2)
]
CONTEXT = 16


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe([verse.encode() for verse in VERSES], 300, ["<|endoftext|>"])


@pytest.fixture(scope="module")
def store(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    corpus = Corpus.from_documents(VERSES, validation_fraction=0.4)
    return write_store(corpus, tokenizer, tmp_path_factory.mktemp("store") / "tokens", progress=False)


def make_model(tokenizer: Tokenizer, **options: object) -> Model:
    torch.manual_seed(0)
    config = ModelConfig(**{"layers": 1, "width": 32, "heads": 2, **options})
    return build_model(config, tokenizer.vocab_size, CONTEXT).eval()


def naive_contexts(ids: list[int], stride: int) -> list[list[int]]:
    """What every id but the first is predicted from."""
    windows = [max(0, -(-(place - CONTEXT) // stride)) for place in range(len(ids))]
    return [ids[windows[place] * stride : place] for place in range(1, len(ids))]


def naive_losses(model: Model, ids: list[int], stride: int) -> list[float]:
    """The loss of every id but the first, each from a forward pass of its own over the context the stride gives it."""
    with torch.inference_mode():
        return [
            -float(torch.log_softmax(model(torch.tensor([context]))[0, -1], -1)[token])
            for context, token in zip(naive_contexts(ids, stride), ids[1:], strict=True)
        ]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_windows_predict_every_token_once(lengths: list[int], context: int, stride: int) -> None:
    stride = min(stride, context)
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    scored = []
    for window in windows_over(starts, ends, context, stride):
        assert window.end - window.start <= context + 1
        assert window.start < window.scored < window.end
        seen = range(window.scored, window.end)
        scored += list(seen)
    wanted = [place for start, end in zip(starts, ends, strict=True) for place in range(start + 1, end)]
    assert scored == wanted


@pytest.mark.parametrize("stride", [1, 5, 8, 16])
def test_losses_equal_one_pass_per_token(tokenizer: Tokenizer, stride: int) -> None:
    model = make_model(tokenizer)
    found = evaluate_texts(model, tokenizer, VERSES[:2], stride=stride)
    ids = [0, *tokenizer.encode(VERSES[0]), 0, *tokenizer.encode(VERSES[1]), 0]
    expected = naive_losses(model, ids, stride)
    assert found.tokens == len(expected)
    assert found.loss == pytest.approx(np.mean(expected), abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(np.mean(expected)), rel=1e-4)
    data = "".join(VERSES[:2])
    assert found.bits_per_byte == pytest.approx(np.sum(expected) / math.log(2) / len(data.encode()), rel=1e-5)
    assert found.bits_per_character == pytest.approx(np.sum(expected) / math.log(2) / len(data), rel=1e-5)
    first = len(tokenizer.encode(VERSES[0])) + 1
    assert found.by_document == pytest.approx([np.mean(expected[:first]), np.mean(expected[first:])], abs=1e-5)


def test_documents_alone_do_not_see_each_other(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer)
    together = evaluate_texts(model, tokenizer, VERSES[:3], documents="alone", stride=4)
    singly = [evaluate_texts(model, tokenizer, [verse], documents="alone", stride=4) for verse in VERSES[:3]]
    assert together.by_document == pytest.approx([single.loss for single in singly], abs=1e-5)
    assert together.tokens == sum(single.tokens for single in singly)


def test_a_split_equals_its_texts(tokenizer: Tokenizer, store: TokenStore) -> None:
    model = make_model(tokenizer)
    split = store.split("validation")
    texts = [tokenizer.decode(split.document(n).tolist()[:-1]) for n in range(len(split.documents))]
    from_store = evaluate(model, split, tokenizer=tokenizer)
    from_texts = evaluate_texts(model, tokenizer, texts)
    assert from_store.loss == pytest.approx(from_texts.loss, abs=1e-6)
    assert from_store.bits_per_byte == pytest.approx(from_texts.bits_per_byte)
    assert from_store.bits_per_character == pytest.approx(from_texts.bits_per_character)
    assert np.allclose(from_store.by_document, from_texts.by_document)
    part = evaluate(model, split, tokenizer=tokenizer, max_tokens=40)
    assert part.tokens == 40
    assert len(part.by_document) == (split.documents < 40).sum()
    without = evaluate(model, split)
    assert without.tokens == len(split.tokens) - 1
    assert without.bits_per_character is None


def test_of_a_long_split_only_what_is_evaluated_is_verified(
    tokenizer: Tokenizer, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thousand tokens of a terabyte do not wait for its checksums."""
    split = TokenStore.open(store.folder).split("validation")
    monkeypatch.setattr(split.token_file, "_check_block", lambda block: checked.append(block))
    monkeypatch.setattr(split.token_file, "checksums", ["00000000"] * 100)
    monkeypatch.setattr(split.token_file, "_fresh", np.ones(100, np.bool_))
    checked: list[int] = []
    evaluate(make_model(tokenizer), split, tokenizer=tokenizer, max_tokens=40)
    assert checked == [0]
    evaluate(make_model(tokenizer), split, tokenizer=tokenizer)
    assert len(checked) == 101


@pytest.mark.parametrize("architecture", ["bdh", "gru"])
def test_other_architectures(tokenizer: Tokenizer, architecture: str) -> None:
    model = make_model(tokenizer, architecture=architecture, multiplier=4)
    ids = [0, *tokenizer.encode(VERSES[0]), 0]
    found = evaluate_texts(model, tokenizer, VERSES[:1], stride=4)
    assert found.loss == pytest.approx(np.mean(naive_losses(model, ids, 4)), abs=1e-4)


def test_loss_by_position_is_the_mean_at_each_context(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer)
    found = evaluate_texts(model, tokenizer, VERSES, stride=CONTEXT)
    assert len(found.by_position) == CONTEXT
    assert found.mean_context == pytest.approx((CONTEXT + 1) / 2, abs=0.2)
    assert np.nanmean(found.by_position) == pytest.approx(found.loss, abs=0.05)


@pytest.mark.parametrize(("text", "stride"), [("; ".join(VERSES[:3]), 5), ("; ".join(VERSES[:3]), CONTEXT), ("And", 8)])
def test_loss_by_position_groups_one_pass_per_token(tokenizer: Tokenizer, text: str, stride: int) -> None:
    model = make_model(tokenizer)
    found = evaluate_texts(model, tokenizer, [text], stride=stride)
    ids = [0, *tokenizer.encode(text), 0]
    groups: dict[int, list[float]] = {}
    for context, loss in zip(naive_contexts(ids, stride), naive_losses(model, ids, stride), strict=True):
        groups.setdefault(len(context), []).append(loss)
    expected = [np.mean(groups.get(length, [math.nan])) for length in range(1, CONTEXT + 1)]
    assert found.by_position == pytest.approx(expected, abs=1e-5, nan_ok=True)


def test_characters_have_a_start_and_an_end(tokenizer: Tokenizer) -> None:
    characters = CharacterTokenizer.train(VERSES)
    model = make_model(characters)
    found = evaluate_texts(model, characters, VERSES[:1], stride=4)
    roles = characters.roles
    ids = [roles.start, *characters.encode(VERSES[0]), roles.end]
    assert found.loss == pytest.approx(np.mean(naive_losses(model, ids, 4)), abs=1e-5)


def test_a_uniform_model_needs_the_same_bits_whatever_the_batches(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer)
    with torch.no_grad():
        model.head_weight.zero_()
    for batch_tokens in (1, 100, 10_000):
        found = evaluate_texts(model, tokenizer, VERSES, batch_tokens=batch_tokens)
        assert found.loss == pytest.approx(math.log(tokenizer.vocab_size), abs=1e-5)


def test_a_plot_is_written(tokenizer: Tokenizer, tmp_path: Path) -> None:
    found = evaluate_texts(make_model(tokenizer), tokenizer, VERSES)
    position_plot({"one": found, "two": found}, tmp_path / "positions.svg")
    text = (tmp_path / "positions.svg").read_text()
    assert "tokens of context" in text
    assert "two" in text


def drawn(svg: str) -> list[tuple[float, float]]:
    """The points of the one curve of a plot with a logarithmic x axis, read off its ticks."""
    label = r'"[^>]*/>\s*</g>\s*</g>\s*<g id="text_\d+">\s*<text[^>]*>([\d.]+)</text>'
    below, beside = svg.split('<g id="matplotlib.axis_')[1:3]
    places = re.findall(rf'x="([\d.]+)" y="[\d.]+{label}', below)
    values = re.findall(rf'y="([\d.]+){label}', beside)
    powers = [(x, math.log10(float(place))) for x, place in places]
    assert {1.0, 10.0} <= {float(place) for _, place in places}, "the x axis is not logarithmic"
    across, up = (np.polyfit(*np.array(ticks, dtype=float).T, 1) for ticks in (powers, values))
    [curve] = re.findall(r'<path d="([^"]*)" clip-path', svg)
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", curve)]
    return [(float(10 ** np.polyval(across, x)), float(np.polyval(up, y))) for x, y in points]


def test_a_plot_shows_the_loss_at_each_position(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Far positions in pairs, each pair in its middle; positions where nothing was predicted are left out."""
    near = [6.0, 5.5, math.nan, 5.2, 5.0, 4.9, 4.7, 4.6]
    found = evaluate_texts(make_model(tokenizer), tokenizer, VERSES[:1])
    known = replace(found, by_position=np.array([*near, 4.4, 4.2, math.nan, 4.0]))
    position_plot({"one": known}, tmp_path / "positions.svg")
    wanted = [(place, loss) for place, loss in enumerate(near, start=1) if loss == loss]
    wanted += [(math.sqrt(9 * 10), 4.3), (math.sqrt(11 * 12), 4.0)]
    points = drawn((tmp_path / "positions.svg").read_text())
    assert len(points) == len(wanted)
    assert np.array(points) == pytest.approx(np.array(wanted), abs=1e-3)


def test_refusals(tokenizer: Tokenizer) -> None:
    model = make_model(tokenizer)
    with pytest.raises(FledgeError, match="stride of 99"):
        evaluate_texts(model, tokenizer, VERSES, stride=99)
    with pytest.raises(FledgeError, match="no text"):
        evaluate_texts(model, tokenizer, [])
    with pytest.raises(FledgeError, match="documents = 'alnoe' is not allowed: choose stream or alone"):
        evaluate_texts(model, tokenizer, VERSES, documents="alnoe")  # type: ignore[arg-type]
    small = make_model(CharacterTokenizer.train(["a"]))
    with pytest.raises(FledgeError, match="do not belong together"):
        evaluate_texts(small, tokenizer, VERSES)


@pytest.mark.parametrize("documents", ["stream", "alone"])
def test_a_split_without_tokens_is_refused_by_its_name(tokenizer: Tokenizer, tmp_path: Path, documents: Any) -> None:
    corpus = Corpus.from_documents(VERSES, validation_fraction=0)
    store = write_store(corpus, tokenizer, tmp_path / "tokens", progress=False)
    with pytest.raises(FledgeError, match="The validation split holds no tokens. Evaluate another one"):
        evaluate(make_model(tokenizer), store.split("validation"), tokenizer=tokenizer, documents=documents)


def test_bytes_that_nothing_predicts_do_not_count() -> None:
    """Without a separator, a document's first token has nothing before it: it costs nothing, and weighs nothing."""
    bare = train_bpe([verse.encode() for verse in VERSES], 300, [])
    assert bare.roles.separator is None
    model = make_model(bare)
    first = [len(bare.decode_bytes([bare.encode(verse)[0]])) for verse in VERSES]
    total = sum(len(verse.encode()) for verse in VERSES)
    assert evaluate_texts(model, bare, VERSES, documents="alone").bytes == total - sum(first)
    assert evaluate_texts(model, bare, VERSES).bytes == total - first[0]


@pytest.mark.parametrize("documents", ["stream", "alone"])
@pytest.mark.parametrize("texts", [[""], ["", ""], ["a"]])
def test_a_text_without_a_token_to_predict_is_refused(texts: list[str], documents: Any) -> None:
    bare = train_bpe([verse.encode() for verse in VERSES], 300, [])
    with pytest.raises(FledgeError, match="There is no token to predict"):
        evaluate_texts(make_model(bare), bare, texts, documents=documents)


def test_documents_end_as_in_training_where_there_is_an_end_and_no_separator(tmp_path: Path) -> None:
    trained = train_bpe([verse.encode() for verse in VERSES], 300, ["</s>"])
    roles = Roles(end=trained.special_tokens["</s>"])
    ended = BPETokenizer(trained.vocab, trained.merges, trained.special_tokens, roles=roles)
    store = write_store(Corpus.from_documents(VERSES, validation_fraction=0.4), ended, tmp_path / "s", progress=False)
    split, model = store.split("validation"), make_model(ended)
    texts = [ended.decode(split.document(number).tolist()[:-1]) for number in range(len(split.documents))]
    found = evaluate_texts(model, ended, texts)
    ids = [roles.end, *split.tokens.tolist()]
    assert found.loss == pytest.approx(np.mean(naive_losses(model, ids, CONTEXT // 2)), abs=1e-5)
    assert evaluate(model, split, tokenizer=ended).loss == pytest.approx(found.loss, abs=1e-6)


def test_empty_documents_cost_only_their_separator(tokenizer: Tokenizer) -> None:
    found = evaluate_texts(make_model(tokenizer), tokenizer, ["", VERSES[0], ""], documents="alone")
    assert found.tokens == len(tokenizer.encode(VERSES[0])) + 3


@pytest.mark.parametrize("text", ["And the earth", b"And the earth"])
def test_one_text_is_not_taken_for_many(tokenizer: Tokenizer, text: str | bytes) -> None:
    with pytest.raises(FledgeError, match="give a list of texts"):
        evaluate_texts(make_model(tokenizer), tokenizer, text)


@pytest.mark.parametrize("stride", ["a", 2.5, 0, CONTEXT + 1])
def test_a_stride_is_a_whole_number_within_the_context(tokenizer: Tokenizer, stride: object) -> None:
    with pytest.raises(FledgeError, match=f"a whole number from 1 to {CONTEXT}"):
        evaluate_texts(make_model(tokenizer), tokenizer, VERSES[:1], stride=stride)


def test_a_plot_is_whole_or_absent(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when it is flushed leaves no empty file behind."""
    found = evaluate_texts(make_model(tokenizer), tokenizer, VERSES[:1])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            position_plot({"one": found}, tmp_path / "plot.svg")
    assert not list(tmp_path.iterdir())
    position_plot({"one": found}, tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_scores_that_are_not_finite_are_refused(tokenizer: Tokenizer, store: TokenStore) -> None:
    broken = make_model(tokenizer)
    with torch.no_grad():
        next(broken.parameters()).fill_(math.nan)
    for measure in (
        lambda: evaluate_texts(broken, tokenizer, VERSES),
        lambda: evaluate(broken, store.split("validation"), tokenizer=tokenizer),
    ):
        with pytest.raises(FledgeError, match="scores are not finite: its training went wrong"):
            measure()


def test_every_position_has_its_share_of_tokens_where_that_is_asked(tokenizer: Tokenizer) -> None:
    """Overlapping windows give one token each to the first half of the context; the figures stay theirs."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(layers=1, width=32, heads=2), tokenizer.vocab_size, 16).eval()
    texts = ["In the beginning God created the heaven and the earth. " * 20]
    usual = evaluate_texts(model, tokenizer, texts)
    placed = evaluate_texts(model, tokenizer, texts, positions=True)
    apart = evaluate_texts(model, tokenizer, texts, stride=16)
    assert placed.summary() == usual.summary()
    assert placed.by_position.tolist() == apart.by_position.tolist() != usual.by_position.tolist()


def test_what_cannot_be_evaluated_is_one_sentence(tokenizer: Tokenizer) -> None:
    model = build_model(ModelConfig(layers=1, width=32, heads=2), tokenizer.vocab_size, 16).eval()
    with pytest.raises(FledgeError, match="The texts are a NoneType: give a list of texts"):
        evaluate_texts(model, tokenizer, None)  # type: ignore[arg-type]
