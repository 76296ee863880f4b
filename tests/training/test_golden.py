"""Twenty steps of every recipe, shrunk to run in a second, give the stored losses: to the bit on an equal machine.

A change that is meant to alter the numbers rewrites the file: python -m tests.training.test_golden
"""

from __future__ import annotations

import json
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.config import RunConfig, load_recipe, parse, recipe_names
from fledge.training import read_metrics

from .support import TextWindows, run

GOLDEN = Path(__file__).parent / "golden.json"


def machine() -> dict[str, str]:
    """What bits depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "capability": capability, "processor": processor()}


def processor() -> str:
    """The processor's make: two of the same capability may still add up in another order."""
    facts = Path("/proc/cpuinfo")
    if not facts.is_file():
        return platform.processor()
    lines = dict(line.split(":", 1) for line in facts.read_text().split("\n\n")[0].splitlines() if ":" in line)
    found = {name.strip(): value.strip() for name, value in lines.items()}
    return " ".join(found.get(name, "") for name in ("vendor_id", "cpu family", "model"))


def shrunk(recipe: str) -> RunConfig:
    """The recipe with its kinds of parts and every size small."""
    values: dict[str, Any] = load_recipe(recipe).model_dump(mode="json")
    model = values["model"]
    model.update(layers=min(2, model["layers"]), width=32, heads=2, kv_heads=None, hidden=None, multiplier=4)
    if model["architecture"] != "bdh":
        model["multiplier"] = 128
    values["tokens"].update(context_length=16, policy="stream", store=None)
    values["schedule"]["warmup_steps"] = 5
    values["sampling"] = {"max_tokens": 1, "prompt": "in"}
    values["training"] = {
        "steps": 20,
        "batch_size": 4,
        "threads": 1,
        "device": "cpu",
        "log_every": 1,
        "save_every": 0,
        "evaluate_every": 0,
        "sample_every": 0,
        "evaluate_windows": 4,
    }
    return parse(RunConfig, values)


def losses(recipe: str) -> list[float]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = torch.get_num_threads()
        result = run(shrunk(recipe), Path(folder) / "run", windows=TextWindows(16))
        torch.set_num_threads(threads)
        return [float(row["loss"]) for row in read_metrics(result.metrics) if row["loss"]]


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_gives_its_golden_losses(recipe: str) -> None:
    stored = json.loads(GOLDEN.read_text())
    assert recipe in stored["losses"], "a new recipe: write its losses with python -m tests.training.test_golden"
    found, golden = losses(recipe), stored["losses"][recipe]
    if machine() == stored["machine"]:
        assert found == golden
    else:
        assert found == pytest.approx(golden, rel=1e-3)


if __name__ == "__main__":
    values = {"machine": machine(), "losses": {recipe: losses(recipe) for recipe in recipe_names()}}
    GOLDEN.write_text(json.dumps(values, indent=1) + "\n")
