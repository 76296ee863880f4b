"""What we write as GGUF, llama.cpp reads: equal ids, scores and greedy text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import zstandard

from fledge.bundle import load_bundle, save_bundle
from fledge.bundle.exchange import SHORT, export_bundle
from fledge.bundle.gguf import QUANTISED, rounded_as_stored
from fledge.config import SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import generate
from fledge.model.families import GGUF, home
from fledge.tokenizer import CharacterTokenizer, Tokenizer, load_tokenizer, train_bpe
from fledge.tokenizer.huggingface import DIGITS, QWEN
from tests.bundle.conftest import TEXT, small_config, small_model
from tests.bundle.test_exchange import OTHERS, SHAPES, make
from tests.conftest import DATA
from tests.llama_cpp import LlamaCpp
from tests.tokenizer.test_files import sentencepiece

MESSY = DATA / "messy"
SENTENCES = [
    "In the beginning, the earth — é 你好 and 42,000 men's   hearts\n\n\tdon't  I'LL\r\n",
    "Ελληνικά русский العربية עברית हिन्दी 日本語 한국어 ไทย 👩‍👩‍👧‍👦 🏳️‍🌈 ﬃ ½ ² x²",
    "<|endoftext|>void<|endoftext|><|endoftext|> <|endo ftext|>",
    "    if x==1:\n        return {'a':[1,2,3]}  # 1234567890\n\n\n",
    "a\u00a0b\u2003c\u3000d\ufeffe\u200bf e\u0301 İstanbul ǅ ßẞ",
    "e\u0301A E\u0301a a\u0301\u0301B हिन्दी की 1234567 x²½ DON'T l'École étÉ's aÉb ΑΒγΔ",
]
TOLERANCE = {"gelu_tanh": 5e-3}  # llama.cpp takes GELU from a table of half precision


@pytest.mark.parametrize("name", [*SHAPES, *OTHERS])
def test_llama_cpp_has_our_scores(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    bundle = make(tmp_path, tokenizer, name)
    if home(bundle.config.model, GGUF) is None:
        with pytest.raises(FledgeError, match=r"No architecture of GGUF .* nearest one that does is \w+: train with"):
            export_bundle(bundle, tmp_path / "model.gguf")
        return
    judge = LlamaCpp(export_bundle(bundle, tmp_path / "model.gguf"), 16)
    ids = tokenizer.encode("In the beginning")
    with torch.inference_mode():
        ours = bundle.model(torch.tensor([ids]))[0, -1].log_softmax(-1)
    tolerance = TOLERANCE.get(bundle.config.model.feed_forward, 1e-5)
    theirs = judge.log_probabilities(ids, tokenizer.vocab_size, tokenizer.encode("a")[0])
    torch.testing.assert_close(theirs, ours, atol=tolerance, rtol=1e-5)
    settings = SamplingConfig(temperature=0, max_tokens=4)
    greedy = generate(bundle.model, tokenizer, ["In the beginning"], settings)[0].ids
    assert judge.greedy(ids, 4)[: len(greedy)] == greedy


def texts() -> list[str]:
    """Sentences of many scripts, and where the shared data is there, pages of 500 languages and of broken UTF-8."""
    found = [*SENTENCES]
    if MESSY.is_dir():
        found += [path.read_bytes()[:20_000].decode("utf-8", "ignore") for path in MESSY.glob("*.txt")]
        with zstandard.open(MESSY / "udhr_multilingual.txt.zst", "rt", encoding="utf-8") as file:
            for _ in range(40):
                found.append(file.read(5000))
                file.read(100_000)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k", DIGITS, QWEN])
def test_llama_cpp_has_our_ids(tmp_path: Path, pattern: str) -> None:
    tokenizer = train_bpe(["\n".join(SENTENCES).encode() * 3 + TEXT], 600, ["<|endoftext|>"], pattern=pattern)
    config = small_config(width=8, heads=1, layers=1)
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    judge = LlamaCpp(export_bundle(bundle, tmp_path / "model.gguf"), 16)
    for text in texts():
        assert judge.encode(text) == tokenizer.encode(text)
        assert judge.encode(text, special=False) == tokenizer.encode(text, special="text")


def test_llama_cpp_has_the_ids_of_characters(tmp_path: Path) -> None:
    """Also of those that are spelled in bytes, and of a zero byte; U+2581 is a space there."""
    tokenizer = CharacterTokenizer.train(SENTENCES)
    config = small_config()
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    judge = LlamaCpp(export_bundle(bundle, tmp_path / "model.gguf"), 16)
    plain = [text.replace("\u2581", "") for text in texts()]
    for text in [*plain, "<0x80>\u0000\u0001ꙮ<|end|>", "".join(map(chr, range(1, 0x2581)))]:
        assert judge.encode(text) == tokenizer.encode(text)
        assert judge.encode(text, special=False) == tokenizer.encode(text, special="text")
    assert judge.encode("a\u2581b") == tokenizer.encode("a b")
    ids = [tokenizer.roles.start, *tokenizer.encode("In")]
    with torch.inference_mode():
        ours = bundle.model(torch.tensor([ids]))[0, -1].log_softmax(-1)
    theirs = judge.log_probabilities(ids, tokenizer.vocab_size, tokenizer.encode("a")[0])
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("error:Programs that read the GGUF")
def test_llama_cpp_has_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    """As Llama 2 and Mistral have it; and the model's scores after its start token."""
    sentencepiece(tmp_path, "normalizer")
    tokenizer = load_tokenizer(tmp_path)
    config = small_config()
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    judge = LlamaCpp(export_bundle(bundle, tmp_path / "model.gguf"), 16)
    for text in [*texts(), " a  b ", "a</s>b<s> c<unk>"]:
        assert judge.encode(text) == tokenizer.encode(text)
        assert judge.encode(text, special=False) == tokenizer.encode(text, special="text")
    ids = [tokenizer.roles.start, *tokenizer.encode("the cat")]
    with torch.inference_mode():
        ours = bundle.model(torch.tensor([ids]))[0, -1].log_softmax(-1)
    theirs = judge.log_probabilities(ids, tokenizer.vocab_size, tokenizer.encode("a")[0])
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["f16", "bf16", *QUANTISED])
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_llama_cpp_has_the_scores_of_the_rounded_weights(
    tmp_path: Path, tokenizer: Tokenizer, name: str, kind: str
) -> None:
    """Within what rounding activations to 8 bits costs: llama.cpp does that beside quantised weights."""
    wide = {"width": 256, "hidden": 256} if kind in ("tq1_0", "tq2_0") else {}
    bundle = make(tmp_path, tokenizer, name, **wide)
    judge = LlamaCpp(export_bundle(bundle, tmp_path / "model.gguf", dtype=kind), 16)
    ids = tokenizer.encode("In the beginning")
    theirs = judge.log_probabilities(ids, tokenizer.vocab_size, tokenizer.encode("a")[0])
    before = bundle.model(torch.tensor([ids]))[0, -1].log_softmax(-1)
    bundle.model.load_state_dict(rounded_as_stored(bundle.model.state_dict(), SHORT.get(kind, kind)))
    with torch.inference_mode():
        ours = bundle.model(torch.tensor([ids]))[0, -1].log_softmax(-1)
    assert (theirs - ours).abs().max() < (0.4 if wide else 0.15 if kind in QUANTISED else 0.05)
    if kind in QUANTISED[3:]:
        assert (theirs - ours).abs().mean() < (theirs - before).abs().mean()


