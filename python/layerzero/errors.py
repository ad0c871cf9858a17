"""Exceptions and warnings of LayerZero, and how the engine's errors become them."""

import json
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
    """Base of all errors. `field`, `wanted`, `got` and `fix` are the message's parts if the engine supplied them."""

    code: int = 0  # lz_status_code of include/layerzero/c_abi.h, for classes without further data
    field: str = ""
    wanted: str = ""
    got: str = ""
    fix: str = ""


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


class VersionMismatchError(LayerZeroError, RuntimeError):
    """Two parts are not of the same build or version, although they must be."""

    code = 8


class CudaGraphUnsafeError(LayerZeroError, RuntimeError):
    """A kernel that is not known to be safe in a CUDA graph was called during a capture."""

    code = 9


class KVCacheFullError(LayerZeroError, RuntimeError):
    """A KV cache has too few free blocks for the request; nothing was changed."""

    code = 12


class ReleasedWeightError(LayerZeroError, RuntimeError):
    """The values of a parameter are needed that `kernelize(release_originals=True)` has released."""


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
    """The engine's `raise` hook."""
    error: LayerZeroError
    if code == _NO_KERNEL:
        report: dict[str, Any] = json.loads(explanation) if explanation else {"operation": field, "candidates": []}
        failures = failures_of(report)
        lines = [f"  {kernel}: {'; '.join(r.message for r in reasons)}" for kernel, reasons in failures.items()]
        error = NoKernelFoundError(report["operation"], failures, "\n".join([text, *lines]))
    else:
        error = _BY_CODE.get(code, InternalError)(text)
    error.field, error.wanted, error.got, error.fix = field, wanted, got, fix
    raise error
