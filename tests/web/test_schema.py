"""The API against its own OpenAPI document: schemathesis sends what fits and what does not, and finds nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fledge.web.app import create_app

schemathesis = pytest.importorskip("schemathesis", reason="the API is examined by schemathesis")

pytestmark = pytest.mark.slow
EXAMPLES = 60
# That heads must divide the width is beyond what a JSON schema can say; so are sizes that fit the disk, the order of
# parts, and that a recipe or a bundle is named.
BEYOND = ("/api/account", "/api/texts", "/api/texts/part", "/api/training/train")


def operations() -> list[tuple[str, str, str]]:
    """Every operation, sent what fits its document and, where it takes anything at all, what does not."""
    document = create_app([Path(__file__).parent]).app.openapi()  # type: ignore[attr-defined]
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            takes = operation.get("parameters") or operation.get("requestBody")
            found += [(method.upper(), path, mode) for mode in ("POSITIVE", *(["NEGATIVE"] if takes else []))]
    return found


@pytest.fixture(scope="module")
def api(address: str) -> Any:
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.parametrize(("method", "path", "mode"), operations())
def test_every_answer_is_as_documented(api: Any, method: str, path: str, mode: str) -> None:
    """No server error, no undocumented status, no answer of another form, no bad request that is taken for good."""
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    beyond = [positive_data_acceptance] if path in BEYOND else []

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy(generation_mode=getattr(schemathesis.GenerationMode, mode)))
    def examine(case: Any) -> None:
        answer = case.call()
        # A request that is too large is refused before anything in it is looked at.
        too_large = [negative_data_rejection] if answer.status_code == 413 else []
        case.validate_response(answer, excluded_checks=[*beyond, *too_large])

    examine()
