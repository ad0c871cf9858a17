"""layerzero health show."""

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json


def command(json: Json = False) -> None:
    """Shows kernels that failed and are not selected, and why.

    Exit code 1 if something is wrong.
    """
    report = lz.health()
    if json:
        print_json(report.to_dict())
    else:
        print(report)
    raise typer.Exit(0 if report.ok else 1)
