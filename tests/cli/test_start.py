"""`fledge start`: a text and a time become a model, a recipe with reasons, and a report; interrupted, it goes on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from fledge.config import load_recipe
from fledge.errors import FledgeError, notes_kept
from fledge.files import read_json, write_json
from fledge.run import Run
from fledge.start.start import Start
from tests.small import SMALL

from .processes import ENVIRONMENT, interrupt


def fledge(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fledge", *arguments]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    names, things = ("Tom", "Anna", "the little bird", "an old man"), ("a red ball", "some bread", "the moon", "a boat")
    words, chance = (
        ("sun", "hill", "tree", "stone", "wolf", "bread", "song", "rain", "night", "cold", "road"),
        Random(0),
    )
    lines = [  # with words by chance, or most of them would be near-copies and no group be left for the test part
        f"Once upon a time {names[n % 4]} found {things[n * 7 % 4]} near the river on day {n}. "
        f"{names[n * 3 % 4].capitalize()} was {'very ' * (n % 3)}happy: {' '.join(chance.choices(words, k=30))}."
        for n in range(2500)
    ]
    (tmp_path / "My stories.txt").write_text("<|endoftext|>".join(lines))
    return tmp_path


@pytest.mark.slow
def test_a_text_becomes_a_model_with_reasons(stories: Path) -> None:
    began = time.monotonic()
    done = fledge(stories, "start", "My stories.txt", "--time", "25s")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert "no token store" not in done.stderr
    assert took < 60  # the time asked for, and what it takes to import torch on a busy machine
    run = stories / "runs" / "my-stories"
    recipe = (run / "recipe.toml").read_text()
    for key in ("vocabulary_size", "context_length", "layers", "learning_rate", "batch_size", "dropout"):
        assert re.search(rf"^# .+\.\n(?:\w+ = .*\n)*{key} = ", recipe, re.M), key
    assert load_recipe(str(run / "recipe.toml")).model_dump(mode="json") == read_json(run / "config.json")
    report = (run / "report.html").read_text()
    for word in ("What was chosen, and why", "parameters, which learn at", "bits per byte", "trigram", "<svg"):
        assert word in report
    assert "Once upon a time" in done.stdout
    result = read_json(run / "start.json")["result"]
    assert f"{result['bits_per_byte']:.3f} bits per byte on the test part" in done.stdout
    assert set(result["baselines"]) == {"unigram", "bigram", "trigram"}
    commands = re.findall(r"^  (fledge .+)$", done.stdout, re.M)
    assert len(commands) == 2
    used = fledge(stories, "generate", "runs/my-stories", "--prompt", "Once", "--max-tokens", "4")
    assert used.returncode == 0, used.stderr
    longer = [*commands[1].split()[1:], "--set", "training.steps=2", "--quiet"]
    assert fledge(stories, *longer).returncode == 0
    again = fledge(stories, "start", "My stories.txt", "--time", "25s")
    assert again.returncode == 0, again.stderr
    assert "chosen before" in again.stdout
    longer_time = fledge(stories, "start", "My stories.txt", "--time", "30s")
    assert longer_time.returncode == 0, longer_time.stderr
    assert "chosen before for 25s: going on with its tokenizer and model" in longer_time.stdout
    (stories / "Other.txt").write_text((stories / "My stories.txt").read_text())
    other = fledge(stories, "start", "Other.txt", "--time", "30s", "--out", "runs/my-stories")
    assert other.returncode == 2
    assert "started with other texts" in other.stderr


def test_nobody_is_told_to_tokenize_before_a_start(stories: Path) -> None:
    text = stories / "My stories.txt"
    run = Run("akjv-demo", stories / "run", overrides=[*SMALL, f"corpus.source={text}"], quiet=True)
    run.claim()
    started = Start([str(text)], 0.1, "1m", run.folder, lambda word, fact: None)
    started.speed = 1e6
    with notes_kept() as said:
        started.train(run)
    assert not [note for note in said if "token store" in note]


@pytest.mark.slow
def test_interrupted_it_goes_on(stories: Path) -> None:
    command = [sys.executable, "-m", "fledge", "start", "My stories.txt", "--time", "35s", "--out", "mine"]
    output = interrupt(command, stories, stories / "mine" / "metrics.csv")
    assert "To go on: fledge start 'My stories.txt' --time 35s --out mine" in output
    recipe = (stories / "mine" / "recipe.toml").read_text()
    finished = fledge(stories, "start", "My stories.txt", "--time", "35s", "--out", "mine")
    assert finished.returncode == 0, finished.stderr
    assert (stories / "mine" / "recipe.toml").read_text() == recipe
    assert (stories / "mine" / "report.html").is_file()


def test_a_plan_trains_nothing_and_takes_what_is_set_by_hand(stories: Path) -> None:
    """The recipe has what was set and fits the rest to it; the folder is one that the same command goes on with."""
    said: dict[str, str] = {}
    by_hand = ["model.layers=1", "tokenizer.vocabulary_size=300", "model.tied=true", "training.batch_size=24"]
    by_hand.append("training.steps=120")
    begun = Start(
        [str(stories / "My stories.txt")],
        60,
        "1m",
        stories / "run",
        lambda word, fact: said.update({word: fact}),
        by_hand,
    )
    run = begun.run()
    config = load_recipe(str(stories / "run" / "recipe.toml"))
    assert (config.model.layers, config.tokenizer.vocabulary_size, config.training.batch_size) == (1, 300, 24)
    assert config.training.start == "random"  # a tied head can't begin as a bigram model, so that is not chosen
    assert run.tokenizer.vocab_size == 300
    often, kept = config.training.evaluate_every, config.training.keep_every
    assert kept == 2 * often == 2 * config.training.save_every
    assert 8 <= config.steps // kept <= 10
    assert not (stories / "run" / "checkpoints").exists()
    plan = read_json(stories / "run" / "start.json")
    assert 0 < plan["counts"]["bigram"] < 8
    assert plan["forecast"]["low"] < plan["forecast"]["bits_per_byte"] < plan["forecast"]["high"]
    assert "bits per byte are expected" in said["forecast"]
    assert ["set by hand", {"model.layers": 1}] in [[why[:11], values] for values, why in plan["choices"]]
    assert "parameters with what was set by hand" in said["set"]
    again = Start([str(stories / "My stories.txt")], 60, "1m", stories / "run", lambda word, fact: None)
    assert again.run().config == config
    other = Start(
        [str(stories / "My stories.txt")], 60, "1m", stories / "run", lambda word, fact: None, ["model.layers=2"]
    )
    with pytest.raises(FledgeError, match="started with other settings"):
        other.run()
    (stories / "run" / "checkpoints").mkdir()  # from now on other settings are refused, until training begins with them
    for _ in range(2):  # the second time as after a kill between the recipe and `start.json`
        write_json(stories / "run" / "start.json", plan)
        longer = Start([str(stories / "My stories.txt")], 3600, "1h", stories / "run", lambda word, fact: None).run()
        assert longer.config.steps > config.steps
    assert read_json(stories / "run" / "start.json")["forecast"]["bits_per_byte"] < plan["forecast"]["bits_per_byte"]


@pytest.mark.parametrize(
    ("by_hand", "sentence"),
    [
        ("layers=6", "not of the form"),
        ("model.layrs=6", "model.layers"),
        ("corpus.source=x", "as arguments"),
        ("model.kv_heads=none", "can't hold none"),
    ],
)
def test_what_is_set_by_hand_is_checked(stories: Path, by_hand: str, sentence: str) -> None:
    with pytest.raises(FledgeError, match=sentence):
        Start([str(stories / "My stories.txt")], 60, "1m", stories / "run", lambda word, fact: None, [by_hand]).run()
    assert not (stories / "run").exists()


@pytest.mark.parametrize(
    ("text", "limit", "sentence"),
    [
        ("short", "1m", "too little to learn a language from"),
        ("long", "2s", "--time 2s is too short"),
        ("long", "soon", "not a duration such as"),
        ("missing", "1m", "missing"),
    ],
)
def test_mistakes_are_sentences(tmp_path: Path, text: str, limit: str, sentence: str) -> None:
    (tmp_path / "short").write_text("Too short a text.\n")
    (tmp_path / "long").write_text("".join(f"A line that is number {n} of many.\n" for n in range(9000)))
    done = fledge(tmp_path, "start", text, "--time", limit)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
