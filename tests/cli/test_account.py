"""`fledge account`: recipes, shapes, files and bundles in; tables or JSON out; a sentence for a mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fledge.cli import build
from fledge.config import ModelConfig, RunConfig, TokensConfig, recipe_names
from fledge.errors import FledgeError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(build(), ["account", *arguments], env={"COLUMNS": "80"})
    if isinstance(result.exception, FledgeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def words(*arguments: str) -> str:
    """What is printed, wherever its lines end."""
    return " ".join(run(*arguments).split())


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


def test_a_step_is_the_recipes_whatever_goes_through_at_once() -> None:
    """A micro-batch changes the memory, and neither the FLOPs of a step nor how often the weights are updated."""
    arguments = ("tinystories-muon", "--device", "h200", "--tokens", "1e9")
    whole = values(*arguments)
    parts = values(*arguments, "--set", "training.micro_batch=8")
    assert (parts["batch"], parts["step_batch"]) == (8, 64)
    assert parts["step_flops"] == whole["step_flops"]
    assert parts["time"]["seconds"] == whole["time"]["seconds"]
    assert parts["memory"]["total"] < whole["memory"]["total"]
    assert "a step of 512 × 256 tokens 14.6 TFLOP" in words("tinystories", "--set", "training.micro_batch=8")
    assert values("tinystories", "--set", "training.micro_batch=9999")["batch"] == 512


def test_the_textbook_prints_its_formula_with_the_numbers_put_in() -> None:
    text = run("xl", "--memory", "textbook")
    assert "48·(12·1600² + 2·1600) + 1600 + 1600·50257" in text
    assert "The largest batch in 80.0 GB: 3." in text


def test_tables_fit_a_terminal_of_eighty_columns() -> None:
    for arguments in (
        ("xl",),
        ("bdh",),
        ("compare", "small", "xl"),
        ("compare", "tinystories", "bdh", "lstm", "gru", "gpt2-small", "gpt2-medium", "akjv-demo"),
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


def test_a_comparison_keeps_every_name_whole_and_shows_nothing_that_no_model_has(tmp_path: Path) -> None:
    """Long ones on several lines, so that two runs of the same steps are told apart."""
    names = []
    for run_name in ("a-first-attempt", "a-second-attempt"):
        path = tmp_path / run_name / "checkpoints" / "of-step-00000500.toml"
        path.parent.mkdir(parents=True)
        path.write_text("[model]\nlayers = 1\n[tokenizer]\nvocabulary_size = 300\n")
        names.append(str(path))
    lines = run("compare", *names, "--context", "64").splitlines()
    assert max(map(len, lines)) <= 80
    heading = [line for line in lines[1:] if "─" not in line and "%" not in line and line.strip()]
    left, right = ("".join(line.split()[column] for line in heading if len(line.split()) > 1) for column in (0, 1))
    assert left.startswith(names[0][:15]) and "first" in left  # noqa: PT018
    assert "second" in right
    mixed = run("compare", "tinystories", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "lstm")
    first, second = mixed.split("Shares of")[1:3]
    assert "recurrent" not in first
    assert "recurrent" in second


@pytest.mark.parametrize("name", ["x[_b].toml", "[bold]x.toml", "x[/b].toml"])
def test_names_are_printed_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets in a file's name are letters, not markup."""
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("[model]\nlayers = 1\n[tokenizer]\nvocabulary_size = 300\n")
    assert name in run("compare", name, "small")
    assert name in run(name)


