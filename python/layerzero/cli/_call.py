"""A call of an operation as text: `attention --query bf16[1,512,32,128] --key ... --causal true`."""

import functools
import importlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import typer
import typer.core

from layerzero import _layerzero
from layerzero.contracts import contracts, flat_name, operation_name
from layerzero.contracts.axes import Description
from layerzero.errors import InvalidRequestError, did_you_mean, known_name
from layerzero.inspection.text import table, terminal_width

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


def operation_names() -> list[str]:
    """Returns flat names, for completion and suggestions."""
    return list(contracts())


def kernel_ids(operation: str | None = None) -> list[str]:
    """Returns the ids of all kernels, or of those of one operation by its flat name."""
    from layerzero import backends

    backends.ensure_registered()
    return list(dict.fromkeys(kernel["kernel_id"] for kernel in json.loads(_layerzero.kernels(operation))))


def all_kernel_ids() -> list[str]:
    """Returns the ids of all kernels, for completion."""
    return kernel_ids()


def device_names() -> list[str]:
    """Returns this machine's devices, then the simulated ones."""
    devices = json.loads(_layerzero.devices())
    return [device["name"] for device in (*devices["devices"], *devices["simulated"])]


Operation: Any = typer.Argument(help="an operation: flat name, id or alias", autocompletion=operation_names)
Device: Any = typer.Option(
    help="a device of this machine or a simulated one: h100, b200, zen5 ...", autocompletion=device_names
)


def check_device(device: str | None) -> None:
    if device is not None:
        known_name("--device", "a known device", device, device_names(), "see `layerzero doctor`")


class CallCommand(typer.core.TyperCommand):
    """A command whose further options are the parameters of the named operation, also in help and completion."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["layerzero.words"] = list(args)
        return super().parse_args(ctx, args)

    def _operation(self, ctx: Any) -> str | None:
        words = [*ctx.meta.get("layerzero.words", ()), *(v for v in ctx.params.values() if isinstance(v, str))]
        for word in words:
            if not word.startswith("-") and (name := self._named(word)):
                return name
        return None

    @staticmethod
    def _named(word: str) -> str | None:
        if found := _layerzero.find(word):
            return found
        from layerzero import backends

        backends.ensure_registered()
        kernels = json.loads(_layerzero.kernels(None))
        return next((kernel["name"] for kernel in kernels if kernel["kernel_id"] == word), None)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if operation := self._operation(ctx):
            columns, width = ["option", "takes", "what"], min(terminal_width(), 120)
            options = table(columns, _options_of(operation), wraps=["takes", "what"], width=width)
            formatter.write(f"\nOptions of {operation}:\n{options}\n")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        found = super().shell_complete(ctx, incomplete)
        operation = self._operation(ctx) if incomplete.startswith("-") else None
        if operation:
            item = importlib.import_module(f"{_click()}.shell_completion").CompletionItem
            options = (o for o in _options_of(operation) if o[0].startswith(incomplete))
            found += [item(option, help=what) for option, _, what in options]
        return found


def _click() -> str:
    """Returns the name of the click package that Typer uses; newer Typers vendor it."""
    base = next(c for c in typer.core.TyperCommand.__mro__ if c.__name__ == "Command")
    return base.__module__.rpartition(".")[0]


def _options_of(operation: str) -> Iterator[tuple[str, str, str]]:
    """Yields (option, value, meaning) of each parameter of an operation's contract."""
    for param in contracts()[operation]["params"]:
        kind = param["kind"]
        takes = {"tensor": "dtype[sizes]", "bool": "true or false"}.get(kind, kind)
        if param.get("choices"):
            takes = ", ".join(param["choices"])
        needed = "" if param["optional"] or param.get("has_default") else "required; "
        yield f"--{param['name'].replace('_', '-')}", takes, needed + str(param.get("doc", ""))
    for name, what in FURTHER.items():
        yield f"--{name}", "text", what


def takes_call(command: Any) -> Any:
    """Marks a command whose further words are a call for `read_call`, so that typer passes them through."""
    command.context_settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    command.cls = CallCommand
    return command


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
