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
_functions: dict[str, Callable[..., Any]] = {}  # of @register_kernel, by adapter


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
    availability = availability_of(descriptor)
    requirements = descriptor.get("requires", [])
    _libraries[descriptor["backend"]] = {
        "description": descriptor.get("description", ""),
        "platform": descriptor["platform"],
        "kernels": sum(len(rows) for rows in descriptor["ops"].values()),
        "operations": list(descriptor["ops"]),
        "version": version_of(requirements),
        "tested_with": descriptor["backend_version"],
        "installed": availability["*"]["installed"],
        "missing": missing(requirements),
    }
    _layerzero.register_backend(json.dumps(descriptor), json.dumps(availability))


def add_function(adapter: str, function: Callable[..., Any]) -> None:
    _functions[adapter] = function


def resolve(kernel_id: str, adapter: str, source: str) -> Callable[..., Any]:
    """The door's `resolve` hook: imports "module:function" at a kernel's first call."""
    if adapter in _functions:
        return _functions[adapter]
    module, _, function = adapter.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, OSError) as error:
        from layerzero.errors import KernelExecutionError

        raise KernelExecutionError(
            f"{kernel_id}: its adapter {adapter} of {source} cannot be loaded: {error}"
        ) from error


def problems() -> Iterator[str]:
    return iter(_problems.values())


def libraries() -> dict[str, dict[str, Any]]:
    """Library to {description, platform, kernels, operations, version, tested_with, installed, missing}."""
    return dict(_libraries)
