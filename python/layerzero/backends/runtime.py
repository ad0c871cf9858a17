"""The GPU runtime of this process: a process holds one major version of CUDA or ROCm."""

import functools
import importlib.util
import re
import sys
from pathlib import Path
from typing import NamedTuple

RUNTIMES = re.compile(r"lib(cudart|cublas|cublasLt|nvrtc|amdhip64)\.so\.(\d+)")


class Runtime(NamedTuple):
    """A major version of a GPU runtime, and where it was read."""

    name: str  # "CUDA" or "ROCm"
    major: int
    origin: str

    def __str__(self) -> str:
        return f"{self.name} {self.major}"


def of_process() -> Runtime | None:
    """Returns the runtime that torch is built for, else the one that is loaded already; None if there is none."""
    torch = sys.modules.get("torch")
    if torch is not None:
        version = getattr(torch, "version", None)
        found = {"CUDA": getattr(version, "cuda", None), "ROCm": getattr(version, "hip", None)}
        text = getattr(torch, "__version__", "")
    else:
        found, text = _of_torch_on_disk()
    for name, number in found.items():
        if number:
            return Runtime(name, int(str(number).partition(".")[0]), f"torch {text}")
    loaded = loaded_runtimes()
    return loaded[0] if loaded else None


@functools.cache
def _of_torch_on_disk() -> tuple[dict[str, str | None], str]:
    """Returns the versions of CUDA and ROCm and torch's own from torch's version.py, without importing torch."""
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0], "version.py") if folders else None
    if path is None or not path.is_file():
        return {}, ""
    text = path.read_text()
    names = {"CUDA": "cuda", "ROCm": "hip", "": "__version__"}
    found = {key: re.search(rf"^{name}\b[^=]*= '([^']+)'", text, re.MULTILINE) for key, name in names.items()}
    values = {key: match.group(1) if match else None for key, match in found.items()}
    return values, values.pop("") or ""


def loaded_runtimes() -> list[Runtime]:
    """Returns the runtimes whose libraries are mapped into this process."""
    try:
        text = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    found = {of_library(name, major): name for name, major in RUNTIMES.findall(text) if name in ("cudart", "amdhip64")}
    return sorted(Runtime(*key, f"lib{name} is loaded") for key, name in found.items())


def of_library(library: str, major: str) -> tuple[str, int]:
    """Returns the runtime, ("CUDA", 13), that a library of RUNTIMES belongs to."""
    return ("ROCm" if library == "amdhip64" else "CUDA", int(major))
