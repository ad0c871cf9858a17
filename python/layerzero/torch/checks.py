"""Checks of a call's arguments that the slow path and torch's operators share."""

from typing import Any, NoReturn

from layerzero import _layerzero
from layerzero.contracts import Contract, contracts, no_derivative
from layerzero.errors import InvalidRequestError, WrongTypeError

TENSOR_WANTED = "a dense torch.Tensor or an array with __dlpack__ (NumPy, JAX, CuPy)"


def check_contract(
    torch: Any, contract: Contract, arguments: dict[str, Any], layout: str | None
) -> dict[str, Any] | None:
    """Raises the engine's error for a call that breaks its contract. Returns the call with descriptions instead of
    tensors and with its layout, or None if a size or scalar is symbolic."""
    call, symbolic = _described(torch, contract, arguments, layout)
    if call is None:
        return None
    found = _layerzero.check(_layerzero.ops[contract["name"]], (), call)
    if symbolic:
        return None
    return call if found is None else {**call, "layout": found}


def found_layout(torch: Any, contract: Contract, arguments: dict[str, Any]) -> str:
    """Returns the layout of a call that does not name one; for symbolic sizes that of the traced sizes, without a guard,
    because the layout at a call site does not change with its sizes."""
    call, _ = _described(torch, contract, arguments, None)
    found = None if call is None else _layerzero.check(_layerzero.ops[contract["name"]], (), call)
    return found or next(iter(contract["layouts"]))


def _described(
    torch: Any, contract: Contract, arguments: dict[str, Any], layout: str | None
) -> tuple[dict[str, Any] | None, bool]:
    """Returns the call with (dtype, sizes, strides) instead of tensors, and whether a number is symbolic. Symbolic ones
    are replaced by their traced values: a comparison of symbols would specialize the graph. No call: one has no value."""
    call = {key: value for key, value in arguments.items() if value is not None}
    if layout is not None:
        call["layout"] = layout
    kinds = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    numbers: list[Any] = [value for value in call.values() if type(value) in kinds]
    for param in contract["params"]:
        if param["kind"] != "tensor" or param["name"] not in call:
            continue
        tensor = call[param["name"]]
        dtype = _dtype_in_reference(torch, tensor, param["dtypes"])
        if dtype not in param["dtypes"]:
            field = f"{contract['name']}: {param['name']}"
            raise InvalidRequestError(field, ", ".join(param["dtypes"]), dtype, "convert the tensor")
        numbers += (n for n in (*tensor.shape, *tensor.stride()) if type(n) is not int)
        call[param["name"]] = (dtype, tuple(tensor.shape), tuple(tensor.stride()))
    if not numbers:
        return call, False
    if any(
        type(number) not in kinds or number.node.hint is None for number in numbers
    ):  # torch.jit has tensors as sizes
        return None, True

    def traced(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(traced, value))
        return kinds[type(value)](value.node.hint) if type(value) in kinds else value

    return {key: traced(value) for key, value in call.items()}, True


def _dtype_in_reference(torch: Any, tensor: Any, admitted: list[str]) -> str:
    """Returns the tensor's dtype, or under autocast the dtype that torch's functions may cast it to."""
    if tensor.is_floating_point() and tensor.dtype is not torch.float64:
        kind = tensor.device.type
        if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            cast = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            if cast in admitted:
                return cast
    return str(tensor.dtype).removeprefix("torch.")


def has_tangent(torch: Any, tensors: list[Any]) -> bool:
    """True for forward-mode duals and torch.func's tensors, whose tangents a kernel alone would drop."""
    forward = torch.autograd.forward_ad
    return forward._current_level >= 0 and any(
        t is not None and forward.unpack_dual(t).tangent is not None for t in tensors
    )


def refuse_no_gradient(name: str, got: str = "one that does") -> NoReturn:
    """Refuses a gradient of an operation that has none."""
    why = no_derivative(contracts()[name])
    fix = "use torch.no_grad() or detach()"
    raise InvalidRequestError(name, "tensors that need no gradient", f"{got}; it has no derivative: {why}", fix)


def into(name: str, out: Any, result: Any) -> Any:
    """Copies `result` into out= if shape, dtype and device fit, and returns out=."""
    if out is None:
        return result
    outs, results = (value if isinstance(value, tuple) else (value,) for value in (out, result))
    if len(outs) != len(results):
        plural = "tensor" if len(results) == 1 else "tensors in a tuple"
        raise WrongTypeError(f"{name}: out", f"{len(results)} {plural}", str(len(outs)))
    import torch

    for target, value in zip(outs, results, strict=True):
        if not isinstance(target, torch.Tensor):
            raise WrongTypeError(f"{name}: out", "a torch.Tensor", type(target).__name__)
        if (target.shape, target.dtype, target.device) != (value.shape, value.dtype, value.device):
            fix = "leave it out, or allocate it with torch.empty"
            raise InvalidRequestError(f"{name}: out", _text(value), _text(target), fix)
        if torch.is_grad_enabled() and target.requires_grad:
            fix = "leave it out, or use torch.no_grad()"
            raise InvalidRequestError(f"{name}: out", "a tensor that needs no gradient", "one that does", fix)
    copied = tuple(target.copy_(value) for target, value in zip(outs, results, strict=True))
    return copied if isinstance(result, tuple) else copied[0]


def _text(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"
