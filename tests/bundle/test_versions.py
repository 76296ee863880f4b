"""Bundles of every format version keep loading; newer ones are refused with what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.bundle import load_bundle
from fledge.bundle.describe import describe
from fledge.bundle.migrations import STEPS, VERSION, migrate
from fledge.config import SamplingConfig
from fledge.errors import FledgeError
from fledge.generation import generate
from tests.bundle.fixtures.write import PROMPT

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_bundle_of_every_version_still_gives_its_scores(version: int) -> None:
    expected = json.loads((FIXTURES / f"version-{version}.expected.json").read_text())
    bundle = load_bundle(FIXTURES / f"version-{version}")
    assert bundle.tokenizer.encode(PROMPT) == expected["ids"]
    with torch.inference_mode():
        scores = bundle.model(torch.arange(1, 9)[None])[0, -1]
    torch.testing.assert_close(scores, torch.tensor(expected["scores"]), atol=1e-5, rtol=1e-4)
    greedy = generate(bundle.model, bundle.tokenizer, [PROMPT], SamplingConfig(temperature=0, max_tokens=8))[0]
    assert greedy.ids == expected["greedy"]
    assert bundle.training is not None
    assert bundle.training.values == {"step": 7}
    assert describe(bundle.path)["what it is"]


def test_there_is_a_step_and_a_bundle_for_every_version() -> None:
    assert set(STEPS) == set(range(1, VERSION))
    assert {path.name for path in FIXTURES.glob("version-*") if path.is_dir()} == {
        f"version-{version}" for version in range(1, VERSION + 1)
    }


def test_steps_are_taken_one_after_the_other() -> None:
    def rename(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "trail": [*values.get("trail", []), values["version"]]}

    steps = {1: rename, 2: rename, 3: rename}
    assert migrate({"version": 2}, "b", steps=steps, version=4) == {"version": 4, "trail": [2, 3]}
    assert migrate({"version": 4}, "b", steps=steps, version=4) == {"version": 4}


def test_a_newer_version_is_refused_with_the_release_that_reads_it() -> None:
    with pytest.raises(
        FledgeError, match=r"format version 9, and this fledge reads up to .* needs fledge 2\.1\.0 or later"
    ):
        migrate({"version": 9, "readable_by": "2.1.0"}, "bundle.json", sealed=False)
    with pytest.raises(FledgeError, match="a later fledge"):
        migrate({"version": 9, "readable_by": 5}, "bundle.json")
    with pytest.raises(FledgeError, match="no format version"):
        migrate({"version": True}, "bundle.json")