def test_rows_that_a_type_can_not_pack_stay_wide_and_that_is_said(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.warns(UserWarning, match=r"tq1_0 packs 256 numbers of a row at a time: 14 of 16 matrices .* 16 bits"):
        export_bundle(make(tmp_path, tokenizer, "llama"), tmp_path / "model.gguf", dtype="tq1_0")


def test_a_modelfile_says_how_to_sample(tmp_path: Path, tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(temperature=0.5, top_k=7, min_p=0.1, stop=('say "Amen" now', "\n\n"), max_tokens=9)
    config = small_config().model_copy(update={"sampling": sampling})
    bundle = load_bundle(save_bundle(tmp_path / "bundle", config, tokenizer, small_model(config, tokenizer)))
    file = export_bundle(bundle, tmp_path / "model.gguf", dtype="Q8_0")
    text = (tmp_path / "model.Modelfile").read_text()
    found = re.findall(r'^(FROM|TEMPLATE|PARAMETER \w+) (?:"""((?s:.*?))"""|(.+))$', text, re.MULTILINE)
    assert "".join(re.sub(r'(?s)""".*?"""', "", text).split()).count("PARAMETER") == 9
    assert [(name, quoted or plain) for name, quoted, plain in found] == [
        ("FROM", f"./{file.name}"),
        ("TEMPLATE", "{{ .Prompt }}"),
        ("PARAMETER temperature", "0.5"),
        ("PARAMETER top_k", "7"),
        ("PARAMETER top_p", "1.0"),
        ("PARAMETER min_p", "0.1"),
        ("PARAMETER repeat_penalty", "1.0"),
        ("PARAMETER num_predict", "9"),
        ("PARAMETER num_ctx", "16"),
        ("PARAMETER stop", 'say "Amen" now'),
        ("PARAMETER stop", "\n\n"),
    ]
    file.unlink()
    with pytest.raises(FledgeError, match=r"model\.Modelfile exists already"):
        export_bundle(bundle, file)
    with pytest.raises(FledgeError, match=r"q8_0 is a type of GGUF files: name the file hub\.gguf"):
        export_bundle(bundle, tmp_path / "hub", dtype="q8_0")
