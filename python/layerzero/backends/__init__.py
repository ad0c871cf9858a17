"""Kernels of other libraries: registers descriptors, looks up availability, tests a library before first use."""

import contextlib
import functools
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from layerzero import _layerzero
from layerzero.backends import proof, signatures
from layerzero.backends.availability import availability_of, missing, version_of
from layerzero.backends.current_device import on_device_of_tensors
from layerzero.backends.entry_points import CodePoint
from layerzero.backends.signatures import Outside
from layerzero.host import forks
from layerzero.host.policy import IN_PROCESS, Isolation, allowed_sources, is_allowed, isolation, names_kernels

FOLDER = Path(__file__).parent
NOT_YET_MEASURED = 5  # priority of a row that states none: below torch's, until a device has run and timed it
PLATFORMS = ("any", "cpu", "cuda", "rocm", "xpu", "hpu")
_guard = forks.lock()
_isolation: Isolation | None = None  # as isolation_changed() saw it last
_registered: set[str] = set()
_files_done = False
_called: set[CodePoint] = set()  # entry points that were called
_outside: dict[str, Outside] = {}  # by library: descriptors of other packages whose kernels may be used
_problems: dict[str, str] = {}
_libraries: dict[str, dict[str, Any]] = {}
_modules: dict[str, tuple[str, ...]] = {}  # by library: the modules that its descriptors require
library_of_adapter: dict[str, str] = {}  # of adapters whose library was tested
_functions: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}  # by adapter: function and descriptor


def torch_attached() -> None:
    """Registers torch's kernels, the references and other libraries' kernels, once torch is attached."""
    register_files()


def ensure_registered() -> None:
    """Registers every descriptor that is not registered yet. Errors are kept, see problems()."""
    register_files()
    begin()


def begin() -> bool:
    """The engine's `begin` hook, called before its first selection: registers descriptors made in code, of the packages
    that the policy's `allow_sources` admits. Returns False if it has to be called again."""
    allowed = allowed_sources()
    if names_kernels():
        register_files()  # the engine checks names in the policy against those of all libraries
    done = proof.once(("entry points in code", allowed), _register_code)
    return done == ""


def register_files() -> None:
    """Registers descriptors that are files, which needs no import of a library. From then on the names of all libraries
    are known, and a policy that names another one is refused."""
    global _files_done
    with _guard:
        if _files_done:
            return
        _files_done = True
        _register_files()
        _layerzero.all_named(_later())


def _register_files() -> None:
    with _guard:
        for name in sorted(p.parent.name for p in FOLDER.glob("*/capabilities.json")):
            _once(name, functools.partial(descriptor_of, name))
        _once("references", _references)
        _once("inductor", _inductor)
        from layerzero.backends.entry_points import in_files

        for name, descriptor in in_files():
            _try(name, descriptor)


def policy_changed() -> None:
    """Checks the signatures of other packages' descriptors again; kernels that may not be used any more are taken back."""
    with _guard:
        for name, outside in list(_outside.items()):
            if outside.why_not():
                del _outside[name]
                for row in itertools.chain(*outside.descriptor["ops"].values()):
                    _layerzero.unregister(row.get("adapter", ""))
                with _errors_kept(name):
                    _register_outside(outside, name)


def _register_code() -> str:
    """Calls the entry points. Returns the names of those whose package the policy excludes, or "" if all were called."""
    from layerzero.backends.entry_points import in_code

    left = []
    for point, descriptor in in_code():
        if point in _called:
            continue
        if not is_allowed(*point.names):
            left.append(point.name)
            continue
        _called.add(point)
        _try(point.name, descriptor)
    if _files_done:
        _layerzero.all_named(_later())
    return ", ".join(left)


def _later() -> tuple[str, ...]:
    """Returns names of entry points that are not registered libraries: they may register theirs at a selection."""
    from layerzero.backends.entry_points import in_code

    return tuple(name for point, _ in in_code() for name in point.names if name not in _libraries)


def _once(name: str, descriptor: Callable[[], dict[str, Any]]) -> None:
    if name not in _registered:
        _registered.add(name)
        _try(name, descriptor)


