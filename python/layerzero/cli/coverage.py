"""layerzero coverage."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json, print_table


def command(
    devices: Annotated[
        list[str] | None,
        typer.Argument(help="devices of this machine or simulated ones (`layerzero doctor` lists them); default: all"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="also kernels of other distributions and of registered functions")
    ] = False,
    json: Json = False,
) -> None:
    """Shows which kernels serve each operation and dtype.

    The kernels' constraints on device and dtype decide; other constraints depend on the call.
    """
    entries = [entry.to_dict() for entry in lz.coverage(*(devices or ()), shipped=not everything)]
    if json:
        print_json({"coverage": entries})
        return
    rows = [[e["operation"], e["device"], e["dtype"], _text(e)] for e in entries]
    print_table(f"{len(rows)} entries", ["operation", "device", "dtype", "kernels"], rows, wraps=["kernels"])


def _text(entry: dict) -> str:
    parts = [", ".join(entry["kernels"]) or ", ".join(entry["references"]) or "none"]
    parts += [f"not built for this GPU: {', '.join(entry['not_built'])}"] * bool(entry["not_built"])
    parts += [f"not installed: {', '.join(entry['not_installed'])}"] * bool(entry["not_installed"])
    return "; ".join(parts)
