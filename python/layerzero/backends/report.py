"""Reports on backends for `layerzero backends` and `doctor`: contents, what is missing, and how to fix it."""

import json
import math
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layerzero import _layerzero, backends
from layerzero.backends import compatibility
from layerzero.host.policy import IN_PROCESS, is_allowed, isolation

PCI = Path("/sys/bus/pci/devices")
NVIDIA = "0x10de"
OWN = {
    "layerzero.cpu": ("cpu", "LayerZero's own kernels for CPUs, and the references in double precision."),
    "layerzero.cuda": ("cuda", "LayerZero's own CUDA kernels, in liblayerzero_cuda.so next to the engine."),
}
# C libraries that own kernels call: description, the command that installs it, its file, the tested version. Without a
# file the library is found where the command installs it.
LIBRARIES: dict[str, tuple[str, str | None, str | None, str]] = {
    "cublaslt": (
        "cuBLASLt of CUDA 12 or 13, which torch with CUDA brings: matrix products with bias or activation; not timed.",
        "pip install nvidia-cublas",
        None,
        "13.0",
    ),
    "onednn": (
        "oneDNN 3: matrix products in float32 and, with AVX-512, bfloat16.",
        "pip install onednn-cpu-gomp",
        f"{sys.prefix}/lib/libdnnl.so.3",
        "3.2",
    ),
    "libxsmm": (
        "libxsmm 1.17: matrix products with column-major weights (GPT-2's) or panels.",
        f"sudo apt-get install libxsmm-dev gcc; gcc -shared -o {sys.prefix}/lib/libxsmm.so -Wl,--whole-archive -l:libxsmm.a"
        " -Wl,--no-whole-archive -l:libxsmmnoblas.a -lm -ldl -lrt -lpthread",
        f"{sys.prefix}/lib/libxsmm.so",
        "1.17",
    ),
    "openblas": (
        "OpenBLAS: matrix products in float32.",
        "sudo apt-get install libopenblas0-pthread",
        "libopenblas.so.0",
        "0.3.21",
    ),
}
VARIABLE = "LAYERZERO_LIBRARIES"


def report(imports: bool = True) -> list[dict[str, Any]]:
    """Returns for each backend name, description, platform, installed, version, tested_with, origin, kernels,
    operations, missing, tried, compatibility and worker: None, or how the policy's backend_isolation runs its kernels.

    `missing`: {"what", "detail", "fix", "code"} each; `fix` is a command, or null if nothing can be installed; `code`
    is the reason code in explain, or null. Installed libraries that the policy allows are imported and tested here,
    unless `imports` is False; `tried` is False for untested ones. `compatibility`: see compatibility.state().
    """
    backends.ensure_registered()
    devices = json.loads(_layerzero.devices())
    kernels = json.loads(_layerzero.kernels(None, False))
    found = [_own(name, devices, kernels) for name in OWN]
    found += [_library(name, kernels) for name in sorted({k["source"] for k in kernels if k["library"]})]
    found += [{"name": name, **_tried(name, one, imports)} for name, one in backends.libraries().items()]
    untried = {k["backend"] for k in json.loads(_layerzero.kernels(None, False)) if k["usable"] is None}
    no_device = device_missing(devices)
    for backend in found:
        if no_device and backend["platform"] == "cuda":
            backend["missing"] = [*backend["missing"], no_device]
        backend["usable"] = not backend["missing"]
        backend["tried"] = backend["name"] not in untried
        backend["compatibility"] = compatibility.state(backend["name"], backend, backend.pop("requires", []), devices)
        backend["worker"] = _worker(backend["name"]) if backend["name"] in backends.libraries() else None
    return found


def _worker(name: str) -> dict[str, Any] | None:
    """Returns {"mode", "pid", "starts", "last_end"} of a library whose kernels run in a worker."""
    mode = isolation().mode_of(name)
    if mode == IN_PROCESS:
        return None
    client = sys.modules.get("layerzero.isolation.client")
    state = client.states().get(name) if client is not None else None
    return state or {"mode": mode, "pid": None, "starts": 0, "last_end": None}


