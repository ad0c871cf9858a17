"""Exceptions and warnings of LayerZero, the engine's errors as exceptions, and checks of names that a user passes."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class Reason:
    """A reason for which a kernel was refused."""

    code: str
    field: str
    wanted: str
    got: str
    message: str

    def __getitem__(self, key: str) -> str:
        return asdict(self)[key]

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        """Returns the plain data."""
        return asdict(self)


class LayerZeroError(Exception):
    """Base of all errors, made as `LayerZeroError(message)` or `LayerZeroError(field, wanted, got, fix)`: the attributes
    of these names are the parts of the message."""

    code: int = 0  # lz_status_code of include/layerzero/c_abi.h, for classes without further data

    def __init__(
        self, field: str = "", wanted: str = "", got: str = "", fix: str = "", *, message: str | None = None
    ) -> None:
        parts = f"{field}: wanted {wanted}, got {got}" + (f"; {fix}" if fix else "")
        super().__init__(message if message is not None else parts if wanted else field)
        self.field, self.wanted, self.got, self.fix = field if wanted else "", wanted, got, fix


class InvalidRequestError(LayerZeroError, ValueError):
    """An argument does not fit the operation's contract."""

    code = 1


class WrongTypeError(InvalidRequestError, TypeError):
    """An argument is of the wrong type."""

    code = 2


class UnknownNameError(InvalidRequestError, LookupError):
    """No operation, kernel or device has this name."""

    code = 4


class ConfigError(LayerZeroError, ValueError):
    """A policy file, an environment variable or a call of `configure` is wrong."""

    code = 5


class NotInstalledError(LayerZeroError, ImportError):
    """A package or library that the call needs is not installed."""

    code = 6


class KernelExecutionError(LayerZeroError, RuntimeError):
    """A kernel failed while it ran."""

    code = 7


class KernelRefusedError(KernelExecutionError):
    """A kernel refused a call and wrote nothing. If a Python kernel raises this before it writes anything, the
    operation's reference serves the call, even if the operation writes its inputs."""

    code = 13


class ContextLostError(KernelExecutionError):
    """This process can no longer use the device (after an illegal access, for example). Only a new process can: no other
    kernel is tried. A Python kernel may raise it."""

    code = 14


class OutOfMemoryError(KernelExecutionError, MemoryError):
    """Memory ran out, and no kernel that needs less could serve the call. A Python kernel may raise this error, MemoryError
    or torch's."""

    code = 15


class WorkerError(KernelExecutionError):
    """The process that runs a library's kernels (`backend_isolation`) ended during a call, did not answer in time, or
    gave an answer that breaks the protocol."""


class UntrustedFileError(LayerZeroError, PermissionError):
    """A file that decides which code runs can be changed by another user, or it lacks a signature by a key of
    `security.trusted_keys`."""

    code = 16


class FileError(LayerZeroError, OSError):
    """A file or folder that a call or command names cannot be read or written; `errno` is the system's number."""


def file_error(field: str, wanted: str, path: object, error: OSError) -> FileError:
    """Returns what an error of the system means for the path that was asked for."""
    found = FileError(field, wanted, f"{path}: {error.strerror or error}")
    found.errno = error.errno
    return found


class VersionMismatchError(LayerZeroError, RuntimeError):
    """Two parts that must have the same build or version do not."""

    code = 8


class CudaGraphUnsafeError(LayerZeroError, RuntimeError):
    """A kernel that is not known to be safe in a CUDA graph was called during a capture."""

    code = 9


class KVCacheFullError(LayerZeroError, RuntimeError):
    """A KV cache has too few free blocks for the request; nothing was changed."""

    code = 12


class RequirementError(LayerZeroError, RuntimeError):
    """A kernel ran in a block of `lz.require` that does not allow it; `ran` lists the kernels as data."""

    def __init__(self, field: str, wanted: str, got: str, fix: str, *, ran: list[dict[str, Any]]) -> None:
        super().__init__(field, wanted, got, fix)
        self.ran = ran

    def __reduce__(self) -> Any:
        return _requirement_error, (self.field, self.wanted, self.got, self.fix, self.ran)


def _requirement_error(field: str, wanted: str, got: str, fix: str, ran: list[dict[str, Any]]) -> "RequirementError":
    return RequirementError(field, wanted, got, fix, ran=ran)


