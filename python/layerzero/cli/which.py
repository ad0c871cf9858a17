"""layerzero which."""

from typing import Annotated

import typer

from layerzero.cli._call import Device, Operation, check_device, takes_call
from layerzero.cli._output import Json, print_json
from layerzero.inspection import choice, explain_call
from layerzero.inspection.call_text import read_call


@takes_call
def command(
    context: typer.Context,
    operation: Annotated[str, Operation],
    device: Annotated[str | None, Device] = None,
    json: Json = False,
) -> None:
    """Shows the kernel that a call would run.

    Example: layerzero which rms_norm --input 'f32[4,576]' --weight 'f32[576]'. Pass each parameter of the operation as
    an option, a tensor as dtype[sizes]; `layerzero which OPERATION --help` lists them. With --device: the kernel that
    would run there, whether or not it is installed here. Of the installed libraries only the chosen kernel's is
    imported. Exit code 1 if no kernel may run.
    """
    check_device(device)
    name, arguments = read_call(operation, context.args)
    report = explain_call(name, (), arguments, device, of_chosen=True).to_dict()
    answer = choice(report, report["kernel_id"])
    if json:
        print_json(answer)
    else:
        print(answer["kernel_id"])
