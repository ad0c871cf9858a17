"""The kernels of other libraries: descriptors become rows, availability is looked up, nothing is imported."""

import functools
import importlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from layerzero import _layerzero
from layerzero.backends.availability import availability_of, missing, version_of

FOLDER = Path(__file__).parent
_guard = threading.RLock()
_registered: set[str] = set()
_problems: dict[str, str] = {}
_libraries: dict[str, dict[str, Any]] = {}
_functions: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}  # of @register_kernel: adapter to its descriptor


def torch_attached() -> None:
    """Called when the door opens for torch: torch's rows, the references and the other libraries' rows are due."""
    ensure_registered()


def ensure_registered() -> None:
    """Registers every descriptor that is not registered yet. What is wrong with one is kept, see problems()."""
    with _guard:
        for name in sorted(p.parent.name for p in FOLDER.glob("*/capabilities.json")):
            if name not in _registered:
                _registered.add(name)
                _try(name, functools.partial(_register_folder, FOLDER / name))
        if "references" not in _registered:
            _registered.add("references")
            from layerzero.backends.references import descriptor

            _try("references", lambda: register(descriptor()))
        if "entry points" not in _registered:
            _registered.add("entry points")
            from layerzero.backends.entry_points import backends_of_entry_points

            for name, load in backends_of_entry_points():
                _try(name, load)


def _try(name: str, step: Callable[[], Any]) -> None:
    try:
        step()
    except Exception as error:  # a library is never fatal; the reason is kept
        _problems[name] = f"{name}: {type(error).__name__}: {error}"


def _register_folder(folder: Path) -> None:
    register(json.loads((folder / "capabilities.json").read_text()))


def register(descriptor: dict[str, Any]) -> None:
    """A descriptor's kernels become candidates; what is not installed is listed with the reason."""
    _libraries[descriptor["backend"]] = _library(descriptor)
    _layerzero.register_backend(json.dumps(descriptor), json.dumps(availability_of(descriptor)))


def _library(descriptor: dict[str, Any]) -> dict[str, Any]:
    requirements = descriptor.get("requires", [])
    return {
        "description": descriptor.get("description", ""),
        "platform": descriptor["platform"],
        "kernels": sum(len(rows) for rows in descriptor["ops"].values()),
        "operations": list(descriptor["ops"]),
        "version": version_of(requirements),
        "tested_with": descriptor["backend_version"],
        "installed": availability_of(descriptor)["*"]["installed"],
        "missing": missing(requirements),
    }


def add_function(adapter: str, function: Callable[..., Any], descriptor: dict[str, Any]) -> None:
    """A Python function becomes the one kernel of a descriptor, whose row names `adapter`."""
    with _guard:
        _layerzero.register_backend(json.dumps(descriptor), json.dumps(availability_of(descriptor)))
        _functions[adapter] = (function, descriptor)


def remove_function(adapter: str) -> bool:
    """Undoes add_function(). False: there is no such function."""
    with _guard:
        if adapter not in _functions:
            return False
        _layerzero.unregister(adapter)
        del _functions[adapter]
        return True


def functions() -> frozenset[str]:
    """The adapters of all functions that are kernels now."""
    return frozenset(_functions)


def resolve(kernel_id: str, adapter: str, source: str) -> Callable[..., Any]:
    """The door's `resolve` hook: imports "module:function" at a kernel's first call."""
    if adapter in _functions:
        return _functions[adapter][0]
    module, _, function = adapter.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, OSError) as error:
        from layerzero.errors import KernelRefusedError

        raise KernelRefusedError(f"{kernel_id}: its adapter {adapter} of {source} cannot be loaded: {error}") from error


def problems() -> Iterator[str]:
    return iter(_problems.values())


def libraries() -> dict[str, dict[str, Any]]:
    """Library to {description, platform, kernels, operations, version, tested_with, installed, missing}."""
    found = dict(_libraries)
    for _, descriptor in _functions.values():
        if descriptor["backend"] not in _libraries:
            one, known = _library(descriptor), found.get(descriptor["backend"])
            if known is not None:
                one["kernels"] += known["kernels"]
                one["operations"] = sorted({*known["operations"], *one["operations"]})
            found[descriptor["backend"]] = one
    return found
