"""layerzero health reset."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json


def command(
    kernel: Annotated[str, typer.Argument(help="a kernel id, or a glob such as torch.*; default: all kernels")] = "",
    json: Json = False,
) -> None:
    """Lets kernels that failed be selected again.

    It removes what this machine has recorded about their failures.
    """
    removed = lz.reset_health(kernel)
    if json:
        print_json({"kernel": kernel, "removed": removed})
    else:
        print(f"removed: {removed}")
