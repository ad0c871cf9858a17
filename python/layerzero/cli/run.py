"""layerzero run."""

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json
from layerzero.errors import InvalidRequestError, RequirementError


def command(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="a Python file; its arguments follow")],
    require: Annotated[
        list[str] | None, typer.Option("--require", help="kernels that may run, or libraries; globs; may be repeated")
    ] = None,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="no reference, and no kernel in place of a failed one")
    ] = False,
    json: Json = False,
) -> None:
    """Runs a Python program; exit code 1 with what ran instead if other kernels ran than the required ones.

    With --json the program's output goes to standard error.
    """
    if not Path(script).is_file():
        raise InvalidRequestError("script", "a Python file", repr(script))
    if not require and not no_fallback:
        raise InvalidRequestError("run", "--require or --no-fallback", "neither")
    required = lz.require(kernels=require or None, no_fallback=no_fallback)
    arguments, path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *context.args], str(Path(script).resolve().parent)
    try:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext(), required:
            runpy.run_path(script, run_name="__main__")
    except RequirementError:
        if not json:
            raise
    finally:
        sys.argv, sys.path[0] = arguments, path
    if json:
        print_json({"script": script, "ok": not required.refused, "refused": required.refused, "ran": required.ran})
        raise typer.Exit(1 if required.refused else 0)


command.context_settings = {  # type: ignore[attr-defined]
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
