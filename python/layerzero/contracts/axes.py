"""Calls whose tensors have another number of axes than the contract: inputs and outputs are reshaped.

Several normalized axes are folded into the last one (`normalized_shape`), batch axes into the first (`rope`). Like
torch's reshape, this is a view if the axes are dense in memory, else a copy.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from layerzero.contracts import Contract, condition, contracts, parameter_names, present_outputs
from layerzero.contracts.shapes import dims_of
from layerzero.errors import InvalidRequestError, WrongTypeError


class Description(NamedTuple):
    """A tensor without memory, for `explain` and `which`: the C code reads the tuple."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, dtype: str, shape: Sequence[int]) -> "Description":
        """Returns the description of a dense tensor."""
        return cls(dtype, tuple(shape), tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))

    def reshape(self, shape: Sequence[int]) -> "Description":
        """Returns a dense one with as many elements."""
        return self.of(self.dtype, shape)


class Reshaped(NamedTuple):
    """The arguments of the call with the contract's axes, and the shape of each output with the caller's axes."""

    arguments: dict[str, Any]
    shape_of: Callable[[int, Any], Sequence[int]]  # (output, result)


def reshaped(contract: Contract, arguments: dict[str, Any], layout: str | None = None) -> Reshaped | None:
    """Returns the reshaped call; None if the axes are the contract's already, or wrong, which the contract reports."""
    for param in contract["params"]:
        value = arguments.get(param["name"])
        if param.get("folds") and isinstance(value, (tuple, list)) and len(value) != 1:
            return _fold(contract, arguments, param, value)
        if param.get("batched_rank") and param["shape"] != "*" and value is not None:
            return _batch(contract, arguments, param["name"], layout)
    return None


def call_reshaped(contract: Contract, view: Reshaped, options: dict[str, Any], function: Callable[..., Any]) -> Any:
    """Calls `function` with the reshaped arguments; outputs and out= have the caller's axes."""
    out = options.get("out")
    outs = out if isinstance(out, tuple) else (out,)
    if out is not None:
        flat = tuple(_flat(contract, view, i, one) for i, one in enumerate(outs))
        options = options | {"out": flat if isinstance(out, tuple) else flat[0]}
    result = function(**_given(view), **options)
    if out is not None:
        return out
    if isinstance(result, tuple):
        return tuple(one.reshape(view.shape_of(i, one)) for i, one in enumerate(result))
    return result.reshape(view.shape_of(0, result))


