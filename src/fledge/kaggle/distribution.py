"""The installed program as files to carry elsewhere: wheels repacked from what is installed, and the source of a clone.

Nothing is built or fetched: a wheel is the files that pip put down, listed and zipped again. fledge's own holds a
compiled core and fits machines like this one; the source, where there is a clone, is compiled anywhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from fledge.errors import FledgeError
from fledge.extras import DISTRIBUTION, own_distribution
from fledge.files import atomic_write

THERE = frozenset({"torch", "numpy", "matplotlib", "pydantic", "safetensors"})
"What Kaggle and Colab have installed: large, compiled, and not ours to replace."
BUILD = ("scikit-build-core", "nanobind")
TOOLS = (*BUILD, "cmake", "ninja")
"What compiles the source where the compiled core does not fit."
TARGETS = ("3.11", "3.12", "3.13", "3.14")
"The Pythons that a notebook may have: this one's dependencies are not theirs."
LOCAL = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"}  # of this installation, not of the distribution
SOURCE = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "csrc", "src")
DATE = (2020, 1, 1, 0, 0, 0)

Members = dict[str, bytes]


def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def own() -> Distribution:
    found = own_distribution()
    if found is None:
        raise FledgeError("fledge is not installed here, only importable: pip install . in its folder, then try again.")
    return found


def clone() -> Path | None:
    """The folder of the source that this program runs from; None where it was installed as a wheel."""
    import fledge

    root = Path(fledge.__file__).parents[2]
    return root if all((root / name).exists() for name in ("pyproject.toml", "CMakeLists.txt", "csrc")) else None


def tags(found: Distribution) -> list[str]:
    """The platforms of an installed distribution, such as `py3-none-any`."""
    lines = (found.read_text("WHEEL") or "").splitlines()
    return [line.removeprefix("Tag:").strip() for line in lines if line.startswith("Tag:")]


def is_pure(found: Distribution) -> bool:
    return bool(tags(found)) and all(tag.endswith("-none-any") for tag in tags(found))


def compiled_core() -> Path | None:
    """The compiled core in use; None without one, or where the clone's source has changed since it was built."""
    try:
        import fledge._core as core
    except ImportError:
        return None
    built, root = Path(str(core.__file__)), clone()
    if root is not None and any(path.stat().st_mtime > built.stat().st_mtime for path in _files(root / "csrc")):
        return None
    return built


def own_wheel(folder: Path) -> Path | None:
    """fledge itself, from a clone or from an installed wheel; None where it has no compiled core that fits it."""
    import fledge

    extension = compiled_core()
    if extension is None:
        return None
    found, package = own(), Path(fledge.__file__).parent
    members = {
        f"fledge/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in _files(package)
        if path.suffix not in (".so", ".pyd")
    }
    members[f"fledge/{extension.name}"] = extension.read_bytes()
    members |= {name: data for name, data in _installed_files(found).items() if ".dist-info/" in name}
    return _write_wheel(folder, found, members)


def repack(found: Distribution, folder: Path) -> Path:
    """An installed distribution as a wheel."""
    return _write_wheel(folder, found, _installed_files(found))


def needed(names: Sequence[str], extras: Sequence[str] = ()) -> tuple[list[Distribution], list[str]]:
    """Distributions that the named ones need, themselves included, as far as they are pure Python and installed here.

    Second, the names of those that have to be at the other place already. `extras` are those of fledge.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64"}
    targets = [{**linux, "python_version": one, "python_full_version": f"{one}.0"} for one in TARGETS]
    carried: dict[str, Distribution] = {}
    left: list[str] = []
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop(0))
        if name in carried or name in left or name in THERE:
            continue
        found = own_distribution() if name == DISTRIBUTION else installed(name)
        if found is None or (name != DISTRIBUTION and not is_pure(found)):
            left.append(name)
            continue
        carried[name] = found
        chosen = ["", *extras] if name == DISTRIBUTION else [""]
        for text in found.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or any(
                requirement.marker.evaluate({**target, "extra": extra}) for extra in chosen for target in targets
            ):
                waiting.append(requirement.name)
    carried.pop(DISTRIBUTION, None)
    return list(carried.values()), left


def fetch_tools(folder: Path) -> tuple[list[str], str]:
    """Fetch what compiles the source on Linux with any Python, as wheels, with pip; and why not, where that fails."""
    options = ["--quiet", "--disable-pip-version-check", "--retries=1", "--only-binary=:all:", "--dest", str(folder)]
    there = [part for kind in ("2014", "_2_17", "_2_28") for part in ("--platform", f"manylinux{kind}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", *options, *there, "--python-version", "3.12", *TOOLS]
    before = set(folder.glob("*.whl"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return [], "pip took too long"
    if done.returncode:
        return [], (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    return sorted(path.name for path in {*folder.glob("*.whl")} - before), ""


def fits_every_python(found: Distribution) -> bool:
    """Whether the compiled core runs with every later Python, and this one is as old as any that notebooks have."""
    return all(tag.split("-")[1] == "abi3" for tag in tags(found))


def requirements(extras: Sequence[str] = ()) -> list[str]:
    """What fledge asks for, as pip reads it; markers of the Python version stay with those they belong to."""
    from packaging.requirements import Requirement

    found = []
    for text in own().requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.append(text if marker is None or "extra" not in str(marker) else text.partition(";")[0].strip())
    return found


def source_archive(folder: Path, suffix: str = ".tar.gz") -> Path | None:
    """The clone's source as pip builds it, the same bytes for the same files; None without a clone."""
    root = clone()
    if root is None:
        return None
    found = own()
    name = f"{found.name.replace('-', '_')}-{found.version}"
    members = {"PKG-INFO": (found.read_text("METADATA") or "").encode()}
    for entry in SOURCE:
        for path in [root / entry] if (root / entry).is_file() else _files(root / entry):
            if path.suffix not in (".so", ".pyd"):
                members[path.relative_to(root).as_posix()] = path.read_bytes()
    target = folder / f"{name}{suffix}"
    with (
        atomic_write(target) as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path_name, data in sorted(members.items()):
            entry_info = tarfile.TarInfo(f"{name}/{path_name}")
            entry_info.size = len(data)
            archive.addfile(entry_info, io.BytesIO(data))
    return target


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
            yield path


def _installed_files(found: Distribution) -> Members:
    """What belongs to a distribution, without scripts outside its folder and notes of this installation."""
    members: Members = {}
    for file in found.files or []:
        inside = ".." not in file.parts and "__pycache__" not in file.parts and file.suffix != ".pyc"
        path = Path(str(file.locate()))
        if inside and file.name not in LOCAL and path.is_file():
            members[file.as_posix()] = path.read_bytes()
    return members


def _write_wheel(folder: Path, found: Distribution, members: Members) -> Path:
    info = next((name.partition("/")[0] for name in members if ".dist-info/" in name), None)
    if info is None:
        raise FledgeError(f"{found.name} was not installed from a wheel: its files cannot be packed again.")
    rows = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    rows.append(f"{info}/RECORD,,\n")
    parts = [tag.split("-") for tag in tags(found)]
    tag = "-".join(".".join(dict.fromkeys(part[i] for part in parts)) for i in range(3))
    target = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with atomic_write(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in [*members.items(), (f"{info}/RECORD", "".join(rows).encode())]:
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return target
