"""Norms of rows, and factors for each column."""

from typing import Any

from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.layers import Norm
from layerzero.integrations.transformers.recognise.layout import rows_of
from layerzero.integrations.transformers.recognise.match import (
    Pattern,
    any_node,
    call,
    match,
    number,
    number_of,
    parameter,
    uncast,
)

x, w, b, eps = any_node("x"), parameter("weight"), parameter("bias"), number("eps")

_CENTRED = x - call("mean", x)
_SQUARE, _VARIANCES = call("mean", x**2) + eps, [call("mean", _CENTRED**2) + eps, call("var", x) + eps]
_RMS = [x * call("rsqrt", _SQUARE), x / call("sqrt", _SQUARE)]
_PLAIN = [call("layer_norm", x, None, None, eps)]
_PLAIN += [made for v in _VARIANCES for made in (_CENTRED * call("rsqrt", v), _CENTRED / call("sqrt", v))]
FORMULAS: list[tuple[str, float, Pattern]] = []  # (operation, offset of the weight, formula)
for rms in _RMS:
    FORMULAS += [("rms_norm", 0.0, rms * w), ("rms_norm", 1.0, rms * (w + 1.0)), ("rms_norm", 0.0, rms)]
for plain in _PLAIN:
    FORMULAS += [
        ("layer_norm", 0.0, plain * w + b),
        ("layer_norm", 0.0, plain * w),
        ("layer_norm", 1.0, plain * (w + 1.0) + b),
    ]


def norm_of(node: Any, graph: Any) -> tuple[Norm, Any] | None:
    """(Norm, the node that it normalises) of a node that is a norm of the last axis, or None."""
    node = rows_of(node)
    if node.op in ("layer_norm", "rms_norm"):
        given, weight, bias, small = node.args
        return _made(node.op, 0.0, {"x": given, "weight": weight, "bias": bias, "eps": small}, node, graph)
    for operation, offset, formula in FORMULAS:
        found = match(formula, node)
        if found is not None:
            return _made(operation, offset, found, node, graph)
    return None


def _made(operation: str, offset: float, found: dict[str, Any], node: Any, graph: Any) -> tuple[Norm, Any] | None:
    weight, bias, small = found.get("weight"), found.get("bias"), found["eps"]
    if operation == "layer_norm" and weight is not None:
        shifted = match(w + 1.0, weight)
        offset, weight = (1.0, shifted["weight"]) if shifted is not None else (offset, weight)
    name = node.module
    for key, held in (("weight", weight), ("bias", bias)):
        if held is None:
            continue
        held = uncast(held)
        path, own = held.place
        if (
            held.op != "parameter"
            or own != key
            or held.value.dim() != 1
            or (weight is not None and key == "bias" and path != name)
        ):
            return None
        name = path
    module = graph.layer.get_submodule(name)
    held = {key for key, tensor in module._parameters.items() if tensor is not None}
    used = {key for key, tensor in (("weight", weight), ("bias", bias)) if tensor is not None}
    number = number_of(small)
    if held != used or number is None or structure.why_not_plain(module) or module._modules:
        return None
    return Norm(name, operation, number, offset), uncast(found["x"])


def scale_of(node: Any, graph: Any) -> tuple[Norm, Any] | None:
    """(Norm of the operation elementwise, x) of x * vector, where a module has the vector; or None."""
    found = match(x * w, rows_of(node))
    if found is None or found["weight"].value.dim() != 1 or found["weight"].value.shape[0] != node.value.shape[-1]:
        return None
    path, key = found["weight"].place
    module = graph.layer.get_submodule(path)
    if module._parameters.get(key) is None or structure.why_not_plain(module):
        return None
    return Norm(path, "elementwise", vector=key), found["x"]
