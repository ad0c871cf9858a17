"""Functions of modules compiled for tvm-ffi as kernels of operations: tensors go in by DLPack, a call takes few microseconds.

A module is a shared object that exports functions by tvm-ffi's C interface: what `tvm_ffi.cpp.build` makes, the modules that
FlashInfer compiles, kernels exported from the CuTe DSL. Functions run on torch's current stream, which tvm-ffi passes to them.
"""

import hashlib
import importlib
import inspect
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from layerzero.backends.python_kernels import register_kernel
from layerzero.contracts import flat_name, host_parameter_names
from layerzero.errors import InvalidRequestError, KernelRefusedError, UnknownNameError
from layerzero.host import optional

OUT = "out"


def ffi_kernel(
    operation: str,
    kernel_id: str,
    module: Any,
    function: str,
    *,
    arguments: Sequence[str],
    supported_dtypes: Collection[Any],
    allocate: Callable[..., Any] | None = None,
    digest: str | None = None,
    **facts: Any,
) -> None:
    """Registers a function of a module as a kernel of `operation`, with the other arguments of `register_kernel`.

    `module`: the path of a shared object, or a module that tvm-ffi has loaded. `digest`: sha256 of the file; another file
    is a KernelRefusedError and is not loaded. `arguments`: the operation's parameters in the function's order, with "out"
    where it takes the output; without "out" the function returns the result. `allocate` makes the output from the same parameters
    without "out"; by default it has the first one's shape, dtype and device. The function must write every element.
    """
    optional.need("apache-tvm-ffi", what="ffi_kernel()")
    known = host_parameter_names(flat_name(operation))
    names = [name for name in arguments if name != OUT]
    if unknown := [name for name in names if name not in known]:
        raise UnknownNameError(
            "arguments", f"parameters of {operation} ({', '.join(known)}) and {OUT}", ", ".join(unknown)
        )
    if not names or arguments.count(OUT) > 1 or len(set(names)) != len(names):
        raise InvalidRequestError("arguments", f"each name once, and {OUT} at most once", repr(list(arguments)))
    called, found = _function(module, function, digest)
    run = _caller(called, list(arguments), allocate)
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = inspect.Signature([inspect.Parameter(name, kinds) for name in names])  # type: ignore[attr-defined]
    run.__name__ = function
    notes = [*(facts.pop("notes", None) or []), f"Function {function} of a module for tvm-ffi."]
    given = {"version": found, **facts, "notes": notes}
    register_kernel(operation, kernel_id, supported_dtypes=supported_dtypes, **given)(run)


def _function(module: Any, name: str, digest: str | None) -> tuple[Callable[..., Any], str | None]:
    """Returns the function, and the head of the file's digest as the kernel's version."""
    found = None
    if isinstance(module, str | Path):
        path = Path(module)
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise KernelRefusedError(f"{path} cannot be read: {error}") from error
        if digest is not None and found != digest:
            raise KernelRefusedError(f"the digest of {path} is not the pinned one: wanted {digest}, got {found}")
        try:
            module = importlib.import_module("tvm_ffi").load_module(str(path))
        except (OSError, RuntimeError) as error:
            raise KernelRefusedError(f"{path} is no module for tvm-ffi: {error}") from error
    elif digest is not None:
        raise InvalidRequestError("digest", "a module's path with it", type(module).__name__, "pass the path")
    try:
        return getattr(module, name), found[:16] if found else None
    except AttributeError as error:
        raise KernelRefusedError(f"the module has no function {name}: {error}") from error


def _caller(
    called: Callable[..., Any], arguments: list[str], allocate: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Returns a function of the parameters without "out", in their order."""
    if OUT not in arguments:
        return lambda **given: called(*given.values())
    at = arguments.index(OUT)

    def run(**given: Any) -> Any:
        values = list(given.values())
        out = values[0].new_empty(values[0].shape) if allocate is None else allocate(**given)
        values.insert(at, out)
        called(*values)
        return out

    return run
