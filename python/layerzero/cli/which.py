"""layerzero which."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._call import read_call, takes_call
from layerzero.cli._output import Json, print_json


@takes_call
def command(
    context: typer.Context,
    operation: Annotated[str, typer.Argument(help="an operation: flat name, id or alias")],
    json: Json = False,
) -> None:
    """The kernel that a call would run: layerzero which rms_norm --input f32[4,576] --weight f32[576]."""
    name, arguments = read_call(operation, context.args)
    answer = lz.which(name, **arguments)
    if json:
        print_json(answer)
    else:
        print(answer["kernel_id"])
