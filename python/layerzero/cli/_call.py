"""A call of an operation as text: `attention --query bf16[1,512,32,128] --key ... --causal true`."""

import importlib
import json
from collections.abc import Iterator
from typing import Any

import typer
import typer.core

from layerzero import _layerzero
from layerzero.contracts import contracts
from layerzero.errors import known_name
from layerzero.inspection.call_text import FURTHER, kernel_ids
from layerzero.inspection.text import table, terminal_width


def operation_names() -> list[str]:
    """Returns flat names, for completion and suggestions."""
    return list(contracts())


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
        kernels = json.loads(_layerzero.kernels(None, False))
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
