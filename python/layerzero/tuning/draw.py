"""Draws a case's arguments on a device, where a conformance case's own numbers would take minutes to copy.

The grammar is that of conformance cases (tests/conformance/README.md), with the marks that a fast call may have
(@transposed) and two more fills: ~steps(first,step), and one value in braces for all elements.
"""

import math
import re
from typing import Any

import torch

from layerzero.contracts import contracts
from layerzero.contracts.axes import Description
from layerzero.errors import InvalidRequestError

_DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32"}
_DTYPES |= {
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
_TENSOR = re.compile(
    r"(?P<dtype>\w+)\[(?P<sizes>[\d,]*)\](?:~(?P<fill>\w+)(?:\((?P<of>[^)]*)\))?|\{(?P<values>[^}]*)\})?(?P<mark>@transposed)?"
)


def _parse(operation: str, line: str) -> dict[str, Any]:
    """Returns the arguments by name: a match of _TENSOR for a tensor, otherwise the value."""
    params = {p["name"]: p for p in contracts()[operation]["params"]}
    found: dict[str, Any] = {}
    for word in line.split():
        name, _, text = word.partition("=")
        kind = params[name]["kind"] if name in params else "layout" if name == "layout" else None
        if kind is None:
            raise InvalidRequestError(f"{operation}: {line}", f"one of {', '.join(params)}", repr(name))
        match = _TENSOR.fullmatch(text) if kind == "tensor" else None
        if kind == "tensor" and (match is None or match["dtype"] not in _DTYPES):
            raise InvalidRequestError(
                f"{operation}: {name}", "dtype[sizes] with a fill, see tuning/draw.py", repr(text)
            )
        read: Any = {"int": int, "float": float, "bool": lambda t: t == "true"}.get(kind, str)
        found[name] = match or read(text)
    layout = next(iter(contracts()[operation]["layouts"]), None)
    return ({"layout": layout} if layout else {}) | found


def _shape(match: re.Match[str]) -> tuple[int, ...]:
    return tuple(int(size) for size in match["sizes"].split(",") if size)


def described(operation: str, line: str) -> dict[str, Any]:
    """Returns the arguments of the call with a Description in place of each tensor: all that a selection reads."""

    def of(match: re.Match[str]) -> Description:
        shape = _shape(match)
        dense = Description.of(_DTYPES[match["dtype"]], shape)
        if not match["mark"]:
            return dense
        *rest, rows, columns = shape
        turned = Description.of(dense.dtype, (*rest, columns, rows)).strides
        return Description(dense.dtype, shape, (*turned[:-2], turned[-1], turned[-2]))

    return {k: of(v) if isinstance(v, re.Match) else v for k, v in _parse(operation, line).items()}


def arguments_on(device: str, operation: str, line: str) -> dict[str, Any]:
    """Returns the arguments of the call by name, tensors on the device; a line has the same numbers on each call."""
    generator = torch.Generator(device).manual_seed(int.from_bytes(line.encode(), "big") % (1 << 62))
    return {
        name: _tensor(value, device, generator) if isinstance(value, re.Match) else value
        for name, value in _parse(operation, line).items()
    }


def _tensor(match: re.Match[str], device: str, generator: torch.Generator) -> torch.Tensor:
    shape, dtype = _shape(match), getattr(torch, _DTYPES[match["dtype"]])
    turned = (*shape[:-2], shape[-1], shape[-2]) if match["mark"] else shape
    drawn = _values(match, turned, dtype, device, generator).reshape(turned)
    return drawn.transpose(-1, -2) if match["mark"] else drawn


def _values(
    match: re.Match[str], shape: tuple[int, ...], dtype: Any, device: str, generator: torch.Generator
) -> torch.Tensor:
    numel, integers = math.prod(shape), not dtype.is_floating_point
    on: Any = {"device": device, "generator": generator}
    if match["values"] is not None:
        values = [float(value) for value in match["values"].split(",")]
        filled = torch.tensor(values, device=device, dtype=torch.float64).to(dtype)
        return filled.reshape(()).expand(shape).contiguous() if len(values) == 1 else filled
    fill = match["fill"] or ("int" if integers else "normal")
    low, high = (float(bound) for bound in (match["of"] or ("0,2" if integers else "0,1")).split(","))
    if fill == "steps":
        return (low + high * torch.arange(numel, device=device, dtype=torch.float64)).to(dtype)
    if fill == "int":
        return torch.randint(int(low), int(high), shape, **on).to(dtype)
    if fill == "distinct" and high - low >= numel:  # in all rows together, so that no two sequences share a page
        return (low + torch.randperm(int(high - low), **on)[:numel]).to(dtype)
    wide = dtype if dtype in (torch.float32, torch.bfloat16, torch.float16) else torch.float32
    drawn = torch.empty(shape, device=device, dtype=wide)
    if fill == "normal":
        return drawn.normal_(generator=generator).to(dtype)
    if fill == "uniform":
        return drawn.uniform_(low, high, generator=generator).to(dtype)
    if fill == "probs":
        return torch.softmax(drawn.float().normal_(generator=generator), -1).to(dtype)
    raise InvalidRequestError("fill", "normal, uniform, int, distinct, steps or probs", f"{fill}({match['of']})")
