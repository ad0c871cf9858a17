"""layerzero list."""

from json import loads
from typing import Annotated, Any

import typer

from layerzero import _layerzero
from layerzero.cli._call import Operation
from layerzero.cli._output import Json, Verbose, print_json, print_table
from layerzero.contracts import contracts
from layerzero.errors import known_name, one_of
from layerzero.inspection import kernel_rows
from layerzero.inspection.report import priority_text

PLATFORMS = ("cpu", "cuda", "rocm", "xpu", "hpu")


def _libraries() -> list[str]:
    return sorted({k["backend"] for k in kernel_rows(constraints=False)})


def command(
    operation: Annotated[str | None, Operation] = None,
    installed: Annotated[bool, typer.Option("--installed", help="only kernels that can run here")] = False,
    library: Annotated[
        str | None, typer.Option(help="only kernels of this library: hwy, torch ...", autocompletion=_libraries)
    ] = None,
    platform: Annotated[
        str | None,
        typer.Option(help=f"only kernels for {', '.join(PLATFORMS)}", autocompletion=lambda: list(PLATFORMS)),
    ] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Lists operations, or the kernels of one.

    With OPERATION, --library or --verbose it lists kernels, references last, and why a kernel cannot be used.
    """
    if library is not None:
        known_name("--library", "a known library", library, _libraries(), "see `layerzero backends`")
    if platform is not None:
        one_of("--platform", platform, PLATFORMS)
    here = {device["platform"] for device in loads(_layerzero.devices())["devices"]} if installed else set()
    kernels = [
        k
        for k in kernel_rows(operation, constraints=json)
        if (not installed or _runs_here(k, here))
        and library in (None, k["backend"])
        and (platform is None or k["platform"] in ("any", platform))
    ]
    names = list(dict.fromkeys(k["name"] for k in kernels))
    kernels.sort(key=lambda k: k["reference"])  # references last, otherwise in order
    if json:
        operations = [{"name": n, "operations": [o["id"] for o in contracts()[n]["operations"]]} for n in names]
        print_json({"operations": operations, "specs": [_spec(n) for n in names], "kernels": kernels})
    elif operation is None and library is None and not verbose:
        _print_operations(kernels)
    else:
        _print_kernels(kernels)


def _runs_here(kernel: Any, platforms: set[str]) -> bool:
    """True if the kernel is installed and this machine has a device of its platform."""
    return kernel["usable"] is not False and (kernel["platform"] == "any" or kernel["platform"] in platforms)


def _spec(name: str) -> dict[str, Any]:
    contract = contracts()[name]
    return {
        "name": name,
        "operations": contract["operations"],
        **{key: contract[key] for key in ("aliases", "supports_batched", "returns_offsets", "tolerance")},
        "layouts": list(contract["layouts"]),
    }


def _print_operations(kernels: list[dict[str, Any]]) -> None:
    """Prints a line for each operation: its kernels by platform, without references."""
    rows = []
    for name in sorted({k["name"] for k in kernels}):
        own = {k["kernel_id"]: k for k in kernels if k["name"] == name and not k["reference"]}
        counts = [sum(k["platform"] in (kind, "any") for k in own.values()) for kind in ("cpu", "cuda")]
        libraries = ", ".join(sorted({k["backend"] for k in own.values() if k["usable"] is not False}))
        rows.append([name, *counts, libraries, ", ".join(o["id"] for o in contracts()[name]["operations"])])
    columns = ["operation", "cpu", "cuda", "libraries", "ids"]
    print_table(f"{len(rows)} operations", columns, rows, wraps=["libraries", "ids"])
    print("kernels of one: layerzero list OPERATION; all: --verbose")


def _print_kernels(kernels: list[dict[str, Any]]) -> None:
    """Prints a line for each kernel, even if it serves several operations."""
    operations: dict[str, list[str]] = {}
    for k in kernels:
        operations.setdefault(k["kernel_id"], []).append(k["operation"])
    rows = [
        [
            k["kernel_id"],
            ", ".join(operations[k["kernel_id"]]),
            k["platform"],
            priority_text(k),
            "yes" if k["usable"] is not False else f"no: {k['detail']}",
        ]
        for k in {k["kernel_id"]: k for k in reversed(kernels)}.values()
    ]
    columns = ["kernel", "operation", "platform", "priority", "installed"]
    print_table(f"{len(rows)} kernels", columns, rows[::-1], wraps=["operation", "priority", "installed"])
