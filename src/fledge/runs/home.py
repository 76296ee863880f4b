"""Whether the folder that a run began in is still there: a person may move or delete it while training goes on."""

from __future__ import annotations

import os
from pathlib import Path

from fledge.errors import FledgeError
from fledge.runs.layout import CONFIG, METRICS


class Home:
    """A run's folder, known by a file that lies in it from the first step to the last: its settings, or its metrics
    where a program of one's own trains without settings there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sign = next((name for name in (CONFIG, METRICS) if (folder / name).is_file()), None)

    @property
    def gone(self) -> bool:
        """Whether the file is certainly not there; a disk that does not answer says nothing."""
        try:
            if self._sign is not None:
                os.stat(self.folder / self._sign)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False

    def error(self) -> FledgeError:
        return FledgeError(
            f"{self.folder} is not this run's folder any more: its {self._sign or CONFIG} is gone. It was "
            "moved or deleted during training, so nothing more is written there. Resume from the last "
            "checkpoint where the folder is now (fledge train --resume FOLDER), or start the run again."
        )