def descriptor_of(library: str) -> dict[str, Any]:
    """Returns the descriptor that LayerZero ships for a library, with a priority in every row."""
    found = json.loads((FOLDER / library / "capabilities.json").read_text())
    stated = {name for name, template in found.get("templates", {}).items() if "priority" in template}
    for row in itertools.chain(*found["ops"].values()):
        if row.get("extends") not in stated:
            row.setdefault("priority", NOT_YET_MEASURED)
    return found


def _references() -> dict[str, Any]:
    from layerzero.backends.references import descriptor

    return descriptor()


def _inductor() -> dict[str, Any]:
    from layerzero.backends.inductor.rows import descriptor

    return descriptor()


def _try(name: str, descriptor: Callable[[], dict[str, Any] | Outside | None]) -> None:
    """Registers the result of `descriptor`."""
    with _errors_kept(name):
        found = descriptor()
        if isinstance(found, Outside):
            _register_outside(found, name)
        elif found is not None:
            register(found, name)


@contextlib.contextmanager
def _errors_kept(name: str) -> Iterator[None]:
    """An error in a library is never fatal; its text is kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _problems[name] = f"{name}: {type(error).__name__}: {error}"
        if not any(str(error) == item["detail"] for library in _libraries.values() for item in library["missing"]):
            _libraries.setdefault(name, _refused({}, error))  # no descriptor could be obtained


def _register_outside(outside: Outside, name: str) -> None:
    """Registers another package's descriptor; if the policy requires a signature that it lacks, its kernels are listed
    as refused for this reason."""
    why_not = outside.why_not()
    register(outside.descriptor, name, why_not)
    backend = outside.descriptor["backend"]
    if why_not:
        item = {"what": "a signature", "detail": why_not, "fix": None, "code": "POLICY_DENIED"}
        _libraries[backend] |= {"installed": False, "missing": [item]}
        _problems[name] = f"{name}: {why_not}"
    else:
        _outside[backend] = outside


def register(descriptor: dict[str, Any], name: str = "", why_not: str = "") -> None:
    """Registers a descriptor's kernels as candidates; those not installed are listed with the reason. `name` is used in
    reports if the engine refuses the descriptor and its own name is taken or missing. `why_not`: the descriptor lacks a
    signature, and its kernels are not usable for this reason."""
    try:
        availability = availability_of(descriptor)
        if why_not:
            availability = {"*": {"installed": False, "code": "POLICY_DENIED", "detail": why_not}}
    except (AttributeError, KeyError, TypeError):
        availability = {}  # it breaks the schema: the engine reports where
    try:
        _layerzero.register_backend(json.dumps(descriptor), json.dumps(availability))
    except Exception as error:
        own = descriptor.get("backend") if isinstance(descriptor, dict) else None
        free = isinstance(own, str) and own and own not in _libraries
        _libraries[str(own) if free else name or "?"] = _refused(descriptor, error)
        raise
    name = descriptor["backend"]
    _libraries[name] = _library(descriptor)
    modules = [r["import"] for r in descriptor.get("requires", [])]
    _modules[name] = tuple(dict.fromkeys((*_modules.get(name, ()), *modules)))


def modules_of(library: str) -> tuple[str, ...]:
    """Returns the modules that a library's descriptors require."""
    return _modules.get(library, ())


def isolation_changed() -> None:
    """Makes the policy's backend_isolation hold for kernels that have run too. Called after changes of the policy."""
    global _isolation
    before, _isolation = _isolation, isolation()
    if before is None or before == _isolation:
        return
    _layerzero.forget_resolved()
    if (client := sys.modules.get("layerzero.isolation.client")) is not None:
        client.policy_changed(before, _isolation)
    failed = {kernel["backend"] for kernel in json.loads(_layerzero.kernels(None, False)) if kernel["usable"] is False}
    stuck = [
        n for n in failed & set(_libraries) if _libraries[n]["installed"] and _isolation.mode_of(n) != before.mode_of(n)
    ]
    if stuck:
        names = ", ".join(sorted(stuck))
        text = f"backend_isolation: {names} failed a test before this change, and is not tested again by this process"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _library(descriptor: dict[str, Any]) -> dict[str, Any]:
    requirements = descriptor.get("requires", [])
    return {
        "description": descriptor.get("description", ""),
        "platform": descriptor["platform"],
        "kernels": sum(len(rows) for rows in descriptor["ops"].values()),
        "operations": list(descriptor["ops"]),
        "version": version_of(requirements),
        "tested_with": descriptor["backend_version"],
        "origin": descriptor.get("plugin_origin", "builtin"),
        "installed": availability_of(descriptor)["*"]["installed"],
        "missing": missing(requirements),
        "requires": requirements,
    }


