"""The slow door: calls that the C door does not take. The door's `slow` hook.

What comes here: the first call before torch is attached, arrays of other libraries, a wanted gradient, autocast,
function transforms, dispatch modes, tracing, tensor subclasses, tensors without memory, and what is no tensor at all.
"""

import importlib
import sys
from typing import Any

from layerzero import _layerzero, _torch
from layerzero._contracts import Contract, contracts, parameter_names
from layerzero._policy import locked_kernel
from layerzero._references import call_reference
from layerzero.errors import InvalidRequestError, NotInstalledError, WrongTypeError

_WANTED = "a dense torch.Tensor or an array with __dlpack__ (NumPy, JAX, CuPy)"


def slow_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs operation `name` by the way that its arguments need."""
    if not _torch.attached() and _torch.attach_if_imported():
        return _layerzero.ops[name](*args, **kwargs)
    contract = contracts()[name]
    arguments, options = _bind(name, args, kwargs)
    _check_required(contract, arguments)
    tensor_names = [p["name"] for p in contract["params"] if p["kind"] == "tensor"]
    torch = _need_torch(name, contract, arguments, tensor_names)
    if any(_is_foreign(torch, arguments.get(n)) for n in tensor_names):
        return _through_dlpack(torch, name, arguments, options, tensor_names)
    tensors = [_readable(torch, name, n, arguments[n]) for n in tensor_names if arguments.get(n) is not None]
    # Without the library of torch's operators in this build there is no node to see.
    if _wants_one_node(torch, tensors) and hasattr(torch.ops.layerzero, name):
        return _call_node(name, arguments, options)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _with_gradient(torch, contract, arguments, options, tensors)
    return _reference(name, arguments, options)


def _bind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters by name, and layout, kernel, out. The door has checked the names."""
    names = parameter_names(name)
    arguments = dict(zip(names, args, strict=False))
    options: dict[str, Any] = {}
    for key, value in kwargs.items():
        (arguments if key in names else options)[key] = value
    return arguments, options


def _check_required(contract: Contract, arguments: dict[str, Any]) -> None:
    for param in contract["params"]:
        given = arguments.get(param["name"]) is not None
        if not given and not param["optional"] and not param.get("has_default"):
            raise InvalidRequestError(f"{contract['name']}: {param['name']}: wanted {param['doc']}, got nothing")


def _need_torch(name: str, contract: Contract, arguments: dict[str, Any], tensor_names: list[str]) -> Any:
    for n in tensor_names:
        value = arguments.get(n)
        if value is not None and not hasattr(value, "__dlpack__"):
            _refuse(f"{name}: {n}", _WANTED, type(value).__name__)
    if "torch" not in sys.modules:
        try:
            importlib.import_module("torch")  # arrays of other libraries are computed on as torch tensors
        except ImportError as error:
            raise NotInstalledError(f"{name}: wanted torch, which is not installed: {error}") from None
    _torch.attach_if_imported()
    return sys.modules["torch"]


def _refuse(field: str, wanted: str, got: str, fix: str = "") -> None:
    error = WrongTypeError(f"{field}: wanted {wanted}, got {got}" + (f"; {fix}" if fix else ""))
    error.field, error.wanted, error.got, error.fix = field, wanted, got, fix
    raise error


def _readable(torch: Any, name: str, param: str, tensor: Any) -> Any:
    """`tensor`, if its kind has values that an operation can read."""
    field = f"{name}: {param}"
    if tensor.layout is not torch.strided:
        _refuse(field, _WANTED, f"layout {tensor.layout}", "call .to_dense()")
    if tensor.is_quantized:
        _refuse(field, _WANTED, "a quantized tensor", "call .dequantize()")
    if tensor.is_complex():
        _refuse(field, _WANTED, f"dtype {tensor.dtype}", "pass real and imaginary parts apart")
    if tensor.is_meta and type(tensor) in (torch.Tensor, torch.nn.Parameter) and not _tracing(torch):
        _refuse(field, _WANTED, "a meta tensor, which has no values", "use FakeTensorMode for shapes alone")
    return tensor


# ---- arrays of other libraries


def _is_foreign(torch: Any, value: Any) -> bool:
    return value is not None and not isinstance(value, torch.Tensor)


