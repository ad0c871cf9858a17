"""Errors raised by Python code, in the engine's form: the field, what was wanted, what was got, what to do."""

from typing import Any, NoReturn

from layerzero.contracts import contracts, no_derivative
from layerzero.errors import InvalidRequestError, KernelExecutionError, LayerZeroError, UnknownNameError, WrongTypeError

WANTED = "a dense torch.Tensor or an array with __dlpack__ (NumPy, JAX, CuPy)"


def _raise(kind: type[LayerZeroError], field: str, wanted: str, got: str, fix: str) -> NoReturn:
    error = kind(f"{field}: wanted {wanted}, got {got}" + (f"; {fix}" if fix else ""))
    error.field, error.wanted, error.got, error.fix = field, wanted, got, fix
    raise error


def refuse(field: str, wanted: str, got: str, fix: str = "") -> NoReturn:
    """Refuses an argument of the wrong type."""
    _raise(WrongTypeError, field, wanted, got, fix)


def refuse_request(field: str, wanted: str, got: str, fix: str = "") -> NoReturn:
    """Refuses an argument that does not fit the call."""
    _raise(InvalidRequestError, field, wanted, got, fix)


def refuse_name(field: str, wanted: str, got: str, fix: str = "") -> NoReturn:
    """Refuses an unknown name."""
    _raise(UnknownNameError, field, wanted, got, fix)


def refuse_values(field: str, wanted: str, got: str, fix: str = "") -> NoReturn:
    """Refuses values inside a tensor that a kernel cannot use, such as an invalid index or offset."""
    _raise(KernelExecutionError, field, wanted, got, fix)


def refuse_no_gradient(name: str, got: str = "one that does") -> NoReturn:
    """Refuses a gradient of an operation that has none."""
    why = no_derivative(contracts()[name])
    fix = "use torch.no_grad() or detach()"
    refuse_request(name, "tensors that need no gradient", f"{got}; it has no derivative: {why}", fix)


def into(name: str, out: Any, result: Any) -> Any:
    """Copies `result` into out= if shape, dtype and device fit, and returns out=."""
    if out is None:
        return result
    outs, results = (value if isinstance(value, tuple) else (value,) for value in (out, result))
    if len(outs) != len(results):
        plural = "tensor" if len(results) == 1 else "tensors in a tuple"
        raise TypeError(f"{name}: out: wanted {len(results)} {plural}, got {len(outs)}")
    import torch

    for target, value in zip(outs, results, strict=True):
        if not isinstance(target, torch.Tensor):
            refuse(f"{name}: out", "a torch.Tensor", type(target).__name__)
        if (target.shape, target.dtype, target.device) != (value.shape, value.dtype, value.device):
            fix = "leave it out, or allocate it with torch.empty"
            refuse_request(f"{name}: out", _text(value), _text(target), fix)
        if torch.is_grad_enabled() and target.requires_grad:
            fix = "leave it out, or use torch.no_grad()"
            refuse_request(f"{name}: out", "a tensor that needs no gradient", "one that does", fix)
    copied = tuple(target.copy_(value) for target, value in zip(outs, results, strict=True))
    return copied if isinstance(result, tuple) else copied[0]


def _text(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"
