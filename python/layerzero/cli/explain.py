"""layerzero explain."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._call import read_call, takes_call
from layerzero.cli._output import Json, print_json, print_table
from layerzero.report import SelectionReport


@takes_call
def command(
    context: typer.Context,
    operation: Annotated[str, typer.Argument(help="an operation: flat name, id or alias")],
    device: Annotated[str | None, typer.Option(help="a simulated device: h100, b200, zen5 ...; see doctor")] = None,
    json: Json = False,
) -> None:
    """Why a call gets its kernel: layerzero explain attention --query bf16[1,512,32,128] --key ... --device h100.

    Every parameter of the operation is an option; tensors are dtype[sizes]. Exit code 1 if no kernel may run.
    """
    name, arguments = read_call(operation, context.args)
    report = lz.explain(name, device=device, **arguments)
    if json:
        print_json(report.to_dict())
    else:
        _print(report)
    raise typer.Exit(0 if report.kernel_id else 1)


def _print(report: SelectionReport) -> None:
    print(f"{report.operation} on {report.device.name}: {report.kernel_id or 'no kernel may run'}")
    if report.locked:
        print(f"locked to {report.locked}")
    print_table("", ["", "kernel", "score", "why"], report.rows())