def test_a_bundle_has_an_account(tmp_path: Path) -> None:
    """Its manifest is enough: no weights are read. Packed or not, and by the name of its manifest."""
    from fledge.bundle import save_bundle
    from fledge.bundle.archive import pack
    from fledge.model import build_model
    from fledge.tokenizer import train_bpe

    tokenizer = train_bpe(["the cat sat on the mat and the cat sat"] * 3, 270)
    config = RunConfig(model=ModelConfig(layers=1, width=16, heads=2))
    model = build_model(config.model, tokenizer.vocab_size, config.tokens.context_length)
    folder = save_bundle(tmp_path / "bundle", config, tokenizer, model)
    found = values(str(folder))
    assert found["parameters"]["total"] == model.parameters_count()
    assert found["vocabulary_size"] == tokenizer.vocab_size
    packed = [pack(folder, tmp_path / f"model{suffix}") for suffix in (".zip", ".tar.zst")]
    for place in (*packed, folder / "bundle.json"):
        assert values(str(place)) == found
        assert values(str(place), "--set", "model.layers=2")["model"]["layers"] == 2
        assert str(place)[:20] in run("compare", str(place), "--context", "8").replace("\n", "")
    (tmp_path / "other.zip").write_bytes(b"PK no archive")
    with pytest.raises(FledgeError, match="other.zip is not a whole packed bundle"):
        run(str(tmp_path / "other.zip"))


def test_a_bundle_trained_on_shorter_windows_keeps_its_positions(tmp_path: Path) -> None:
    """Fine-tuned on 8 tokens at once, a model of 32 learned positions still has all of them."""
    from fledge.bundle import save_bundle
    from fledge.model import build_model
    from fledge.tokenizer import train_bpe

    tokenizer = train_bpe(["the cat sat on the mat and the cat sat"] * 3, 270)
    model_config = ModelConfig(layers=1, width=16, heads=2, position="learned")
    model = build_model(model_config, tokenizer.vocab_size, 32)
    config = RunConfig(model=model_config, tokens=TokensConfig(context_length=8))
    folder = str(save_bundle(tmp_path / "bundle", config, tokenizer, model))
    found = values(folder)
    assert found["parameters"]["total"] == model.parameters_count()
    assert found["context_length"] == 8
    held = {part["name"]: part["constant"] for part in found["memory"]["parts"]}
    padded = 4 * 2 * (tokenizer.vocab_size % 8 and 8 - tokenizer.vocab_size % 8) * 16
    assert held["parameters"] == 4 * model.parameters_count() + padded
    longer = values(folder, "--context", "64")["parameters"]["total"]
    assert longer == model.parameters_count() + (64 - 32) * 16


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run's folder before its first checkpoint."""
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "config.json").write_text(RunConfig().model_dump_json())
    return folder


def test_a_run_without_a_checkpoint_is_said_to_be_one(begun: Path) -> None:
    with pytest.raises(FledgeError, match="is a run that has no checkpoint yet. Wait for its first one"):
        run(str(begun))


def test_a_folder_that_is_no_bundle_is_told_apart_by_its_settings(begun: Path, tmp_path: Path) -> None:
    """A run and a Hugging Face folder both have a config.json; a broken one says nothing of what it is."""
    from fledge.bundle import load_bundle

    with pytest.raises(FledgeError, match="is a run that has no checkpoint yet") as error:
        load_bundle(begun)
    assert "Hugging Face" not in str(error.value)
    (begun / "config.json").write_text('{"model_type": "gpt2"}')
    for read in (load_bundle, lambda folder: run(str(folder))):
        with pytest.raises(FledgeError, match="looks like a Hugging Face folder: fledge bundle import"):
            read(begun)
    for text in ("{", "[]", '{"name": "other"}'):
        (begun / "config.json").write_text(text)
        with pytest.raises(FledgeError, match="Give the folder of a bundle"):
            load_bundle(begun)