def serving(found: list[dict[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the backends of a report that can be used in this process at once and have kernels of a named operation:
    each was compared with the process's CUDA, driver and devices."""
    from layerzero.contracts import contracts

    wanted = {operation["id"] for name in names for operation in contracts()[name]["operations"]}
    return [one for one in found if one["usable"] and wanted & set(one["operations"])]


def gains() -> dict[str, dict[str, Any]]:
    """What measured records in force on this machine's CPU say of libraries whose kernels cannot be used here:
    {"calls": measured, "faster": of those, than all that can be used, "speedup": geometric mean of these} by library."""
    kernels = {kernel["kernel_id"]: kernel for kernel in json.loads(_layerzero.kernels(None, False))}
    found: dict[str, list[float]] = {}
    for call in json.loads(_layerzero.measured_calls()):
        best: dict[str, float] = {}  # by library; "" of all that can be used
        for kernel_id, us in call["us"].items():
            if (kernel := kernels.get(kernel_id)) is not None:
                library = "" if kernel["usable"] is not False else kernel["backend"]
                best[library] = min(us, best.get(library, math.inf))
        usable = best.pop("", None)
        if usable is None:
            continue
        for library, us in best.items():
            found.setdefault(library, []).append(usable / us)
    return {library: _gain(ratios) for library, ratios in found.items()}


def _gain(ratios: list[float]) -> dict[str, Any]:
    faster = [ratio for ratio in ratios if ratio > 1]
    speedup = math.exp(math.fsum(map(math.log, faster)) / len(faster)) if faster else None
    return {"calls": len(ratios), "faster": len(faster), "speedup": speedup}


def _tried(name: str, library: dict[str, Any], imports: bool) -> dict[str, Any]:
    """Returns a backend's record, with the reason if it is installed but cannot be used."""
    error = _layerzero.prove_backend(name) if imports and library["installed"] and is_allowed(name) else ""
    if not error:
        return library
    item = {"what": f"a {name} that works", "detail": error, "fix": None, "code": "BACKEND_IMPORT_FAILED"}
    return {**library, "missing": [*library["missing"], item]}


def lacking(libraries: Iterable[str], imports: bool = True) -> list[dict[str, Any]]:
    """Returns {"library", "detail", "fix"} of each named library whose kernels cannot be used now."""
    return _Lacking(json.loads(_layerzero.kernels(None, False)), imports).of(libraries)


class _Lacking:
    """What libraries lack by one reading of the kernels; each library is tried once."""

    def __init__(self, kernels: list[dict[str, Any]], imports: bool) -> None:
        self._kernels, self._imports = kernels, imports
        self._known = backends.libraries()
        self._found: dict[str, list[dict[str, Any]]] = {}

    def of(self, libraries: Iterable[str]) -> list[dict[str, Any]]:
        found = []
        for name in libraries:
            if name not in self._found:
                self._found[name] = self._items(name)
            found += self._found[name]
        return found

    def _items(self, name: str) -> list[dict[str, Any]]:
        own = [k for k in self._kernels if k["backend"] == name and k["usable"] is not True]
        if not own:
            return []  # it was unregistered since
        known = name in self._known
        library = _tried(name, self._known[name], self._imports) if known else _library(name, self._kernels)
        tried = known and self._imports and not library["missing"]  # and what was only not tried before works
        own = [k for k in own if k["usable"] is False] if tried else own
        items = library["missing"] or [{"detail": k["detail"], "fix": None} for k in own[:1]]
        return [{"library": name, "detail": item["detail"], "fix": item["fix"]} for item in items]


def advice(libraries: Iterable[str]) -> str:
    """Returns advice for calls that only a reference serves."""
    items = lacking(libraries)
    if not items:
        return "no other kernel takes this call and no library that could be installed has one; layerzero.explain shows why"
    texts = (f"`{i['fix']}`" if i["fix"] else f"mend {i['library']} ({i['detail']})" for i in items)
    return f"kernels of {', '.join(dict.fromkeys(i['library'] for i in items))} would take it: {', '.join(texts)}"


def served_by_reference(
    uses: list[dict[str, Any]], devices: dict[str, Any], imports: bool = True
) -> list[dict[str, Any]]:
    """Returns operations that only a reference serves on a device of this machine: first those that have served calls,
    then those without any usable kernel.

    {"operation", "platform", "kernel_id" or None, "calls", "lacking"} each, see lacking().
    """
    kernels = json.loads(_layerzero.kernels(None, False))
    lacks = _Lacking(kernels, imports)
    found = [{**{k: v for k, v in u.items() if k != "libraries"}, "lacking": lacks.of(u["libraries"])} for u in uses]
    seen = {(u["operation"], u["platform"]) for u in uses}
    for platform in dict.fromkeys(device["platform"] for device in devices["devices"]):
        own = [k for k in kernels if k["platform"] in ("any", platform) and not k["reference"]]
        own = [k for k in own if k["jit"] not in ("recorded", "done")]  # compiled references are references
        served = {k["operation"] for k in own if k["usable"] is not False}
        for operation in sorted({k["operation"] for k in kernels} - served):
            libraries = dict.fromkeys(k["backend"] for k in own if k["operation"] == operation)
            if (operation, platform) not in seen and (libraries or platform != "cpu"):
                entry = {"operation": operation, "kernel_id": None, "platform": platform, "calls": 0}
                found.append({**entry, "lacking": lacks.of(libraries)})
    return found


def device_missing(devices: dict[str, Any]) -> dict[str, Any] | None:
    """Returns why there is no CUDA device, from `_layerzero.devices()`; None if there is one."""
    why = devices["why_no_cuda"]
    return {"what": "a CUDA device", "detail": why, "fix": _fix_of_driver(why), "code": None} if why else None


def _fix_of_driver(why: str) -> str | None:
    if "was not found" in why:
        return "sudo apt-get install nvidia-driver" if _has_nvidia_device() else None
    if "does not load" in why or "lacks functions" in why:
        return "sudo apt-get install --reinstall nvidia-driver"
    if "shows no device" in why or "no CUDA-capable device" in why:
        return "unset CUDA_VISIBLE_DEVICES; nvidia-smi --list-gpus"
    return "nvidia-smi"


def _has_nvidia_device() -> bool:
    """True if the PCI bus has an NVIDIA device, or if there is no PCI bus to inspect."""
    vendors = list(PCI.glob("*/vendor"))
    return not vendors or any(vendor.read_text().strip() == NVIDIA for vendor in vendors)


def _library(name: str, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the record of a C library, which is only opened if LAYERZERO_LIBRARIES names it or a call needs it."""
    description, install, path, tested_with = LIBRARIES.get(name, (f"The C library {name}.", None, name, "?"))
    own = [k for k in kernels if k["source"] == name]
    why = "" if own[0]["installed"] else own[0]["detail"]
    named = [entry for entry in os.environ.get(VARIABLE, "").split(",") if entry and not entry.startswith(f"{name}=")]
    export: str | None = None
    if path is not None:
        export = f"export {VARIABLE}={shlex.quote(','.join([*named, f'{name}={path}']))}"
    elif f"{name}=" in os.environ.get(VARIABLE, ""):  # a name for another file would be taken first
        export = f"export {VARIABLE}={shlex.quote(','.join(named))}"
    fix = "; ".join(command for command in (install, export) if command)
    return {
        "name": name,
        "description": description,
        "platform": own[0]["platform"],
        "kernels": len(own),
        "operations": sorted({kernel["operation"] for kernel in own}),
        "version": None,
        "tested_with": tested_with,
        "origin": "builtin",
        "installed": not why,
        "missing": [{"what": name, "detail": why, "fix": fix, "code": "NOT_INSTALLED"}] if why else [],
    }


def _own(name: str, devices: dict[str, Any], kernels: list[dict[str, Any]]) -> dict[str, Any]:
    platform, description = OWN[name]
    kernels = [k for k in kernels if k["native"] and not k["library"] and k["platform"] == platform]
    missing = []
    if platform == "cuda" and devices["cuda_library"] != "loaded":
        absent = devices["cuda_library"] == "none"
        detail = "this build has no CUDA kernels: nvcc was not found" if absent else devices["cuda_library"]
        missing.append({"what": "liblayerzero_cuda.so", "detail": detail, "fix": "make build", "code": None})
    version = _layerzero.build_id()[0]
    return {
        "name": name,
        "description": description,
        "platform": platform,
        "kernels": len(kernels),
        "operations": sorted({kernel["operation"] for kernel in kernels}),
        "version": version,
        "tested_with": version,
        "origin": "builtin",
        "installed": not missing,
        "missing": missing,
    }
