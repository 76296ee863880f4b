"""What an optional part needs, and how to install it: from a clone as the README says, from an index by name."""

from __future__ import annotations

import importlib.metadata
import json
from importlib.metadata import Distribution, PackageNotFoundError, packages_distributions
from pathlib import Path
from urllib.parse import unquote, urlparse

from fledge.errors import FledgeError

DISTRIBUTION = "fledge-lm"
"What pip installs. The name `fledge` on PyPI belongs to another project."


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
        return f"pip install '{DISTRIBUTION}[{extra}]'"
    here = clone == Path.cwd()
    tested = clone / "constraints.txt"
    constraints = f"-c {tested.name if here else tested} " if tested.is_file() else ""
    return f"pip install {constraints}'{'.' if here else clone}[{extra}]'"


def own_distribution() -> Distribution | None:
    """The distribution that this package was installed by: ours, or whatever else provides `fledge` (a fork, a clone
    installed before the name was chosen)."""
    try:
        return importlib.metadata.distribution(DISTRIBUTION)
    except PackageNotFoundError:
        names = packages_distributions().get("fledge", [])
    return importlib.metadata.distribution(names[0]) if names else None


def source_folder() -> Path | None:
    """The clone that fledge was installed from, if it is still there."""
    found = own_distribution()
    origin = found.read_text("direct_url.json") if found is not None else None
    address = urlparse(json.loads(origin or "{}").get("url", ""))
    folder = Path(unquote(address.path))
    return folder if address.scheme == "file" and (folder / "pyproject.toml").is_file() else None