def _through_dlpack(
    torch: Any, name: str, arguments: dict[str, Any], options: dict[str, Any], tensor_names: list[str]
) -> Any:
    """Arrays in, arrays of the same kind out; memory is shared where the library allows it."""
    given = [arguments[n] for n in tensor_names if arguments.get(n) is not None]
    kinds = {type(value) for value in given}
    if len(kinds) > 1:
        _refuse(name, "all arrays of one kind", " and ".join(sorted(k.__name__ for k in kinds)), "convert them first")
    if options.get("out") is not None:
        _refuse(f"{name}: out", "no out= beside arrays of other libraries", type(options["out"]).__name__)
    converted = dict(arguments)
    for n in tensor_names:
        if arguments.get(n) is not None:
            converted[n] = to_torch(torch, f"{name}: {n}", arguments[n])
    result = _layerzero.ops[name](**{k: v for k, v in converted.items() if v is not None}, **options)
    if isinstance(result, tuple):
        return tuple(_as_kind_of(given[0], t) for t in result)
    return _as_kind_of(given[0], result)


def to_torch(torch: Any, field: str, array: Any) -> Any:
    """A torch tensor over an array's memory (a copy where it is read-only)."""
    numpy = sys.modules.get("numpy")
    try:
        if numpy is not None and isinstance(array, numpy.ndarray):
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        return torch.from_dlpack(array)
    except (TypeError, BufferError, RuntimeError, ValueError) as error:
        _refuse(
            field, _WANTED, f"{type(array).__name__} that torch cannot read ({error})", "convert it to a torch.Tensor"
        )


def _as_kind_of(like: Any, tensor: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return tensor.numpy()
    return like.__array_namespace__().from_dlpack(tensor)


# ---- which way


def _tracing(torch: Any) -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def _wants_one_node(torch: Any, tensors: list[Any]) -> bool:
    """Fakes, tracers and dispatch modes see one operation; function transforms need its formula."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return _tracing(torch) or (fake is not None and any(isinstance(t, fake.FakeTensor) for t in tensors))


def _call_node(name: str, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    _no_kernel_argument(name, options, "tracing or a dispatch mode")
    out = options.pop("out", None)
    given = {key: value for key, value in {**arguments, **options}.items() if value is not None}
    from layerzero import _torch_ops

    return _into(out, _torch_ops.call_operator(name, given))


def _no_kernel_argument(name: str, options: dict[str, Any], where: str) -> None:
    kernel = options.pop("kernel", None) or locked_kernel(name)
    if kernel is not None and not kernel.startswith("torch.ref."):
        raise InvalidRequestError(
            f"{name}: kernel: wanted none under {where}, where the torch reference runs; got {kernel!r}; "
            "leave it out, or unlock the operation"
        )


def _with_gradient(
    torch: Any, contract: Contract, arguments: dict[str, Any], options: dict[str, Any], tensors: list[Any]
) -> Any:
    """The best kernel that carries gradients; the reference under modes, transforms and for subclasses."""
    name = contract["name"]
    if options.get("out") is not None:
        raise InvalidRequestError(f"{name}: out: wanted none where a gradient is wanted, got a tensor; leave it out")
    if not contract["differentiable"]:
        if not all(o["dtype"] in ("int64", "int32") and not o["dtype_choice"] for o in contract["outputs"]):
            raise InvalidRequestError(
                f"{name}: wanted tensors that need no gradient, got one that does; it has no derivative: "
                "use torch.no_grad() or detach()"
            )
        with torch.no_grad():
            return _layerzero.ops[name](**{k: v for k, v in arguments.items() if v is not None}, **options)
    if all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors):
        given = {k: v for k, v in {**arguments, **options}.items() if v is not None}
        result = _layerzero.call_differentiable(_layerzero.ops[name], (), given)
        if result is not NotImplemented:
            return result
    return _reference(name, arguments, options)


def _reference(name: str, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    """The operation's torch reference: any mode, transform, subclass and device; differentiable."""
    _no_kernel_argument(name, options, "torch's modes and transforms")
    layout, layouts = options.get("layout"), contracts()[name]["layouts"]
    if layout is not None and layout not in layouts:
        raise InvalidRequestError(f"{name}: layout: wanted {' or '.join(layouts)}, got {layout!r}")
    return _into(options.get("out"), call_reference(name, arguments, layout))


def _into(out: Any, result: Any) -> Any:
    if out is None:
        return result
    if not isinstance(result, tuple):
        return out.copy_(result)
    for target, value in zip(out, result, strict=True):
        target.copy_(value)
    return tuple(out)
