"""The slow path: calls that the C binding does not serve itself. The binding's `slow` hook.

These are the first call before torch is attached, arrays of other libraries, calls that need gradients, autocast,
function transforms, dispatch modes, tracing, tensor subclasses, tensors without memory, and arguments that are not
tensors.
"""

import importlib
import json
import sys
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import Contract, contracts, has_whole_outputs, parameter_names
from layerzero.contracts.axes import call_reshaped, reshaped
from layerzero.errors import InvalidRequestError, WrongTypeError
from layerzero.host.optional import as_not_installed
from layerzero.host.policy import has_locks
from layerzero.torch import attach, nested, random
from layerzero.torch.arrays import call_on_arrays, is_foreign
from layerzero.torch.checks import TENSOR_WANTED, check_contract, found_layout, has_tangent, into, refuse_no_gradient
from layerzero.torch.references import call_reference


def slow_call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs operation `name` in the way that its arguments require."""
    if not attach.attached() and attach.attach_if_imported():
        return _layerzero.ops[name](*args, **kwargs)
    contract = contracts()[name]
    arguments, options = _bind(name, args, kwargs)
    _check_required(contract, arguments)
    nested.refuse(contract, arguments)
    if (view := reshaped(contract, arguments, options.get("layout"))) is not None:
        return call_reshaped(contract, view, options, _layerzero.ops[name])
    tensor_names = [p["name"] for p in contract["params"] if p["kind"] == "tensor"]
    torch = _need_torch(name, arguments, tensor_names)
    if torch is None:
        from layerzero.torch import plain_arrays  # and ctypes: not by import layerzero

        return plain_arrays.call(name, arguments, options, tensor_names)
    if any(is_foreign(torch, arguments.get(n)) for n in tensor_names):
        return call_on_arrays(torch, name, arguments, options, tensor_names)
    if (generator := options.pop("generator", None)) is not None:
        _check_not_traced(torch, name)
        return _layerzero.ops[name](**random.with_generator(torch, name, arguments, generator), **options)
    given = {n: arguments[n] for n in tensor_names if arguments.get(n) is not None}
    if name == "attention" and any(nested.is_jagged(torch, t) for t in given.values()):
        return nested.attention(torch, arguments, options)
    tensors = list(given.values())
    with torch._C.DisableTorchFunction():
        for n, tensor in given.items():
            _check_readable(torch, f"{name}: {n}", tensor)
    if torch.overrides.has_torch_function(tensors):  # classes and modes that override functions get this one too
        return torch.overrides.handle_torch_function(_layerzero.ops[name], tensors, *args, **kwargs)
    if negated := _negated(torch, contract, given):
        return _layerzero.ops[name](**arguments | negated, **options)
    _check_device(name, given)
    arguments = random.with_draw(name, arguments)
    tensor_names = [n for n in tensor_names if arguments.get(n) is not None]
    call = check_contract(torch, contract, arguments, options.get("layout"))
    if contract["layouts"] and options.get("layout") is None:
        options["layout"] = call["layout"] if call is not None else found_layout(torch, contract, arguments)
    # Without the library of torch's operators in this build there is no operator node.
    if hasattr(torch.ops.layerzero, name) and _wants_one_node(torch, tensors):
        return _call_node(name, arguments, options)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _with_gradient(torch, contract, arguments, options, call, tensors)
    if not contract["differentiable"] and not has_whole_outputs(contract) and has_tangent(torch, tensors):
        refuse_no_gradient(name, "one with a forward-mode tangent")
    return _reference(name, arguments, options, call)


def _bind(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns parameters by name, and the options layout, kernel, out. The binding has checked the names."""
    names = parameter_names(name)
    arguments = dict(zip(names, args, strict=False))
    options: dict[str, Any] = {}
    for key, value in kwargs.items():
        (arguments if key in names else options)[key] = value
    return arguments, options


def _check_not_traced(torch: Any, name: str) -> None:
    if _tracing(torch) or torch._C._functorch.peek_interpreter_stack() is not None:
        fix = "draw outside with torch.rand and pass uniform="
        raise InvalidRequestError(f"{name}: generator", "none while torch traces or transforms", "one", fix)


def _check_required(contract: Contract, arguments: dict[str, Any]) -> None:
    for param in contract["params"]:
        given = arguments.get(param["name"]) is not None
        if not given and not param["optional"] and not param.get("has_default"):
            shape = "of any shape" if param.get("shape") == "*" else f"[{param.get('shape')}]"
            wanted = f"a tensor {shape}" if param["kind"] == "tensor" else param["doc"]
            raise WrongTypeError(f"{contract['name']}: missing argument {param['name']}", wanted, "nothing")