def test_a_folder_with_the_name_of_a_recipe_does_not_hide_it(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `fledge train`: of text, say, or a run before its first checkpoint; a bundle is taken."""
    monkeypatch.chdir(tmp_path)
    plain = values("tinystories", "--device", "h200")
    Path("tinystories").mkdir()
    Path("tinystories", "metrics.csv").write_text("step,tokens_per_second\n1,1e6\n")
    assert values("tinystories", "--device", "h200") == plain
    trained.rename("akjv")
    assert values("akjv")["model"]["width"] == 16


def test_a_shapes_vocabulary_is_a_setting_like_any_other() -> None:
    assert values("small", "--set", "tokenizer.vocabulary_size=1000")["vocabulary_size"] == 1000


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run's folder: a checkpoint that names its machine, and the speeds it reached."""
    from fledge.bundle import save_bundle
    from fledge.model import build_model
    from fledge.tokenizer import train_bpe

    tokenizer = train_bpe(["the cat sat on the mat and the cat sat"] * 3, 270)
    config = RunConfig(model=ModelConfig(layers=1, width=16, heads=2))
    model = build_model(config.model, tokenizer.vocab_size, config.tokens.context_length)
    folder = tmp_path / "run"
    save_bundle(folder / "checkpoints" / "step-00000004", config, tokenizer, model)
    rows = "".join(f"{step},{speed}\n" for step, speed in ((1, 1e6), (2, 4e6), (3, 3e6), (4, "")))
    (folder / "metrics.csv").write_text("step,tokens_per_second\n" + rows)
    return folder


def on_device(folder: Path, name: str, **training: Any) -> None:
    """Let the run have been made on another machine."""
    from fledge.bundle.manifest import manifest_bytes, read_manifest

    place = folder / "checkpoints" / "step-00000004"
    manifest = read_manifest(place)
    config = {**manifest.config, "training": {**manifest.config["training"], **training}}
    changed = manifest.model_copy(update={"machine": {**manifest.machine, "device": name}, "config": config})
    (place / "bundle.json").write_bytes(manifest_bytes(changed))


def test_a_runs_own_speed_is_taken_for_its_device_and_shape(trained: Path) -> None:
    """The median of the speeds in its metrics, as a share of the peak."""
    on_device(trained, "NVIDIA H200")
    found = values(str(trained), "--device", "h200")
    work = found["flops_per_token"] / 989.5e12
    assert found["time"]["mfu"] == pytest.approx(3e6 * work)
    assert found["time"]["tokens_per_second"] == pytest.approx(3e6)
    assert "reached" in found["time"]["mfu_from"]
    assert "run reached): " in words(str(trained), "--device", "h200")
    assert values(str(trained), "--device", "h200", "--mfu", "0.3")["time"]["mfu_from"] == "as given"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--device", "h100"), "of another device"),
        (("--device", "h200", "--set", "model.layers=2"), "of another model"),
        (("--device", "h200", "--vocabulary", "5000"), "of another model"),
        (("--device", "h200", "--context", "64"), "of another context length"),
        (("--device", "h200", "--recompute"), "of another recomputation"),
        (("--device", "h200", "--precision", "tf32"), "of another precision"),
        (("--device", "h200", "--set", "optimizer.name=muon"), "of another optimizer"),
    ],
)
def test_a_runs_speed_says_nothing_of_others(trained: Path, arguments: tuple[str, ...], reason: str) -> None:
    on_device(trained, "NVIDIA H200")
    with pytest.warns(UserWarning, match=reason):
        found = values(str(trained), *arguments)
    assert (found["time"]["mfu"], found["time"]["mfu_from"]) == (0.4, "assumed")


def test_a_speed_beyond_the_peak_is_not_believed(trained: Path) -> None:
    """Of several devices, say: no share of the peak is above 1."""
    on_device(trained, "Tesla T4")
    (trained / "metrics.csv").write_text("step,tokens_per_second\n1,9e12\n")
    with pytest.warns(UserWarning, match="more than one NVIDIA T4 can reach"):
        assert values(str(trained), "--device", "t4")["time"]["mfu"] == 0.4
    (trained / "metrics.csv").write_text("step,tokens_per_second\n1,\n")
    with pytest.warns(UserWarning, match="no speed in"):
        assert values(str(trained), "--device", "t4")["time"]["mfu"] == 0.4


def test_a_run_on_the_cpu_of_a_machine_with_a_gpu_is_of_the_cpu(trained: Path) -> None:
    on_device(trained, "NVIDIA H200", device="cpu")
    with pytest.warns(UserWarning, match=r"another device \(cpu\)"):
        assert values(str(trained), "--device", "h200")["time"]["mfu"] == 0.4


