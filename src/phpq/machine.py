"""This machine: versions, devices, memory, what is kept on disk, and what is not installed."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from phpq._version import __version__
from phpq.data import data_home
from phpq.errors import EXTRAS

_PACKAGES = ("onnxruntime", "torch", "torchvision", "timm", "numpy", "pillow", "faiss-cpu")

# What needs a package that `pip install phpq` does not bring.
_TASKS = {
    "torch": "training and the demo; heat maps",
    "timm": "training and the demo",
    "onnx": "writing encoder.onnx",
    "matplotlib": "pictures of an evaluation",
    "scipy": "the lists of Stanford Dogs",
    "faiss": "the methods PQ and OPQ, export to faiss, the rivals of phpq compare",
    "ray": "several machines (--ray)",
}


def describe_machine(*, home: Path | None = None) -> dict[str, Any]:
    """Return versions, devices, memory, folders that are kept, and what is missing for what."""
    devices = [{"name": "cpu", "model": processor()}]
    threads = None
    if find_spec("torch") is not None:
        import torch

        threads = torch.get_num_threads()
        devices += [
            {"name": f"cuda:{number}", "model": torch.cuda.get_device_name(number)}
            for number in range(torch.cuda.device_count())
        ]
        if torch.backends.mps.is_available():
            devices.append({"name": "mps", "model": "Apple GPU"})
    return {
        "phpq": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "missing": missing_packages(),
        "devices": devices,
        "cores": os.cpu_count(),
        "torch_threads": threads,
        "memory_bytes": total_memory(),
        "data_home": str(data_home(home)),
        "caches": [_kept(folder) for folder in (data_home(home), _hub_cache())],
    }


def missing_packages() -> list[dict[str, str]]:
    """Return what is not installed: the package, what needs it, and how it is installed."""
    return [
        {"package": name, "for": task, "install": f"pip install 'phpq[{EXTRAS[name]}]'"}
        for name, task in _TASKS.items()
        if find_spec(name) is None
    ]


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _kept(folder: Path) -> dict[str, Any]:
    """Return what a folder holds, and what the disk under it, or under its parents, can take."""
    files = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return {
        "folder": str(folder),
        "bytes": sum(path.lstat().st_size for path in files),
        "free_bytes": shutil.disk_usage(there).free,
    }


def total_memory() -> int | None:
    """Return the bytes of memory that the machine has; None where the system does not tell."""
    if platform.system() == "Windows":
        kilobytes = ctypes.c_ulonglong()
        kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
        told = kernel.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return 1024 * kilobytes.value if told else None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def available_memory() -> float:
    """Return the bytes that other programs leave, as far as the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return 1024.0 * next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4e9


def processor() -> str:
    """Return what the system calls its processor."""
    try:
        facts = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        facts = ""
    found = re.search(r"model name\s*:\s*(.*\S)", facts)
    return found[1] if found else platform.processor() or platform.machine()


def code_commit() -> str:
    """Ask git which commit this code is; empty where there is none."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