def _need_torch(name: str, arguments: dict[str, Any], tensor_names: list[str]) -> Any:
    """Returns torch; None where it is not installed and the call can do without."""
    for n in tensor_names:
        value = arguments.get(n)
        if value is not None and not hasattr(value, "__dlpack__"):
            raise WrongTypeError(f"{name}: {n}", TENSOR_WANTED, type(value).__name__)
    if "torch" not in sys.modules:
        try:
            importlib.import_module("torch")  # arrays of other libraries are computed on as torch tensors
        except ImportError as error:
            from layerzero.torch import plain_arrays

            if plain_arrays.can_serve(arguments, tensor_names):
                return None
            raise as_not_installed(error, name) or error from None
    attach.attach_if_imported()
    return sys.modules["torch"]


def _check_readable(torch: Any, field: str, tensor: Any) -> None:
    """Refuses kinds of tensors whose values an operation cannot read."""
    if tensor.layout is not torch.strided:
        raise WrongTypeError(field, TENSOR_WANTED, f"layout {tensor.layout}", "call .to_dense()")
    if tensor.is_quantized:
        raise WrongTypeError(field, TENSOR_WANTED, "a quantized tensor", "call .dequantize()")
    if tensor.is_complex():
        raise WrongTypeError(field, TENSOR_WANTED, f"dtype {tensor.dtype}", "pass real and imaginary parts apart")
    if tensor.is_meta and type(tensor) in (torch.Tensor, torch.nn.Parameter) and not _tracing(torch):
        raise WrongTypeError(
            field, TENSOR_WANTED, "a meta tensor, which has no values", "use FakeTensorMode for shapes alone"
        )


def _negated(torch: Any, contract: Contract, given: dict[str, Any]) -> dict[str, Any]:
    """Returns materialized copies of tensors with torch's negative bit, except of those that the operation writes."""
    read = [p["name"] for p in contract["params"] if p["name"] in given and not p.get("mutated")]
    plain = [n for n in read if type(given[n]) in (torch.Tensor, torch.nn.Parameter)]
    return {n: given[n].resolve_neg() for n in plain if given[n].is_neg()}


def _check_device(name: str, given: dict[str, Any]) -> None:
    """Requires one device for all tensors; torch's own functions would silently move a tensor of rank 0."""
    first = None
    for n, tensor in given.items():
        first = first or tensor.device
        if tensor.device != first:
            raise InvalidRequestError(
                f"{name}: {n}", f"a tensor on {first} like the others", f"one on {tensor.device}", "move it"
            )


# ---- choice of the path


def _tracing(torch: Any) -> bool:
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def _wants_one_node(torch: Any, tensors: list[Any]) -> bool:
    """True for fakes, tracers and dispatch modes, which see one operation; function transforms need its expression."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return _tracing(torch) or (fake is not None and any(isinstance(t, fake.FakeTensor) for t in tensors))


def _call_node(name: str, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    if options.get("kernel") is not None:
        raise InvalidRequestError(
            f"{name}: kernel",
            "none while torch traces or a dispatch mode is on",
            repr(options["kernel"]),
            "leave it out, or lock the operation by policy",
        )
    given = {**arguments, "layout": options.get("layout")}
    from layerzero.torch import operators

    result = operators.call_operator(name, {key: value for key, value in given.items() if value is not None})
    return into(name, options.get("out"), result)


def _check_kernel(name: str, options: dict[str, Any], call: dict[str, Any] | None) -> None:
    """Refuses kernel= and locks that name another kernel where only the reference can run."""
    wanted = options.get("kernel")
    if wanted is None and not has_locks():
        return
    report = json.loads(_layerzero.explain(_layerzero.ops[name], (), call, None)) if call is not None else {}
    wanted = wanted if wanted is not None else report.get("locked")
    if wanted is not None and wanted != f"torch.ref.{report.get('operation')}":
        raise InvalidRequestError(
            f"{name}: kernel",
            "none under torch's modes and transforms, where the torch reference runs",
            repr(wanted),
            "leave it out, or unlock the operation",
        )


def _with_gradient(
    torch: Any,
    contract: Contract,
    arguments: dict[str, Any],
    options: dict[str, Any],
    call: dict[str, Any] | None,
    tensors: list[Any],
) -> Any:
    """Calls the best kernel with gradients, or the reference under modes, transforms and for subclasses."""
    name = contract["name"]
    if options.get("out") is not None:
        raise InvalidRequestError(f"{name}: out", "none where a gradient is wanted", "a tensor", "leave it out")
    if not contract["differentiable"]:
        if not has_whole_outputs(contract):
            refuse_no_gradient(name)
        with torch.no_grad():
            return _layerzero.ops[name](**{k: v for k, v in arguments.items() if v is not None}, **options)
    if all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors):
        given = {k: v for k, v in {**arguments, **options}.items() if v is not None}
        result = _layerzero.call_differentiable(_layerzero.ops[name], (), given)
        if result is not NotImplemented:
            return result
    return _reference(name, arguments, options, call)


def _reference(name: str, arguments: dict[str, Any], options: dict[str, Any], call: dict[str, Any] | None) -> Any:
    """Calls the operation's torch reference, which supports any mode, transform, subclass, device, and gradients."""
    _check_kernel(name, options, call)
    return into(name, options.get("out"), call_reference(name, arguments, options.get("layout")))