class ModelStateError(LayerZeroError, RuntimeError):
    """A model cannot be kernelized, restored or run as it is now: another thread runs it, or it is a part of another one."""


class ReleasedWeightError(LayerZeroError, RuntimeError):
    """A call needs the values of a parameter that `kernelize(release_originals=True)` has released."""


class InternalError(LayerZeroError, RuntimeError):
    """A bug in LayerZero; please report it with the message."""


class NoKernelFoundError(LayerZeroError, RuntimeError):
    """No kernel serves the call; `failures` has each kernel's reasons."""

    def __init__(self, operation: str, failures: dict[str, list[Reason]], message: str = "") -> None:
        super().__init__(message or f"{operation}: no kernel serves this call")
        self.operation = operation
        self.failures = failures

    def __reduce__(self) -> Any:
        return type(self), (self.operation, self.failures, str(self))


class LayerZeroLayoutWarning(UserWarning):
    """A tensor's layout was guessed."""


class LayerZeroReferenceWarning(UserWarning):
    """A call ran on its slow reference because no faster kernel serves it; once per operation and kind of device."""


class LayerZeroCompatibilityWarning(UserWarning):
    """A library's build does not fit this process, and compatibility.fail_on_incompatible is off; or a library's version does not
    fit another's."""


class LayerZeroGraphMemoryWarning(UserWarning):
    """Besides its results, a kernel takes more device memory inside a CUDA graph than graph.memory_delta_warning_mb."""


_NO_KERNEL = 3  # lz_status_code
_BY_CODE: dict[int, type[LayerZeroError]] = {
    kind.code: kind
    for kind in (
        InvalidRequestError,
        WrongTypeError,
        UnknownNameError,
        ConfigError,
        NotInstalledError,
        KernelExecutionError,
        KernelRefusedError,
        ContextLostError,
        OutOfMemoryError,
        UntrustedFileError,
        VersionMismatchError,
        CudaGraphUnsafeError,
        KVCacheFullError,
    )
}


def failures_of(report: dict[str, Any]) -> dict[str, list[Reason]]:
    """Returns each refused kernel's reasons in a selection report."""
    return {
        candidate["kernel_id"]: [Reason(**reason) for reason in candidate["reasons"]]
        for candidate in report["candidates"]
        if candidate["reasons"]
    }


def raise_engine_error(
    code: int, field: str, wanted: str, got: str, fix: str, text: str, explanation: str | None
) -> NoReturn:
    """Raises an error of the engine as its exception: the binding's `raise` hook."""
    error: LayerZeroError
    if code == _NO_KERNEL:
        report: dict[str, Any] = json.loads(explanation) if explanation else {"operation": field, "candidates": []}
        failures = failures_of(report)
        lines = [f"  {kernel}: {'; '.join(r.message for r in reasons)}" for kernel, reasons in failures.items()]
        error = NoKernelFoundError(report["operation"], failures, "\n".join([text, *lines]))
    else:
        error = _BY_CODE.get(code, InternalError)(message=text)
    error.field, error.wanted, error.got, error.fix = field, wanted, got, fix
    raise error


# ---- names


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean rms_norm?", or "" if no name is near."""
    names = list(known)
    parts = sorted(name.split("."))
    for other in names:  # the same parts in another order
        if sorted(other.split(".")) == parts:
            return f"did you mean {other}?"
    import difflib  # only imported for a wrong name, not by import layerzero

    folded = {_folded(k): k for k in reversed(names)}
    near = difflib.get_close_matches(_folded(name), folded, n=1, cutoff=0.7)
    return f"did you mean {folded[near[0]]}?" if near else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def one_of(field: str, value: str, known: Iterable[str]) -> str:
    """Returns `value` if it is known, else raises InvalidRequestError with all known ones."""
    names = list(known)
    if value not in names:
        raise InvalidRequestError(field, f"one of {', '.join(names)}", repr(value), did_you_mean(value, names))
    return value


def known_name(field: str, what: str, value: str, known: Iterable[str], where: str) -> str:
    """Returns `value` if it is known, else raises UnknownNameError with the nearest name or `where` to find names."""
    names = list(known)
    if value not in names:
        raise UnknownNameError(field, what, repr(value), did_you_mean(value, names) or where)
    return value
