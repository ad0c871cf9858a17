"""layerzero list."""

from typing import Annotated, Any

import typer

from layerzero._contracts import contracts
from layerzero._inspect import kernel_rows
from layerzero.cli._output import Json, print_json, print_table


def _spec(name: str) -> dict[str, Any]:
    contract = contracts()[name]
    return {
        "name": name,
        "operations": contract["operations"],
        **{key: contract[key] for key in ("aliases", "supports_batched", "returns_offsets", "tolerance")},
        "layouts": list(contract["layouts"]),
    }


def command(
    operation: Annotated[str | None, typer.Argument(help="an operation: flat name, id or alias")] = None,
    installed: Annotated[bool, typer.Option("--installed", help="only kernels that can run here")] = False,
    json: Json = False,
) -> None:
    """Operations and their kernels, with the reason where one cannot be used."""
    kernels = [k for k in kernel_rows(operation) if k["usable"] is not False or not installed]
    names = list(dict.fromkeys(k["name"] for k in kernels))
    if json:
        operations = [{"name": n, "operations": [o["id"] for o in contracts()[n]["operations"]]} for n in names]
        print_json({"operations": operations, "specs": [_spec(n) for n in names], "kernels": kernels})
        return
    rows = [
        [
            k["operation"],
            k["kernel_id"],
            k["platform"],
            "reference" if k["reference"] else k["priority"],
            "yes" if k["usable"] is not False else f"no: {k['detail']}",
        ]
        for k in kernels
    ]
    print_table(f"{len(rows)} kernels", ["operation", "kernel", "platform", "priority", "installed"], rows)
