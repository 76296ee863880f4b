"""`fledge account`: recipes, shapes, files and bundles in; tables or JSON out; a sentence for a mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.config import ModelConfig, RunConfig, recipe_names
from fledge.errors import FledgeError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build(), ["account", *arguments], env={"COLUMNS": "80"})
    if isinstance(result.exception, FledgeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def values(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_an_account(name: str) -> None:
    assert "Parameters" in run(name, "--vocabulary", "1000", "--device", "h200")


def test_json_says_what_the_tables_say() -> None:
    found = values("xl", "--device", "a100", "--precision", "fp32", "--mfu", "0.5", "--tokens", "1e9", "--price", "2")
    assert found["parameters"]["total"] == 2_127_057_600
    assert sum(found["parameters"]["by_component"].values()) == 2_127_057_600
    assert found["forward_flops"] == sum(product["flops"] for product in found["products"]) == 4_513_336_524_800
    assert sum(product["share"] for product in found["products"]) == pytest.approx(1)
    assert found["memory"]["total"] == pytest.approx(found["memory"]["per_window"] + found["memory"]["constant"])
    assert found["textbook_memory"]["per_window"] == 15_311_904_768
    assert found["time"]["cost"] == pytest.approx(found["time"]["seconds"] / 1800)
    assert found["time"]["bound"] in ("compute", "memory")
    assert found["chinchilla"]["tokens_for_this_size"] == 20 * 2_127_057_600


def test_settings_batch_and_context_can_be_changed() -> None:
    found = values("tinystories", "--set", "model.layers=2", "--batch", "8", "--context", "64", "--recompute")
    assert (found["model"]["layers"], found["batch"], found["context_length"]) == (2, 8, 64)
    assert found["recompute"]


def test_a_batch_that_fits_the_device_is_taken() -> None:
    """Training cuts a batch into micro-batches that fit; the account shows one of those."""
    found = values("gpt2-xl", "--device", "a100")
    assert found["batch"] == found["largest_batch"] < 512
    assert found["memory"]["total"] <= 80e9


def test_the_textbook_prints_its_formula_with_the_numbers_put_in() -> None:
    text = run("xl", "--memory", "textbook")
    assert "48·(12·1600² + 2·1600) + 1600 + 1600·50257" in text
    assert "The largest batch in 80.0 GB: 3." in text


def test_tables_fit_a_terminal_of_eighty_columns() -> None:
    for arguments in (
        ("xl",),
        ("bdh",),
        ("compare", "small", "xl"),
        ("xl", "--memory", "textbook"),
        ("devices",),
    ):
        text = run(*arguments)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_compare_draws_stacked_bars(tmp_path: Path) -> None:
    picture = tmp_path / "shares.svg"
    text = run("compare", "small", "medium", "large", "xl", "-o", str(picture))
    assert "1,024" in text
    assert "16,384" in text
    bars = [r for r in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "26"]
    assert len(bars) == 4 * 2 * 5
    rows = json.loads(run("compare", "small", "xl", "--context", "128", "--json"))
    assert [(row["name"], row["context_length"]) for row in rows] == [("small", 128), ("xl", 128)]


def test_a_bundle_has_an_account(tmp_path: Path) -> None:
    """Its manifest is enough: no weights are read."""
    from fledge.bundle import save_bundle
    from fledge.model import build_model
    from fledge.tokenizer import train_bpe

    tokenizer = train_bpe(["the cat sat on the mat and the cat sat"] * 3, 270)
    config = RunConfig(model=ModelConfig(layers=1, width=16, heads=2))
    model = build_model(config.model, tokenizer.vocab_size, config.tokens.context_length)
    folder = save_bundle(tmp_path / "bundle", config, tokenizer, model)
    found = values(str(folder))
    assert found["parameters"]["total"] == model.parameters_count()
    assert found["vocabulary_size"] == tokenizer.vocab_size


def test_the_mfu_of_a_run_is_measured(tmp_path: Path) -> None:
    """A run's folder holds the speed it reached; a later row of another speed moves the median."""
    from fledge.cli.account import make_account, measured_mfu
    from fledge.config import load_recipe

    found = make_account(load_recipe("tinystories"), 10_000, device="h200")
    assert measured_mfu(str(tmp_path), found) is None
    rows = "".join(f"{step},{speed}\n" for step, speed in ((1, 1e6), (2, 4e6), (3, 3e6), (4, "")))
    (tmp_path / "metrics.csv").write_text("step,tokens_per_second\n" + rows)
    assert measured_mfu(str(tmp_path), found) == pytest.approx(3e6 * found.flops_per_token / 989.5e12)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tinystorys",), "Did you mean tinystories"),
        (("xl", "--device", "h300"), "Did you mean h100|Did you mean h200"),
        (("xl", "--device", "t4", "--precision", "bf16"), "NVIDIA T4 has no units for bf16"),
        (("xl", "--precision", "int8"), "precision = 'int8'"),
        (("xl", "--memory", "surreal"), "real or textbook"),
        (("bdh", "--memory", "textbook"), "The notes' list is for Transformers"),
        (("xl", "--device", "h200", "--mfu", "0"), "mfu = 0.0 is not allowed"),
        (("xl", "--set", "model.heads=7"), "does not divide"),
        (("tinystories", "--set", "tokenizer.vocabulary_size=none"), "--vocabulary"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(FledgeError, match=sentence):
        run(*arguments)
