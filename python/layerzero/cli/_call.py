"""A call of an operation as text: `attention --query bf16[1,512,32,128] --key ... --causal true`."""

import re
from typing import Any

from layerzero._contracts import contracts, flat_name
from layerzero._optional import need
from layerzero.errors import InvalidRequestError

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
EXAMPLE = "layerzero explain rms_norm --input bf16[4,576] --weight bf16[576]"


def takes_call(command: Any) -> Any:
    """Marks a command whose further words are a call, for `read_call`: typer leaves them as they are."""
    command.context_settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    return command


def read_call(operation: str, words: list[str]) -> tuple[str, dict[str, Any]]:
    """Flat name and arguments; tensors are allocated, their values are nobody's business."""
    name = flat_name(operation)
    params = {param["name"]: param for param in contracts()[name]["params"]}
    texts = _pairs(words)
    unknown = [key for key in texts if key not in params and key not in ("layout", "kernel")]
    if unknown:
        known = ", ".join(f"--{key.replace('_', '-')}" for key in params)
        raise InvalidRequestError(f"--{unknown[0]}: wanted one of {known}, --layout, --kernel")
    return name, {key: _value(key, params.get(key), text) for key, text in texts.items()}


def _pairs(words: list[str]) -> dict[str, str]:
    """["--a", "x", "--b=y"] as {"a": "x", "b": "y"}."""
    pairs = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise InvalidRequestError(f"{word}: wanted --parameter value; for example: {EXAMPLE}")
        key, equals, value = word[2:].partition("=")
        if not equals:
            value = next(rest, "")
        if not value:
            raise InvalidRequestError(f"--{key}: wanted a value; for example: {EXAMPLE}")
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
            raise InvalidRequestError(f"--{key}: wanted true or false, got {text!r}")
        return text.lower() == "true"
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise InvalidRequestError(f"--{key}: wanted {kind}, got {text!r}") from None


def _tensor(key: str, text: str) -> Any:
    match = _TENSOR.match(text)
    if not match:
        raise InvalidRequestError(f"--{key}: wanted dtype[sizes], for example bf16[1,512,32,128], got {text!r}")
    need("torch", what="this command")
    import torch

    dtype = getattr(torch, SHORT.get(match[1], match[1]), None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidRequestError(f"--{key}: wanted a dtype such as {', '.join(SHORT)}, bool, got {match[1]!r}")
    sizes = [int(size) for size in match[2].split(",") if size.strip()]
    try:
        return torch.empty(sizes, dtype=dtype)
    except RuntimeError as error:
        raise InvalidRequestError(f"--{key}: wanted a tensor that fits in memory, got {text}: {error}") from None