def _refused(descriptor: Any, error: BaseException) -> dict[str, Any]:
    """Returns the record of a backend whose descriptor the engine refuses, without kernels."""
    given = descriptor if isinstance(descriptor, dict) else {}
    from layerzero.errors import ConfigError, UntrustedFileError

    code = "CAPABILITIES_SCHEMA_MISMATCH" if isinstance(error, ConfigError) else None
    code = "POLICY_DENIED" if isinstance(error, UntrustedFileError) and signatures.required() else code
    item = {"what": "a descriptor that can be read", "detail": str(error), "fix": None, "code": code}
    return {
        "description": str(given.get("description", "")),
        "platform": given["platform"] if given.get("platform") in PLATFORMS else "any",
        "kernels": 0,
        "operations": [],
        "version": None,
        "tested_with": str(given.get("backend_version") or "?"),
        "origin": str(given.get("plugin_origin") or "builtin"),
        "installed": False,
        "missing": [item],
        "requires": [],
    }


def add_function(adapter: str, function: Callable[..., Any], descriptor: dict[str, Any]) -> None:
    """Registers a Python function as the one kernel of a descriptor, which names it by `adapter`."""
    with _guard:
        try:
            text = json.dumps(descriptor)
        except (TypeError, ValueError) as error:
            from layerzero.errors import ConfigError

            raise ConfigError("kernel", "numbers, texts, lists and dicts as its facts", str(error)) from None
        _layerzero.register_backend(text, json.dumps({**availability_of(descriptor), "proven": True}))
        _functions[adapter] = (function, descriptor)


def remove_function(adapter: str) -> bool:
    """Undoes add_function(). Returns False if there is no such function."""
    with _guard:
        if adapter not in _functions:
            return False
        _layerzero.unregister(adapter)
        del _functions[adapter]
        return True


def functions() -> frozenset[str]:
    """Returns the adapters of all functions that are kernels now."""
    return frozenset(_functions)


def resolve(kernel_id: str, adapter: str, source: str) -> Callable[..., Any]:
    """The binding's `resolve` hook: returns the function of "module:function", which a proof has imported."""
    if adapter in _functions:
        function, descriptor = _functions[adapter]
        return on_device_of_tensors(function) if descriptor["platform"] in ("any", "cuda") else function
    library = library_of_adapter.get(adapter, source)
    mode = isolation().mode_of(library)
    if mode != IN_PROCESS:
        from layerzero.isolation import client

        return client.proxy(library, mode, adapter, kernel_id)
    try:
        function = proof.load(adapter)
    except (ImportError, AttributeError, OSError, TypeError) as error:
        from layerzero.errors import KernelRefusedError

        raise KernelRefusedError(f"{kernel_id}: its adapter {adapter} of {source} cannot be loaded: {error}") from error
    return on_device_of_tensors(function) if _libraries.get(library, {}).get("platform") == "cuda" else function


def problems() -> Iterator[str]:
    """Yields the problems of refused backends, the own CUDA kernels among them."""
    yield from _problems.values()
    why = json.loads(_layerzero.devices())["cuda_library"]
    if why not in ("loaded", "none"):
        yield f"layerzero.cuda: {why}"


def libraries() -> dict[str, dict[str, Any]]:
    """Maps libraries to {description, platform, kernels, operations, version, tested_with, installed, missing, requires}."""
    found = dict(_libraries)
    for _, descriptor in _functions.values():
        if descriptor["backend"] not in _libraries:
            one, known = _library(descriptor), found.get(descriptor["backend"])
            if known is not None:
                one["kernels"] += known["kernels"]
                one["operations"] = sorted({*known["operations"], *one["operations"]})
            found[descriptor["backend"]] = one
    return found