def with_contract_axes(
    contract: Contract, tensors: tuple[Any, ...], params: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of a call with the contract's axes, unchanged if they have them already."""
    names = parameter_names(contract["name"])
    if len(tensors) > len(names):
        return tensors, params  # refused with the call
    view = reshaped(contract, dict(zip(names, tensors, strict=False)) | params, params.get("layout"))
    return (tensors, params) if view is None else ((), _given(view))


def fixed_arguments(contract: Contract, tensors: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Any] | None:
    """Returns what a prepared call keeps for `call_prepared`; None if its tensors never need a reshape."""
    if not any(p.get("folds") or p.get("batched_rank") for p in contract["params"]):
        return None
    given = dict(zip(parameter_names(contract["name"]), tensors, strict=False)) | params
    return {p["name"]: given[p["name"]] for p in contract["params"] if p["kind"] != "tensor" and p["name"] in given}


def call_prepared(prepared: Any, fixed: dict[str, Any], tensors: tuple[Any, ...]) -> Any:
    """Runs a prepared call whose tensors may have other axes than the contract's. Called by the C code."""
    contract = contracts()[prepared.operation]
    names = [p["name"] for p in contract["params"] if p["kind"] == "tensor"]
    view = reshaped(contract, dict(zip(names, tensors, strict=False)) | fixed, fixed.get("layout"))
    if view is None:
        return prepared._call_on_axes(*tensors)
    return call_reshaped(contract, view, {}, lambda **given: prepared._call_on_axes(*map(given.get, names)))


def call_permuted(
    contract: Contract, arguments: dict[str, Any], order: Sequence[int], function: Callable[[dict[str, Any]], Any]
) -> Any:
    """Calls `function` with the arguments, those tensors permuted that have a layout, and permutes its outputs back."""
    permuted = {
        p["name"]: arguments[p["name"]].permute(order)
        for p in contract["params"]
        if p.get("layout") and arguments.get(p["name"]) is not None
    }
    results = function(arguments | permuted)
    if results is None:  # the operation writes in place
        return None
    inverse = [order.index(axis) for axis in range(len(order))]
    outputs = results if isinstance(results, tuple) else (results,)
    described = present_outputs(contract, arguments.get(condition(contract) or ""))
    outputs = tuple(t.permute(inverse) if o["layout"] else t for t, o in zip(outputs, described, strict=True))
    return outputs if isinstance(results, tuple) else outputs[0]


def _given(view: Reshaped) -> dict[str, Any]:
    return {key: value for key, value in view.arguments.items() if value is not None}


def _flat(contract: Contract, view: Reshaped, output: int, out: Any) -> Any:
    """Returns out= with the contract's axes, over the same memory."""
    like = view.arguments[contract["outputs"][output]["dtype"]]
    try:
        if tuple(out.shape) == tuple(view.shape_of(output, like)):
            return out.view(like.shape)
    except RuntimeError:
        raise InvalidRequestError(
            f"{contract['name']}: out", "a contiguous tensor", "one with gaps or another order of axes"
        ) from None
    return out  # the contract reports what is wrong with it


def _fold(contract: Contract, arguments: dict[str, Any], param: dict[str, Any], sizes: Sequence[Any]) -> Reshaped:
    field = f"{contract['name']}: {param['name']}"
    if not sizes or any(isinstance(size, (bool, float)) or not hasattr(size, "__index__") for size in sizes):
        raise WrongTypeError(field, "an integer, or the sizes of one or more last axes", repr(sizes))
    sizes, count, axis = tuple(sizes), len(sizes), param["folds"]
    found = arguments | {param["name"]: math.prod(sizes)}
    for tensor in contract["params"]:
        value = arguments.get(tensor["name"])
        leading, dims = dims_of(tensor["shape"]) if tensor["kind"] == "tensor" else (False, ())
        if value is None or not dims or dims[-1] != axis:
            continue
        shape = tuple(value.shape)
        if shape[-count:] != sizes or (not leading and len(shape) != count):
            wanted = f"[{'..., ' if leading else ''}{', '.join(map(str, sizes))}]"
            raise InvalidRequestError(
                f"{contract['name']}: {tensor['name']}", f"{wanted} for normalized_shape", str(list(shape))
            )
        found[tensor["name"]] = value.reshape((*shape[:-count], found[param["name"]]))
    folded = [dims_of(output["shape"])[1][-1] == axis for output in contract["outputs"]]
    return Reshaped(found, lambda i, result: (*result.shape[:-1], *sizes) if folded[i] else tuple(result.shape))


def _batch(contract: Contract, arguments: dict[str, Any], main: str, layout: str | None) -> Reshaped | None:
    """Folds the leading axes of `main`, and of the tensors that go with it, into one batch axis."""
    ranks = {p["name"]: p["batched_rank"] for p in contract["params"] if p.get("batched_rank")}
    if not hasattr(arguments.get(main), "shape"):
        return None  # refused later, with the other arguments that do not fit
    shape = tuple(arguments[main].shape)
    more = len(shape) - ranks[main]
    first = next(iter(contract["layouts"]), None)
    if more == 0 or more < -2 or (more == -2 and layout not in (None, first)):
        return None
    found = dict(arguments)
    for name, rank in ranks.items():
        value = arguments.get(name)
        if value is None or not hasattr(value, "shape"):
            continue
        own = tuple(value.shape)
        if more > 0 and len(own) == rank + more:
            found[name] = value.reshape((math.prod(own[: more + 1]), *own[more + 1 :]))
        elif name == main:
            found[name] = value.reshape((1,) * -more + own)
        elif more == -2 and len(own) == rank + more:  # one position
            found[name] = value.reshape((1, *own))
    return Reshaped(found, lambda _, __: shape)
