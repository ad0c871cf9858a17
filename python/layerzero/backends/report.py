"""Each backend for `layerzero backends` and `doctor`: what it provides, what is missing, and the command that fixes it."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from layerzero import _layerzero, backends

PCI = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
OWN = {
    "layerzero.cpu": ("cpu", "LayerZero's own kernels for CPUs, and the references in double precision."),
    "layerzero.cuda": ("cuda", "LayerZero's own CUDA kernels, in liblayerzero_cuda.so beside the engine."),
}
# C libraries that kernels of ours call: what each does, the command that installs it, its file, the version tested.
LIBRARIES = {
    "onednn": (
        "oneDNN 3: products of float32 and, with AVX-512, bfloat16 matrices.",
        "pip install onednn-cpu-gomp",
        f"{sys.prefix}/lib/libdnnl.so.3",
        "3.2",
    ),
    "libxsmm": (
        "libxsmm 1.17: products with weights that are stored by columns (GPT-2's) or in panels.",
        f"sudo apt-get install libxsmm-dev gcc; gcc -shared -o {sys.prefix}/lib/libxsmm.so -Wl,--whole-archive -l:libxsmm.a"
        " -Wl,--no-whole-archive -l:libxsmmnoblas.a -lm -ldl -lrt -lpthread",
        f"{sys.prefix}/lib/libxsmm.so",
        "1.17",
    ),
    "openblas": (
        "OpenBLAS: products of float32 matrices.",
        "sudo apt-get install libopenblas0-pthread",
        "libopenblas.so.0",
        "0.3.21",
    ),
}
VARIABLE = "LAYERZERO_LIBRARIES"


def report() -> list[dict[str, Any]]:
    """One record a backend: name, description, platform, installed, version, tested_with, kernels, operations, missing.

    `missing`: {"what", "detail", "fix"} each; `fix` is a command, or null where nothing can be installed.
    """
    backends.ensure_registered()
    devices = json.loads(_layerzero.devices())
    kernels = json.loads(_layerzero.kernels(None))
    found = [_own(name, devices, kernels) for name in OWN]
    found += [_library(name, kernels) for name in sorted({k["source"] for k in kernels if k["library"]})]
    found += [{"name": name, **library} for name, library in backends.libraries().items()]
    no_device = device_missing(devices)
    for backend in found:
        if no_device and backend["platform"] == "cuda":
            backend["missing"] = [*backend["missing"], no_device]
        backend["usable"] = not backend["missing"]
    return found


def device_missing(devices: dict[str, Any]) -> dict[str, Any] | None:
    """Why there is no CUDA device, of `_layerzero.devices()`; None if there is one."""
    why = devices["why_no_cuda"]
    return {"what": "a CUDA device", "detail": why, "fix": _fix_of_driver(why)} if why else None


def _fix_of_driver(why: str) -> str | None:
    if "was not found" in why:
        return "sudo apt-get install nvidia-driver" if _has_nvidia_device() else None
    if "does not load" in why or "lacks functions" in why:
        return "sudo apt-get install --reinstall nvidia-driver"
    if "shows no device" in why or "no CUDA-capable device" in why:
        return "unset CUDA_VISIBLE_DEVICES; nvidia-smi --list-gpus"
    return "nvidia-smi"


def _has_nvidia_device() -> bool:
    """Whether the PCI bus shows a device of NVIDIA; without a bus to look at: it may have one."""
    vendors = list(PCI.glob("*/vendor"))
    return not vendors or any(vendor.read_text().strip() == NVIDIA for vendor in vendors)


def _library(name: str, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """A library that the user names in LAYERZERO_LIBRARIES; nothing is opened unasked."""
    description, install, path, tested_with = LIBRARIES.get(name, (f"The C library {name}.", None, name, None))
    own = [k for k in kernels if k["source"] == name]
    why = "" if own[0]["installed"] else own[0]["detail"]
    named = [entry for entry in os.environ.get(VARIABLE, "").split(",") if entry and not entry.startswith(f"{name}=")]
    export = f"export {VARIABLE}={shlex.quote(','.join([*named, f'{name}={path}']))}"
    fix = f"{install}; {export}" if install else export
    return {
        "name": name,
        "description": description,
        "platform": "cpu",
        "kernels": len(own),
        "operations": sorted({kernel["operation"] for kernel in own}),
        "version": None,
        "tested_with": tested_with,
        "installed": not why,
        "missing": [{"what": name, "detail": why, "fix": fix}] if why else [],
    }


def _own(name: str, devices: dict[str, Any], kernels: list[dict[str, Any]]) -> dict[str, Any]:
    platform, description = OWN[name]
    kernels = [k for k in kernels if k["native"] and not k["library"] and k["platform"] == platform]
    missing = []
    if platform == "cuda" and devices["cuda_library"] != "loaded":
        absent = devices["cuda_library"] == "none"
        detail = "this build has no CUDA kernels: nvcc was not found" if absent else devices["cuda_library"]
        missing.append({"what": "liblayerzero_cuda.so", "detail": detail, "fix": "make build"})
    version = _layerzero.build_id()[0]
    return {
        "name": name,
        "description": description,
        "platform": platform,
        "kernels": len(kernels),
        "operations": sorted({kernel["operation"] for kernel in kernels}),
        "version": version,
        "tested_with": version,
        "installed": not missing,
        "missing": missing,
    }
