"""layerzero health reset."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json


def command(
    kernel: Annotated[str, typer.Argument(help="a kernel id, globs allowed; none: all")] = "", json: Json = False
) -> None:
    """Removes what this machine has learned about kernels, so that they are selected again."""
    removed = lz.reset_health(kernel)
    if json:
        print_json({"kernel": kernel, "removed": removed})
    else:
        print(f"removed: {removed}")
