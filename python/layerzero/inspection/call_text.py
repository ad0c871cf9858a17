"""A call of an operation as text: `attention --query bf16[1,512,32,128] --key ... --causal true`."""

import functools
import json
import math
import re
from typing import Any

from layerzero import _layerzero, backends
from layerzero.contracts import contracts, flat_name, operation_name
from layerzero.contracts.axes import Description
from layerzero.errors import InvalidRequestError, did_you_mean, known_name

SHORT = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
}
_TENSOR = re.compile(r"([a-z][a-z0-9_]*)\[([0-9, ]*)\]$")
MOST_ELEMENTS = 2**62
EXAMPLE = "layerzero explain rms_norm --input bf16[4,576] --weight bf16[576]"
FURTHER = {"layout": "BSHD or BHSD, if the operation has both", "kernel": "only this kernel; see layerzero list"}


def kernel_ids(operation: str | None = None) -> list[str]:
    """Returns the ids of all kernels, or of those of one operation by its flat name."""
    backends.ensure_registered()
    return list(dict.fromkeys(kernel["kernel_id"] for kernel in json.loads(_layerzero.kernels(operation))))


def read_call(operation: str, words: list[str]) -> tuple[str, dict[str, Any]]:
    """Returns the operation, by the alias if one was used, and its arguments, with descriptions instead of tensors:
    nothing is allocated and torch is not imported."""
    alias = operation in contracts()[flat_name(operation)]["aliases"]
    texts = _pairs(words)
    name = operation_name(operation, (), texts)
    params = {param["name"]: param for param in contracts()[name]["params"]}
    for key in texts:
        if key not in params and key not in FURTHER:
            known = [f"--{known.replace('_', '-')}" for known in (*params, *FURTHER)]
            option = f"--{key.replace('_', '-')}"
            raise InvalidRequestError(
                option, f"one of {', '.join(known)}", "no option of this call", did_you_mean(option, known)
            )
    if "kernel" in texts:
        known_name("--kernel", f"a kernel of {name}", texts["kernel"], kernel_ids(name), f"see `layerzero list {name}`")
    return operation if alias else name, {key: _value(key, params.get(key), text) for key, text in texts.items()}


def _pairs(words: list[str]) -> dict[str, str]:
    """Returns ["--a", "x", "--b=y"] as {"a": "x", "b": "y"}."""
    pairs = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise InvalidRequestError(word, "--parameter value", "a word alone", f"for example: {EXAMPLE}")
        key, equals, value = word[2:].partition("=")
        if not equals:
            value = next(rest, "")
        if not value:
            raise InvalidRequestError(f"--{key}", "a value", "none", f"for example: {EXAMPLE}")
        pairs[key.replace("-", "_")] = value
    return pairs


def _value(key: str, param: dict[str, Any] | None, text: str) -> Any:
    kind = param["kind"] if param else "choice"
    if kind == "tensor":
        return _tensor(key, text)
    if kind == "choice":
        return text
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise InvalidRequestError(f"--{key}", "true or false", repr(text))
        return text.lower() == "true"
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise InvalidRequestError(f"--{key}", "a whole number" if kind == "int" else "a number", repr(text)) from None


def _tensor(key: str, text: str) -> Description:
    match = _TENSOR.match(text)
    if not match:
        raise InvalidRequestError(f"--{key}", "dtype[sizes], for example bf16[1,512,32,128]", repr(text))
    dtype = SHORT.get(match[1], match[1])
    if dtype not in _dtypes():
        raise InvalidRequestError(f"--{key}", f"a dtype such as {', '.join(SHORT)}, bool", repr(match[1]))
    sizes = tuple(int(size) for size in match[2].split(",") if size.strip())
    if math.prod(sizes) > MOST_ELEMENTS:
        raise InvalidRequestError(f"--{key}", f"at most {MOST_ELEMENTS} elements", text)
    return Description.of(dtype, sizes)


@functools.cache
def _dtypes() -> frozenset[str]:
    """Returns every dtype that some operation takes."""
    tensors = (p for contract in contracts().values() for p in contract["params"] if p["kind"] == "tensor")
    return frozenset(dtype for tensor in tensors for dtype in tensor["dtypes"])
