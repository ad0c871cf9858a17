"""torch.ops.layerzero.*: the Python side of the operators of liblayerzero_torch.so. Imported once torch is.

Fakes (shapes for tracing), gradients (recomputed through the torch references), and torch.compile, which sees an
operator node where the program calls one of LayerZero's functions.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.contracts import Contract, condition, contracts, has_whole_outputs, is_seeded, is_set
from layerzero.contracts.shapes import dims_of, output_shapes
from layerzero.errors import InvalidRequestError, LayerZeroError, VersionMismatchError, raise_engine_error
from layerzero.host.import_hook import when_imported
from layerzero.torch import random
from layerzero.torch.checks import check_contract, found_layout, has_tangent, into, refuse_no_gradient
from layerzero.torch.references import call_reference

LIBRARY = Path(__file__).parents[1] / "liblayerzero_torch.so"
_library: torch.library.Library | None = None
_last_error: Any = None


@dataclass(frozen=True)
class Operator:
    """One overload: a contract with a fixed choice of its conditional outputs."""

    name: str  # the contract's flat name
    overload: str  # "default", or the conditional output's or the tensor's name
    fixed: dict[str, Any] = field(hash=False)  # arguments that the overload implies: a flag, an absent tensor
    names: tuple[str, ...]  # the schema's arguments in order, without the fixed ones
    tensors: tuple[str, ...]
    differentiable: bool
    loses_gradients: bool  # has no derivative, so a tensor that needs a gradient loses it
    written: tuple[str, ...]  # tensors that the operator writes into
    seeded: bool = False  # it draws random numbers

    @property
    def qualified(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload != "default" else self.name

    @functools.cached_property
    def function(self) -> Any:  # torch takes a millisecond to look one up, so none is at import
        return getattr(getattr(torch.ops.layerzero, self.name), self.overload)


def operators() -> list[Operator]:
    """Returns every operator, from the contracts."""
    found = []
    for name, contract in contracts().items():
        names = [p["name"] for p in sorted(contract["params"], key=lambda p: p["keyword_only"])]
        for overload, fixed in _overloads(contract):
            found.append(
                Operator(
                    name=name,
                    overload=overload,
                    fixed=fixed,
                    names=tuple(n for n in names if n not in fixed) + (("layout",) if contract["layouts"] else ()),
                    tensors=tuple(p["name"] for p in contract["params"] if p["kind"] == "tensor"),
                    differentiable=contract["differentiable"],
                    loses_gradients=not has_whole_outputs(contract),
                    written=tuple(p["name"] for p in contract["params"] if p.get("mutated")),
                    seeded=is_seeded(contract),
                )
            )
    return found


def _overloads(contract: Contract) -> list[tuple[str, dict[str, Any]]]:
    """Returns the name and fixed arguments of each overload."""
    name = condition(contract)
    if name is None:
        return [("default", {})]
    if next(p["kind"] for p in contract["params"] if p["name"] == name) == "tensor":
        return [("default", {name: None}), (name, {})]
    output = next(o["name"] for o in contract["outputs"] if o["only_if"])
    return [("default", {name: False}), (output, {name: True})]


def register() -> bool:
    """Loads and registers the operators, once. Returns False if the library is not part of this build."""
    global _library, _last_error
    if _library is not None:
        return True
    if not LIBRARY.exists():
        return False
    start = ctypes.CDLL(str(LIBRARY)).layerzero_torch_register
    start.restype = ctypes.c_char_p
    if problem := start():
        raise VersionMismatchError(problem.decode())
    _last_error = ctypes.CDLL(str(LIBRARY)).layerzero_torch_last_error
    _last_error.restype = ctypes.POINTER(_LastError)
    _library = torch.library.Library("layerzero", "FRAGMENT")
    for one in operators():
        # Registered as a Meta kernel: fakes use it too, and register_fake would read source files at import.
        _library.impl(one.qualified, _fake(one), "Meta")
        _library.impl(one.qualified, _autograd(one), "Autograd", with_keyset=True)
    _when_dynamo_is_imported()
    return True


def call_operator(name: str, arguments: dict[str, Any]) -> Any:
    """Calls the operator of `name` with arguments by name; a flag that has a separate overload selects it."""
    contract = contracts()[name]
    decides = condition(contract)
    on = decides is not None and is_set(arguments.get(decides))
    overload, fixed = _overloads(contract)[int(on)]
    given = {key: value for key, value in arguments.items() if value is not None and key not in fixed}
    for param in contract["params"]:
        value = given.get(param["name"])
        if param["kind"] == "int" and isinstance(value, (tuple, list)) and len(value) == 1:
            given[param["name"]] = value[0]  # torch passes normalized_shape as a tuple
    function = getattr(getattr(torch.ops.layerzero, name), overload)
    try:
        return function(**given)
    except RuntimeError as error:
        raise _own_error(error) from None


_PARTS = ("field", "wanted", "got", "fix", "text", "explanation")


class _LastError(ctypes.Structure):
    """lz::torch_ops::LastError"""

    _fields_ = [("code", ctypes.c_int32), *((part, ctypes.c_char_p) for part in _PARTS)]


def _own_error(error: RuntimeError) -> Exception:
    """Returns LayerZero's exception for an error that an operator threw through torch, else the error itself."""
    last = _last_error() if _last_error is not None else None
    if not last:
        return error
    parts = {name: (getattr(last.contents, name) or b"").decode() for name in _PARTS}
    if not str(error).startswith(parts["text"]):
        return error  # the last error is of another call
    try:
        raise_engine_error(code=last.contents.code, **parts | {"explanation": parts["explanation"] or None})
    except LayerZeroError as own:
        return own


