"""The handbook's page on training: every command and example runs, with a few steps on a small text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation import run_page

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
SMALL = "".join(
    f" --set {change}"
    for change in (
        "training.steps=4",
        "training.save_every=2",
        "training.batch_size=2",
        "training.evaluate_windows=4",
        "sampling.max_tokens=8",
    )
)


def test_the_commands_and_examples_of_the_page_run(tmp_path: Path) -> None:
    pytest.importorskip("pythonbible_akjv")
    recipe = re.search(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
    assert recipe is not None
    (tmp_path / "my.toml").write_text(recipe[1].replace("width = 256", "width = 32"))
    (tmp_path / "my-texts").mkdir()
    for number in range(40):
        text = f"In the beginning there was text number {number}, and it was {'very ' * (number % 7)}short. " * 20
        (tmp_path / "my-texts" / f"{number}.txt").write_text(text)
    small = {f"fledge train {recipe}": f"fledge train {recipe}{SMALL}" for recipe in ("akjv-demo", "my.toml")}
    ran = run_page(
        PAGE,
        tmp_path,
        replace={**small, "--at 2500": "--at 2", "training.steps=200": "training.steps=3"},
        environment={"OMP_NUM_THREADS": "1"},
    )
    assert [example.language for example in ran] == ["sh", "python", "sh", "python"]
    assert (tmp_path / "runs" / "tuned" / "checkpoints" / "step-00000004").is_dir()
