"""layerzero validate."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._call import all_kernel_ids, kernel_ids, operation_names, takes_call
from layerzero.cli._output import Json, print_json
from layerzero.errors import known_name
from layerzero.inspection import operation_of_kernel
from layerzero.inspection.call_text import read_call


@takes_call
def command(
    context: typer.Context,
    kernel_id: Annotated[str, typer.Argument(help="a kernel's id; see layerzero list", autocompletion=all_kernel_ids)],
    operation: Annotated[
        str | None,
        typer.Option(help="the operation, if the kernel serves several", autocompletion=operation_names),
    ] = None,
    json: Json = False,
) -> None:
    """Checks whether a kernel takes a call.

    Example: layerzero validate hwy.norm.rms --input 'f32[4,576]' --weight 'f32[576]'. Pass each parameter of the
    operation as an option, a tensor as dtype[sizes]; `layerzero validate KERNEL --help` lists them. Exit code 1, with
    all reasons, if the kernel does not take it.
    """
    known_name("kernel_id", "a known kernel", kernel_id, kernel_ids(), "see `layerzero list`")
    name = operation_of_kernel(kernel_id, operation)
    asked, arguments = read_call(operation or name, context.args)
    ok, reasons = lz.validate(kernel_id, operation=asked, **arguments)
    if json:
        answer = {"kernel_id": kernel_id, "operation": name, "ok": ok, "reasons": [r.to_dict() for r in reasons]}
        print_json(answer)
    else:
        print(f"{kernel_id} {'takes' if ok else 'does not take'} this call of {name}")
        for reason in dict.fromkeys(map(str, reasons)):
            print(f"  {reason}")
    raise typer.Exit(0 if ok else 1)
