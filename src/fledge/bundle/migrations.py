"""Old bundles keep loading: each format version has one step that turns its manifest into the next version's.

A new version adds a function and a line to `STEPS`, raises `VERSION`, and leaves a small bundle of the old version in
the tests. Settings need no step while their names and meanings stay: a manifest spells out every value, so a changed
default changes no old bundle; a renamed or removed setting does need one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fledge import __version__
from fledge.errors import FledgeError

VERSION = 1

Values = dict[str, Any]
STEPS: Mapping[int, Callable[[Values], Values]] = {}


def migrate(
    values: Values,
    where: str,
    sealed: bool = True,
    steps: Mapping[int, Callable[[Values], Values]] = STEPS,
    version: int = VERSION,
) -> Values:
    """`values` of any older format version as those of the present one; a newer one is refused with what reads it."""
    found = values.get("version")
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise FledgeError(f"{where} has no format version: it is no bundle, or it was changed.")
    if found > version:
        needs = values.get("readable_by")
        release = f"a later fledge than {__version__}"
        if isinstance(needs, str) and needs.isprintable() and needs != __version__:
            release = f"fledge {needs[:20]} or later"
        raise FledgeError(
            f"{where} has format version {str(found)[:20]}, and this fledge reads up to {version}. It needs {release}: "
            "pip install --upgrade fledge-lm"
        )
    if not sealed:
        raise FledgeError(f"{where} does not match its own checksum: it was cut or changed after it was written.")
    for step in range(found, version):
        values = {**steps[step](values), "version": step + 1}
    return values
