"""`fledge doctor`: what this machine has, and what is missing for what."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fledge import devices
from fledge.cli.values import Json, print_json
from fledge.extras import install_command

CORE = ("torch", "numpy", "safetensors", "pydantic", "typer", "rich", "matplotlib")
EXTRAS = {
    "data": ("pyarrow", "zstandard", "fsspec", "aiohttp", "regex"),
    "demo": ("pythonbible_akjv",),
    "hub": ("gguf", "huggingface_hub", "onnx", "onnxscript"),
    "ray": ("ray",),
    "sweep": ("optuna",),
    "web": ("fastapi", "uvicorn"),
}


def doctor(as_json: Json = False) -> None:
    """Print versions, cores, memory, devices, and the installed extras."""
    import torch

    from fledge import __version__
    from fledge.files import readable_bytes
    from fledge.memory import total

    size = total()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows = {
        "fledge": __version__,
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: importlib.metadata.version(name) for name in CORE},
        "native core": native_core(),
        "cores": str(cores),
        "memory": readable_bytes(size) if size else "unknown",
        "disk": f"{readable_bytes(shutil.disk_usage('.').free)} free here",
    }
    for name in devices.names()[1:]:
        size = devices.total_memory(torch.device(name))
        rows[name] = devices.title(torch.device(name)) + (f", {readable_bytes(size)}" if size else "")
    if not devices.kinds():
        rows["GPU"] = "none: training runs on the CPU"
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        rows[f"[{extra}]"] = f"missing: {install_command(extra)}" if missing else "present"
    if as_json:
        return print_json(rows)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        table.add_row(escape(name), escape(value))
    Console().print(table)


def native_core() -> str:
    try:
        importlib.import_module("fledge._core")
    except ImportError as error:
        return f"missing ({error}): install fledge again with a C++ compiler present"
    return "present"
