"""Output shapes of a call by the contract's shape language, for integers and torch's symbolic integers.

The engine computes the same for real tensors (src/pipeline/request.cpp) and checks a call before (layerzero.torch.checks).
Here sizes may be symbolic, so none is compared: that would specialize the traced graph to one size.
"""

import ast
import functools
import math
import operator
import re
import sys
from collections.abc import Callable
from typing import Any

from layerzero.contracts import Contract, condition, contracts, present_outputs


def _is_zero(value: Any) -> bool:
    return isinstance(value, int) and value == 0


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: lambda a, b: 0 if _is_zero(a) or _is_zero(b) else a * b,  # 0 times a symbol is 0, not a symbol
    ast.Div: operator.floordiv,  # sizes are never negative
}


@functools.cache
def dims_of(shape: str) -> tuple[bool, tuple[str, ...]]:
    """Returns whether the shape starts with "...", and its other dimensions."""
    parts = tuple(part.strip() for part in re.split(r",(?![^\[]*\])", shape) if part.strip())
    return ("..." in parts[:1], parts[1:]) if "..." in parts[:1] else (False, parts)


@functools.cache
def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _evaluate(node: ast.expr, axes: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return axes["..."] if node.value is Ellipsis else node.value  # "...": the product of the leading axes
    if isinstance(node, ast.Name):
        return axes[node.id]
    if isinstance(node, ast.Subscript):  # the value of a choice, an index into a list
        numbers = ast.literal_eval(node.slice)
        return numbers[_evaluate(node.value, axes)]
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluate(node.left, axes), _evaluate(node.right, axes))
    raise ValueError(f"shape expression {ast.dump(node)}")


def output_shapes(name: str, arguments: dict[str, Any], layout: str | None = None) -> list[tuple[list[Any], str]]:
    """Returns (physical shape, dtype) of each output of operation `name`; `arguments` by name, with defaults filled in.

    A dtype is a torch name without "torch."; absent outputs are left out.
    """
    contract = contracts()[name]
    order = contract["layouts"].get(layout) if layout is not None else None
    axes: dict[str, Any] = {}
    leading: list[Any] = []
    for param in contract["params"]:
        value = arguments.get(param["name"])
        if value is None:
            continue
        if param["kind"] in ("int", "bool"):
            axes[param["name"]] = int(value) if isinstance(value, bool) else value  # bool times symbol fails
        elif param["kind"] == "choice":
            axes[param["name"]] = param["choices"].index(value)
        elif param["kind"] == "tensor" and param["shape"] != "*" and not param["broadcast"]:
            has_leading, dims = dims_of(param["shape"])
            places = order if order is not None and param["layout"] else range(value.dim())
            shape = [value.shape[place] for place in places]
            count = len(shape) - len(dims)
            leading = leading or shape[:count] if has_leading else leading
            axes = dict(zip(dims, shape[count:], strict=True)) | axes
    axes["..."] = math.prod(leading)
    found = []
    for output in present_outputs(contract, arguments.get(condition(contract) or "")):
        sizes = _sizes(output["shape"], arguments, axes, leading)
        if order is not None and output["layout"]:
            physical = list(sizes)
            for axis, place in enumerate(order):
                physical[place] = sizes[axis]
            sizes = physical
        found.append((sizes, _dtype(contract, output, arguments)))
    return found


def _sizes(shape: str, arguments: dict[str, Any], axes: dict[str, Any], leading: list[Any]) -> list[Any]:
    if shape.endswith("}"):  # one shape per value of a choice
        choice, _, shapes = shape[:-1].partition("{")
        return _sizes(shapes.split("|")[axes[choice]].strip(), arguments, axes, leading)
    if shape.startswith("blocks("):
        tensor, axis, rows, columns = (part.strip() for part in shape[7:-1].split(";"))
        block = [_evaluate(_expression(part), axes) for part in (rows, columns)]
        return _blocks(list(arguments[tensor].shape), arguments.get(axis), *block)
    has_leading, dims = dims_of(shape)
    return [*(leading if has_leading else []), *(_evaluate(_expression(d), axes) for d in dims)]


def _blocks(shape: list[Any], axis: int | None, rows: Any, columns: Any) -> list[Any]:
    """Returns the number of blocks along each axis: blocks of `rows` by `columns` of the last two axes, one block for the
    whole tensor if columns is 0, or one for each index of `axis`."""
    if axis is not None:
        return [n if i == axis % len(shape) else 1 for i, n in enumerate(shape)]
    if isinstance(columns, int) and columns <= 0:
        return [1] * len(shape)
    return [*shape[:-2], *(n // block for n, block in zip(shape[-2:], (rows, columns)[-len(shape) :], strict=True))]


def _dtype(contract: Contract, output: dict[str, Any], arguments: dict[str, Any]) -> str:
    chosen = arguments.get(output["dtype_choice"]) if output["dtype_choice"] else None
    if chosen is not None and output["choice_dtypes"]:
        (choices,) = (p["choices"] for p in contract["params"] if p["name"] == output["dtype_choice"])
        return output["choice_dtypes"][choices.index(chosen)]
    if chosen is not None:
        return chosen
    like = arguments.get(output["dtype"])
    if like is None:
        return output["dtype"]
    promoted = promotion(contract, arguments)
    dtype = like.dtype if promoted is None or output["dtype"] not in promoted[0] else promoted[1]
    return str(dtype).removeprefix("torch.")


def promotion(contract: Contract, arguments: dict[str, Any]) -> tuple[set[str], Any] | None:
    """Returns the tensors whose dtypes may differ and the dtype that a plan casts them to; None if all are equal."""
    names = {p["name"] for p in contract["params"] if p.get("promotes")}
    if not names:
        return None
    names |= {p["same_dtype_as"] for p in contract["params"] if p.get("promotes")}
    tensors = [arguments[name] for name in names if arguments.get(name) is not None]
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) < 2:
        return None
    torch, kind = sys.modules["torch"], tensors[0].device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):  # under autocast torch's own functions choose
        return None
    return names, functools.reduce(torch.promote_types, dtypes)