def test_the_formula_states_its_range_and_agrees_with_the_largest_batch() -> None:
    found = values("gpt2-small", "--device", "a100")
    memory, largest = found["memory"], found["largest_batch"]
    assert memory["exact_from_batch"] <= largest <= memory["exact_to_batch"]
    assert memory["per_window"] * largest + memory["constant"] <= 80e9
    one_more = values("gpt2-small", "--device", "a100", "--batch", str(largest + 1))["memory"]
    assert one_more["per_window"] * (largest + 1) + one_more["constant"] > 80e9
    assert f"for batches of {memory['exact_from_batch']} to {memory['exact_to_batch']}" in words(
        "gpt2-small", "--device", "a100"
    )
    assert "from a batch of 1 on" not in run("gpt2-small")


def test_a_model_that_does_not_fit_is_said_not_to() -> None:
    text = words("gpt2-xl", "--device", "t4")
    assert "It does not fit: one window needs" in text
    assert "Largest batch" not in text
    found = values("gpt2-xl", "--device", "t4")
    assert (found["fits"], found["largest_batch"]) == (False, 0)
    text = words("gpt2-small", "--device", "t4", "--batch", "500")
    assert "A batch of 500 does not fit" in text


def test_the_time_names_what_bounds_it() -> None:
    found = values("xl", "--context", "8", "--device", "h200", "--mfu", "1")
    assert found["time"]["bound_at_this_mfu"] == "memory"
    assert "at the memory's bandwidth" in words("xl", "--context", "8", "--device", "h200", "--mfu", "1")
    assert "what is recomputed included" in words("gpt2-small", "--device", "h200", "--recompute")


def test_the_optimizer_is_the_recipes() -> None:
    assert "Muon's own arithmetic" in words("akjv-demo")
    found = values("akjv-demo")
    assert found["optimizer_flops"] > found["optimizer_product_flops"] > 0
    assert values("tinystories")["optimizer_product_flops"] == 0


def test_a_small_share_is_not_printed_as_nothing_and_days_stay_days() -> None:
    text = words("xl", "--device", "a100", "--mfu", "0.0005")
    assert "at 0.05% of the peak" in text
    assert re.search(r"[\d,]+\.\d days \([\d,.]+ years\)", text)


@pytest.mark.parametrize("option", ["--recompute", "--no-flash", "--precision=bf16", "--mfu=0.3", "--price=2"])
def test_what_the_textbook_does_not_heed_is_said(option: str) -> None:
    with pytest.warns(UserWarning, match=f"{option.split('=')[0]} has no effect on the textbook's list"):
        text = run("xl", "--memory", "textbook", option)
    assert "15.31 GB·batch + 24.88 GB" in text


@pytest.mark.parametrize("change", ["model.hidden=512", "model.tied=true", "optimizer.name=sgd"])
def test_settings_that_the_textbook_has_no_letter_for_are_said(change: str) -> None:
    name = change.split("=")[0]
    with pytest.warns(UserWarning, match=f"--set {name} has no effect on the textbook's list"):
        text = run("xl", "--memory", "textbook", "--set", change, "--set", "model.layers=48")
    assert "15.31 GB·batch + 24.88 GB" in text


def test_a_price_without_a_device_is_said_to_be_useless() -> None:
    with pytest.warns(UserWarning, match="--mfu, --price have no effect on an account without a device"):
        run("xl", "--price", "2", "--mfu", "0.5")


def test_names_are_read_as_they_are_meant() -> None:
    """The precision that training would choose, and a device in capitals; the CPU is measured by its name too."""
    assert values("xl", "--device", "T4", "--precision", "auto")["precision"] == "fp16"
    assert values("xl", "--precision", "FP32")["precision"] == "fp32"
    assert values("akjv", "--device", "CPU")["device"]["name"] == "cpu"


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_json_is_strict() -> None:
    for arguments in (("xl", "--device", "h200"), ("compare", "small", "xl"), ("devices",), ("akjv", "--batch", "3")):
        assert strictly(run(*arguments, "--json"))


