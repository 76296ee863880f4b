"""What an optional part needs, and how to install it: from a clone as the README says, from an index by name."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from urllib.parse import unquote, urlparse

from fledge.errors import FledgeError


def missing(what: str, package: str, extra: str) -> FledgeError:
    """To raise where a package of an extra is not installed.

    >>> str(missing("Reading Parquet files", "pyarrow", "data")).partition("[")[0].partition(":")[0]
    'Reading Parquet files needs the package pyarrow'
    """
    return FledgeError(f"{what} needs the package {package}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that adds an extra to this installation."""
    clone = source_folder()
    if clone is None:
        return f"pip install 'fledge[{extra}]'"
    here = clone == Path.cwd()
    tested = clone / "constraints.txt"
    constraints = f"-c {tested.name if here else tested} " if tested.is_file() else ""
    return f"pip install {constraints}'{'.' if here else clone}[{extra}]'"


def source_folder() -> Path | None:
    """The clone that fledge was installed from, if it is still there."""
    try:
        origin = importlib.metadata.distribution("fledge").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    address = urlparse(json.loads(origin or "{}").get("url", ""))
    folder = Path(unquote(address.path))
    return folder if address.scheme == "file" and (folder / "pyproject.toml").is_file() else None
