"""The notebook that trains a recipe on Kaggle or Colab: its cells, and the file they make.

The cells find the attached dataset, install fledge from it without a network, and hand over to `fledge` itself;
what runs after the installation lives in `kernel.py`, where it is tested.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

SETTINGS = """\
import importlib, os, shlex, shutil, subprocess, sys, tempfile, time
from pathlib import Path

STARTED = time.monotonic()
NAME = {name!r}
TIME = os.environ.get("FLEDGE_TIME", {time!r})  # for all of this notebook's work but the report
COLAB = "COLAB_RELEASE_TAG" in os.environ
if COLAB and "FLEDGE_INPUT" not in os.environ:  # on Colab, dataset and results lie in Google Drive
    from google.colab import drive

    drive.mount("/content/drive")
HOME = "/content/drive/MyDrive/{slug}" if COLAB else "/kaggle"
INPUT = Path(os.environ.get("FLEDGE_INPUT", HOME if COLAB else f"{{HOME}}/input"))
WORKING = Path(os.environ.get("FLEDGE_WORKING", f"{{HOME}}/working"))
found = sorted(INPUT.rglob({manifest!r}))
if not found:
    raise RuntimeError(f"Nothing in {{INPUT}} holds {manifest}: attach the dataset {slug}-data to this notebook.")
DATASET = found[0].parent
WORKING.mkdir(parents=True, exist_ok=True)
os.chdir(DATASET)  # the recipe names its files from here
print("dataset:", DATASET, "results:", WORKING, sep="\\n")
"""

INSTALL = """\
WHEELS = Path(tempfile.mkdtemp())
for file in DATASET.glob("*.whl"):
    shutil.copyfile(file, WHEELS / file.name)
for file in DATASET.glob("*.sdist"):  # a name that no upload unpacks
    shutil.copyfile(file, WHEELS / f"{file.stem}.tar.gz")


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = [] if os.environ.get("FLEDGE_NETWORK") else ["--no-index"]
    done = subprocess.run([*command, *offline, "--find-links", str(WHEELS), *arguments], capture_output=True, text=True)
    print(done.stdout + done.stderr if done.returncode else "", end="")
    return done.returncode == 0


def works():
    command = [sys.executable, "-c", "import fledge._core"]
    return subprocess.run(command, cwd=WHEELS, capture_output=True).returncode == 0


ours = ["--force-reinstall", "--no-deps"]
if not (pip(*ours, "--only-binary", PROGRAM, PROGRAM) and works()):
    print("No wheel fits this machine: compiling the source, a minute or two.")
    pip("scikit-build-core", "nanobind", *(["cmake", "ninja"] if any(WHEELS.glob("cmake-*")) else []))
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pip(*ours, "--no-build-isolation", "--no-binary", PROGRAM, PROGRAM)
needed = REQUIREMENTS
if not pip(*needed):
    print("Not everything is as new as fledge asks for; what there is may do:")
    for requirement in needed:
        pip(requirement)
if not works() or subprocess.run([sys.executable, "-m", "fledge", "--version"]).returncode:
    raise RuntimeError("fledge cannot be installed here: the lines above say what is missing.")
importlib.invalidate_caches()
import fledge

print("fledge", fledge.__version__, "from", Path(fledge.__file__).parent)
"""

TAKE_UP = """\
from fledge.kaggle.kernel import changed_settings, collect, lengths, take_up, tokenize

RUN, STEP = take_up(NAME, INPUT, WORKING)
for change in changed_settings(DATASET / "recipe.json", RUN):
    print("The attached run keeps its own setting:", change)
print(f"resuming from step {STEP:,}" if STEP else "a new run", RUN, sep="\\n")
"""

TOKENIZE = """\
STORE = tokenize(DATASET / "recipe.json", WORKING)
"""

TRAIN = """\
import torch

from fledge.kaggle.kernel import train
from fledge.training import parse_duration

left = max(1, int(parse_duration(TIME) - (time.monotonic() - STARTED)))
if STEP:
    arguments = ["train", "--resume", str(RUN), *lengths(DATASET / "recipe.json")]
else:
    arguments = ["train", "recipe.json", "--out", str(RUN)]
arguments += [*STORE, "--time-limit", f"{left}s"]
devices = torch.cuda.device_count()
several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"] if devices > 1 else []
print("$ fledge", shlex.join(arguments), flush=True)
train([sys.executable, *several, "-m", "fledge", *arguments], RUN)
"""

COLLECT = """\
from fledge.reports.page import cell

for path in collect(RUN, WORKING):
    print(path, f"{path.stat().st_size / 1e6:.1f} MB")
cell(RUN / "report.html")
"""


def notebook(
    name: str, slug: str, time: str, program: str, requirements: list[str], manifest: str, network: str = ""
) -> bytes:
    """The whole notebook as a file: `program` is the name that pip knows fledge by, `network` what it needs one for."""
    settings = SETTINGS.format(name=name, slug=slug, time=time, manifest=manifest)
    parts = [
        (
            "markdown",
            f"# {name}\n\nTrains the recipe `{name}` with fledge, which is installed from the attached dataset. "
            f"{f'A network is needed, for {network}' if network else 'No network is needed'}. It stops, saved, within "
            f"{time}. To go on in the next version, attach this notebook's own output as an input, and run it again.",
        ),
        ("code", settings),
        ("markdown", "## Install fledge, without a network"),
        ("code", INSTALL.replace("REQUIREMENTS", repr(requirements)).replace("PROGRAM", repr(program))),
        ("markdown", "## Take up the previous version's run, if its output is attached"),
        ("code", TAKE_UP),
        ("markdown", "## Text to tokens"),
        ("code", TOKENIZE),
        ("markdown", "## Train, within the time limit"),
        ("code", TRAIN),
        ("markdown", "## Bundle, metrics and report, to download"),
        ("code", COLLECT),
    ]
    values = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "cells": [_cell(number, kind, text) for number, (kind, text) in enumerate(parts)],
    }
    return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": hashlib.sha256(f"{number} {text}".encode()).hexdigest()[:8],
        "metadata": {},
        "source": text.strip().splitlines(keepends=True),
    }
    return {**cell, "execution_count": None, "outputs": []} if kind == "code" else cell
