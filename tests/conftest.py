"""Shared by all tests: where the reference data lies, and what is skipped without it."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

# What a shell began in the background ignores Ctrl-C, and so do its own processes: tests that send it would wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail: properties are judged by their truth, not by their time.
settings.register_profile("fledge", deadline=None)
settings.load_profile("fledge")

DATA = Path(os.environ.get("FLEDGE_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


class NotesAsWarnings(logging.Handler):
    """What the library notes, for `pytest.warns` and pytest's summary."""

    def emit(self, record: logging.LogRecord) -> None:
        warnings.warn(record.getMessage())


logging.getLogger("fledge").addHandler(NotesAsWarnings())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text and reference vocabularies that lie beside the project; a user's clone does not have them."""
    if not DATA.is_dir():
        pytest.skip("the reference data is not here (set FLEDGE_TEST_DATA to its folder)")
    return DATA