def _arguments(one: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Returns parameters by name, with defaults filled in, and the layout."""
    found: dict[str, Any] = dict(zip(one.names, args, strict=False)) | kwargs
    found = _defaults(one) | found
    layout = found.pop("layout", None)
    for name, value in one.fixed.items():
        if found.get(name, value) is not value:
            wanted = f"{value} for the overload '{one.overload}'"
            raise InvalidRequestError(f"{one.name}: {name}", wanted, str(found[name]), "call the default overload")
    arguments = found | one.fixed
    return arguments, found_layout(torch, contracts()[one.name], arguments) if layout == "" else layout


@functools.cache
def _defaults(one: Operator) -> dict[str, Any]:
    return {a.name: a.default_value for a in one.function._schema.arguments if a.has_default_value()}


@functools.cache
def _keyword_only(one: Operator) -> dict[str, bool]:
    """Returns the schema's arguments in order."""
    return {a.name: a.kwarg_only for a in one.function._schema.arguments}


# ---- fakes


def _fake(one: Operator) -> Any:
    def fake(*args: Any, **kwargs: Any) -> Any:
        arguments, layout = _arguments(one, args, kwargs)
        check_contract(torch, contracts()[one.name], arguments, layout)
        first = next(arguments[n] for n in one.tensors if arguments[n] is not None)
        # Contiguous in the caller's layout, as the operator allocates them.
        outputs = [
            first.new_empty(shape, dtype=getattr(torch, dtype))
            for shape, dtype in output_shapes(one.name, arguments, layout)
        ]
        return (outputs[0] if len(outputs) == 1 else tuple(outputs)) if outputs else None

    return fake


# ---- gradients


def _autograd(one: Operator) -> Any:
    """Returns the operator's autograd kernel. torch.library.register_autograd does not support keyword-only tensors,
    and silently loses forward-mode tangents; here those go through the reference."""

    below, peek = torch._C._after_autograd_keyset, torch._C._functorch.peek_interpreter_stack
    forward = torch.autograd.forward_ad

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if one.seeded:  # numbers that must be drawn are a separate node of a graph
            args, kwargs = (), random.with_draw(one.name, dict(zip(one.names, args, strict=False)) | kwargs)
        transformed = peek() is not None
        if not transformed and forward._current_level < 0 and not _wants_gradient(args, kwargs) and not one.written:
            try:
                with torch._C._AutoDispatchBelowAutograd():
                    return one.function.redispatch(keyset & below, *args, **kwargs)
            except RuntimeError as error:
                raise _own_error(error) from None
        arguments, layout = _arguments(one, args, kwargs)
        tensors = [arguments[n] for n in one.tensors]
        if transformed or has_tangent(torch, tensors):
            return _through_reference(one, arguments, layout)
        if _wants_gradient(tensors, {}):
            if one.differentiable:
                return _Recompute.apply(one, keyset, arguments, layout, *tensors)
            _refuse_gradient(one)
        return _below_autograd(one, keyset, arguments, layout)

    return kernel


def _wants_gradient(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in (*args, *kwargs.values())
    )


def _through_reference(one: Operator, arguments: dict[str, Any], layout: str | None) -> Any:
    if not one.differentiable:
        refuse_no_gradient(one.name, "ones of a torch.func transform")
    check_contract(torch, contracts()[one.name], arguments, layout)
    return call_reference(one.name, arguments, layout)


def _refuse_gradient(one: Operator) -> None:
    if one.loses_gradients:
        refuse_no_gradient(one.name)


def _below_autograd(one: Operator, keyset: Any, arguments: dict[str, Any], layout: str | None) -> Any:
    function = one.function
    values = {**arguments, "layout": layout}
    args = [values[key] for key, named in _keyword_only(one).items() if not named]
    kwargs = {key: values[key] for key, named in _keyword_only(one).items() if named}
    try:
        with torch._C._AutoDispatchBelowAutograd():
            result = function.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)
    except RuntimeError as error:
        raise _own_error(error) from None
    if one.written:
        torch.autograd.graph.increment_version([arguments[n] for n in one.written if arguments[n] is not None])
    return result


