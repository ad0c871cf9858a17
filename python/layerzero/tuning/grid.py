"""Calls to tune as lines in the grammar of bench cases: from a call's own arguments, or from sizes by name."""

import itertools
from typing import Any

from layerzero.contracts import contracts, flat_name, operation_name, parameter_names
from layerzero.errors import InvalidRequestError
from layerzero.tuning.workload import Entry

_SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32"}
_SHORT |= {"int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool"}
_SHORT |= {"float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}
_GRID = {"dtype", "head_dim", "seq_lens", "batch_sizes", "num_heads", "num_kv_heads", "hidden", "rows", "features"}


def _dtype(value: Any) -> str:
    name = str(value).removeprefix("torch.")
    if name in _SHORT.values():
        return name
    if name not in _SHORT:
        raise InvalidRequestError("dtype", f"one of {', '.join(_SHORT)}", repr(value))
    return _SHORT[name]


def _word(name: str, value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape, strides = tuple(value.shape), _strides(value)
        turned = len(shape) > 1 and shape[-1] > 1 and strides[-1] != 1 and strides[-2] == 1
        return f"{name}={_dtype(value.dtype)}[{','.join(map(str, shape))}]{'@transposed' if turned else ''}"
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    return f"{name}={value!r}" if isinstance(value, float) else f"{name}={value}"


def _strides(value: Any) -> tuple[int, ...]:
    strides = value.stride() if callable(getattr(value, "stride", None)) else value.strides
    return tuple(strides)


def line_of(operation: str, args: tuple[Any, ...], call: dict[str, Any]) -> Entry:
    """Returns the call of these arguments, tensors or descriptions, as it is recorded: without contents."""
    import layerzero as lz

    name = operation_name(operation, args, call)
    given = dict(zip(parameter_names(name), args, strict=False)) | call
    report = lz.explain(operation, *args, **call)
    axes = {axis: int(report.key[axis]) for axis in contracts()[name]["axes"] if axis in report.key}
    words = [_word(key, value) for key, value in given.items() if value is not None and key != "kernel"]
    where = next((f"cuda:{v.device.index or 0}" for v in given.values() if getattr(v, "is_cuda", False)), "cpu")
    return Entry(name, " ".join(words), device=where, axes=axes)


def lines_of_grid(operation: str, sizes: dict[str, Any]) -> list[str]:
    """Returns the calls of every combination of sizes.

    attention: dtype, head_dim, seq_lens, batch_sizes, num_heads=32, num_kv_heads=8; a product (linear): dtype, rows, features
    as pairs (out, in); an operation of rows (norms, activations): dtype, rows, hidden. Each is one value or a list.
    """
    name = flat_name(operation)
    if unknown := set(sizes) - _GRID:
        raise InvalidRequestError("tune", f"tensors, or some of {', '.join(sorted(_GRID))}", ", ".join(sorted(unknown)))

    def of(key: str, *default: Any) -> list[Any]:
        value = sizes.get(key, list(default) or None)
        if value is None:
            raise InvalidRequestError(f"tune: {key}", f"sizes for {name}", "none")
        return list(value) if isinstance(value, list | tuple | set) else [value]

    dtypes = [_dtype(d) for d in of("dtype", "bfloat16")]
    if name == "attention":
        heads, kv = of("num_heads", 32), of("num_kv_heads", 8)
        causal = " causal=true" if operation.endswith("causal") else ""
        axes = (dtypes, of("batch_sizes", 1), of("seq_lens"), heads, kv, of("head_dim"))
        lines = []
        for t, b, s, h, g, d in itertools.product(*axes):
            g = min(g, h)
            for q in dict.fromkeys((s, 1)):  # the prompt, and a step of decoding over it
                mask = causal if q > 1 else ""
                words = (
                    f"query={t}[{b},{q},{h},{d}] key={t}[{b},{s},{g},{d}] value={t}[{b},{s},{g},{d}]{mask} layout=BSHD"
                )
                lines.append(words)
        return list(dict.fromkeys(lines))
    params = {p["name"]: p for p in contracts()[name]["params"] if p["kind"] == "tensor" and not p["optional"]}
    if list(params) == ["input", "weight"] and name == "linear":
        pairs = [p if isinstance(p, tuple) else (p, p) for p in of("features")]
        products = itertools.product(dtypes, of("rows"), pairs)
        return [f"input={t}[{m},{k}] weight={t}[{n},{k}]" for t, m, (n, k) in products]
    if set(params) <= {"input", "residual", "weight", "gate", "up"}:
        shape = {"weight": "[{d}]"}
        return [
            " ".join(f"{p}={t}" + shape.get(p, "[{m},{d}]").format(m=m, d=d) for p in params)
            for t, m, d in itertools.product(dtypes, of("rows"), of("hidden"))
        ]
    fix = f"pass tensors or descriptions: lz.tune({operation!r}, {', '.join(f'{p}=...' for p in params)})"
    raise InvalidRequestError("tune", "attention, a product or an operation of rows by sizes", name, fix)
