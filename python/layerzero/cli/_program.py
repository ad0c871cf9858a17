"""A Python program as the argument of a command: `layerzero report -o page.html script.py its arguments`."""

import runpy
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero.errors import InvalidRequestError

Script = Annotated[str, typer.Argument(help="a Python program; what follows are its arguments")]


def takes_program(command: Any) -> Any:
    """Marks a command whose words after the script are the script's: options of the command come before it."""
    command.context_settings = {
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
    return command


def check_program(script: str) -> None:
    if not Path(script).is_file():
        raise InvalidRequestError("script", "a Python file", repr(script))


def run_program(script: str, arguments: list[str]) -> None:
    """Runs a program in this process as `python script arguments` would."""
    argv, path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[0] = argv, path