class _Recompute(torch.autograd.Function):
    """Forward by the operator, backward through the torch reference, which is recomputed."""

    @staticmethod
    def forward(ctx: Any, one: Operator, keyset: Any, arguments: dict[str, Any], layout: Any, *tensors: Any) -> Any:
        given = arguments | dict(zip(one.tensors, tensors, strict=True))
        ctx.save_for_backward(*tensors)
        ctx.call = one, {key: value for key, value in arguments.items() if key not in one.tensors}, layout
        ctx.set_materialize_grads(False)
        return _below_autograd(one, keyset, given, layout)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        one, arguments, layout = ctx.call
        needed = ctx.needs_input_grad[4:]
        again = torch.is_grad_enabled()  # create_graph=True: a gradient of the gradient
        with torch.enable_grad():
            tensors = [
                t if not need else t.view_as(t) if again else t.detach().requires_grad_()
                for t, need in zip(ctx.saved_tensors, needed, strict=True)
            ]
            results = call_reference(one.name, arguments | dict(zip(one.tensors, tensors, strict=True)), layout)
        results = results if isinstance(results, tuple) else (results,)
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None and r.requires_grad]
        wanted = [t for t, need in zip(tensors, needed, strict=True) if need]
        if not pairs:
            return (None,) * (4 + len(tensors))
        outputs, given = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True, create_graph=again))
        return None, None, None, None, *(next(found) if need else None for need in needed)


# ---- torch.compile


def _when_dynamo_is_imported() -> None:
    """Substitutes after other code imports torch._dynamo, which substitute_in_graph needs: it takes seconds."""
    when_imported("torch._dynamo", lambda module: substitute_in_graphs())


def substitute_in_graphs() -> None:
    """Makes torch.compile trace these functions instead of the binding's C functions."""
    for name, function in _layerzero.ops.items():
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(_traceable(name))


def _traceable(name: str) -> Any:
    """Returns the operation as a Python function with its signature that calls the operator. It is generated as source
    text, because torch.compile cannot trace a signature that is bound at run time."""
    contract = contracts()[name]
    values: dict[str, Any] = {
        "refuse": _refuse_kernel,
        "draw": random.draw,
        "into": into,
        "fold": _fold,
        "unfold": _unfold,
        "batch": _batch,
        "math": math,
    }
    signature, lines, has_default = [], [], False
    for param in sorted(contract["params"], key=lambda p: p["keyword_only"]):
        p = param["name"]
        if param["keyword_only"] and "*" not in signature:
            signature.append("*")
        has_default |= param["optional"] or param.get("has_default", False)
        signature.append(f"{p}=None" if has_default or param["keyword_only"] else p)
        if param["kind"] == "int":
            lines.append(f"if isinstance({p}, (tuple, list)) and len({p}) == 1: {p} = {p}[0]")
        if param.get("has_default"):
            lines.append(f"if {p} is None: {p} = {param['default']!r}")  # a literal: a global would be guarded
    signature += ["kernel=None", "out=None"] if "*" in signature else ["*", "kernel=None", "out=None"]
    if is_seeded(contract):
        signature.append("generator=None")
        lines.append(_traceable_draw(name))
    lines += _traceable_views(contract)
    if contract["layouts"]:
        signature.append("layout=None")
        lines.append("if layout is None: layout = ''")  # the operator determines it, as in the eager call
    lines.append("if kernel is not None: refuse()")
    result = ""
    for one in (o for o in operators() if o.name == name):
        values[f"operator_{one.overload}"] = one.function
        schema = _keyword_only(one)
        call = f"operator_{one.overload}({', '.join(f'{n}={n}' if schema[n] else n for n in one.names)})"
        result = call if one.overload == "default" else f"{call} if {_is_on(contract)} else {result}"
    lines += [f"result = {result}", f"return into({name!r}, out, result)"]
    source = f"def {name}({', '.join(signature)}):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(source, f"<layerzero {name}>", "exec"), values)  # noqa: S102
    return values[name]


