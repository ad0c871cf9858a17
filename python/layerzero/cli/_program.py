"""A Python program as the argument of a command: `layerzero report -o page.html script.py its arguments`."""

import contextlib
import runpy
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from layerzero.errors import InvalidRequestError, LayerZeroError

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


class ProgramFailedError(LayerZeroError):
    """The program raised an exception, whose traceback is on standard error."""


def run_program(script: str, arguments: list[str], as_json: bool) -> int:
    """Runs a program in this process as `python script arguments` would; returns its exit code. With --json its output goes to
    standard error."""
    argv, path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).resolve().parent)
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        traceback.print_exception(type(error), error, _frames_of(error, script))
        got = f"{type(error).__name__}: {error}"
        raise ProgramFailedError(script, "a program that ends without an exception", got) from error
    finally:
        sys.argv, sys.path[0] = argv, path
    return 0


def _frames_of(error: BaseException, script: str) -> TracebackType | None:
    """Returns the traceback from the program's first line on; all of it, where the program did not begin."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    return frames or error.__traceback__
