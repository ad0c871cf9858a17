"""layerzero doctor."""

import contextlib
import importlib

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json


def command(json: Json = False) -> None:
    """Devices, libraries, packages, problems, and what would help. Exit code 1 if something is wrong."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    report = lz.doctor()
    if json:
        print_json(report.to_dict())
    else:
        print(report)
    raise typer.Exit(0 if report.ok else 1)