def _is_on(contract: Contract) -> str:
    """Returns the condition of the outputs as source text."""
    name = condition(contract)
    (kind,) = (p["kind"] for p in contract["params"] if p["name"] == name)
    return f"{name} is not None" if kind == "tensor" else str(name)


def _refuse_kernel() -> None:
    raise InvalidRequestError("kernel", "none in a compiled graph", "one", "use layerzero.configure or a policy file")


def _traceable_draw(name: str) -> str:
    """Returns the draw of a call without a seed as source text: torch.compile traces torch.rand."""
    rows, pairs = random.source(name)
    unseeded = "seed is None and uniform is None and not offset"
    return f"if generator is not None or ({unseeded}): uniform = draw({rows}, {int(pairs)}, generator)"


def _traceable_views(contract: Contract) -> list[str]:
    """Returns layerzero.contracts.axes as source text: reshapes axes other than the contract's, calls, and reshapes back."""
    params = contract["params"]
    call: dict[str, str] = {p["name"]: p["name"] for p in params}
    if fold := next((p for p in params if p.get("folds")), None):
        sizes, axis = fold["name"], fold["folds"]
        for p in params:
            if p["kind"] == "tensor" and dims_of(p["shape"])[1][-1:] == (axis,):
                call[p["name"]] = f"fold({p['name']}, {sizes})"
        call[sizes] = f"math.prod({sizes})"
        if_, back = f"isinstance({sizes}, (tuple, list))", f"unfold(result, {sizes})"
    elif main := next((p for p in params if p.get("batched_rank") and p["shape"] != "*"), None):
        name, rank = main["name"], main["batched_rank"]
        for p in params:
            if p.get("batched_rank"):
                call[p["name"]] = f"batch({p['name']}, {p['batched_rank']}, {name}.dim() - {rank}, {p is main})"
        if_, back = f"{name}.dim() != {rank} and {name}.dim() >= {rank - 2}", f"result.reshape({name}.shape)"
    else:
        return []
    call |= {"layout": "layout"} if contract["layouts"] else {}
    again = f"{contract['name']}({', '.join(f'{key}={value}' for key, value in call.items())}, kernel=kernel)"
    out = f"return into({contract['name']!r}, out, result)"
    return [f"if {if_}:", f"    result = {again}", f"    result = {back}", f"    {out}"]


def _fold(tensor: Any, sizes: Any) -> Any:
    if tensor is None:
        return None
    if tuple(tensor.shape[-len(sizes) :]) != tuple(sizes):
        raise InvalidRequestError("normalized_shape", f"the last sizes of {list(tensor.shape)}", f"{sizes}")
    return tensor.reshape(*tensor.shape[: -len(sizes)], math.prod(sizes))


def _unfold(result: Any, sizes: Any) -> Any:
    if isinstance(result, tuple):
        return tuple([one.reshape(*one.shape[:-1], *sizes) for one in result])
    return result.reshape(*result.shape[:-1], *sizes)


def _batch(tensor: Any, rank: int, more: int, main: bool) -> Any:
    if tensor is None or not (main or tensor.dim() == rank + more):
        return tensor
    if more > 0:
        return tensor.flatten(0, more)
    if main:
        return tensor.reshape(*([1] * -more), *tensor.shape)
    return tensor[None] if more == -2 else tensor