BIG = "9" * 400
MISTAKES: list[tuple[tuple[str, ...], str]] = [
    (("",), "The name of the model is empty"),
    ((" ",), "The name of the model is empty"),
    (("tinystorys",), "Did you mean tinystories"),
    (("no/such.toml",), "There is no recipe file no/such.toml"),
    (("xl", "--device", "h300"), "Did you mean h100|Did you mean h200"),
    (("xl", "--device", ""), "no device ''"),
    (("xl", "--device", "t4", "--precision", "bf16"), "NVIDIA T4 does not support bf16"),
    (("xl", "--precision", "int8"), "precision = 'int8'"),
    (("xl", "--precision", "int8", "--device", "h200"), "precision = 'int8'"),
    (("xl", "--precision", ""), "precision = ''"),
    (("xl", "--precision", "int8", "--memory", "textbook"), "precision = 'int8'"),
    (("xl", "--memory", "surreal"), "real or textbook"),
    (("bdh", "--memory", "textbook"), "The textbook formula is for Transformers"),
    (("bdh", "--memory", "textbook", "--json"), "The textbook formula is for Transformers"),
    (("xl", "--device", "h200", "--mfu", "0"), "--mfu 0 is not allowed"),
    (("xl", "--mfu", "0"), "--mfu 0 is not allowed"),
    (("xl", "--tokens", "inf"), "--tokens inf is not allowed"),
    (("xl", "--device", "h200", "--price", "inf"), "--price inf is not allowed"),
    (("xl", "--device", "h200", "--price", "inf", "--json"), "--price inf is not allowed"),
    (("xl", "--set", "model.heads=7"), "does not divide"),
    (
        ("bdh", "--set", "model.width=6", "--set", "model.heads=2", "--set", "model.multiplier=1"),
        "even number of neurons per head",
    ),
    (("xl", "--set", "model.layers"), "is not of the form"),
    (("xl", "--set", "model.layers=0"), "model.layers = 0 is not allowed"),
    (("xl", "--set", "model.layerz=2"), "Did you mean model.layers"),
    (("xl", "--set", "model.architecture=mamba"), "'mamba'"),
    (("xl", "--set", f"model.layers={BIG}"), "too large to compute"),
    (("tinystories", "--set", f"training.steps={BIG}", "--set", "training.tokens=none"), "too large to compute"),
    (("tinystories", "--set", "tokenizer.vocabulary_size=none"), "--vocabulary"),
    (("compare", "small", "gpt5"), "no recipe or shape called 'gpt5'"),
    (("XL",), "no recipe or shape called 'XL'. Did you mean xl"),
    (("xl", "--tokens", "1e308"), "too large to compute"),
    (("xl", "--tokens", "1e308", "--json"), "too large to compute"),
    (("xl", "--device", "h200", "--price", "1e308", "--tokens", "1e20"), "too large to compute"),
    (("xl", "--device", "h200", "--mfu", "1e-320"), "too large to compute"),
    (("compare", "small", ""), "The name of the model is empty"),
    (("compare", "small", "-o", "shares.png"), r"shares.png: a drawing is written as \.svg"),
    (("compare", "small", "-o", "."), "is a folder"),
    (("compare", "small", "-o", "/dev/null/shares.svg"), "/dev/null/shares.svg can't be written"),
]


@pytest.mark.parametrize(
    ("arguments", "sentence"), MISTAKES, ids=[" ".join(arguments)[:60] for arguments, _ in MISTAKES]
)
def test_mistakes_are_answered_in_a_sentence_before_anything_is_printed(
    arguments: tuple[str, ...], sentence: str
) -> None:
    result = CliRunner().invoke(build(), ["account", *arguments], env={"COLUMNS": "80"})
    assert isinstance(result.exception, FledgeError), result.output
    assert re.search(sentence, str(result.exception))
    assert ".partial" not in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [("--mfu", "nan"), ("--mfu", "2"), ("--tokens", "nan"), ("--batch", "0")])
def test_numbers_out_of_bounds_are_refused_with_the_option_named(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(build(), ["account", "xl", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"Invalid value for '{arguments[0]}'" in result.stderr
