"""layerzero run."""

from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json
from layerzero.cli._program import Script, check_program, run_program, takes_program
from layerzero.errors import InvalidRequestError, RequirementError


@takes_program
def command(
    context: typer.Context,
    script: Script,
    require: Annotated[
        list[str] | None,
        typer.Option("--require", help="kernels or libraries that may run, by name or glob; repeatable"),
    ] = None,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="forbid references, and another kernel in place of a failed one")
    ] = False,
    json: Json = False,
) -> None:
    """Runs a program, and fails if other kernels ran.

    Exit code 1 if a kernel ran that --require does not name; the message lists the kernels that ran. With --json the
    program's output goes to standard error.
    """
    check_program(script)
    if not require and not no_fallback:
        raise InvalidRequestError("run", "--require or --no-fallback", "neither")
    required = lz.require(kernels=require or None, no_fallback=no_fallback)
    try:
        with required:
            code = run_program(script, context.args, json)
    except RequirementError:
        if not json:
            raise
        code = 1
    if json:
        print_json({"script": script, "ok": not required.refused, "refused": required.refused, "ran": required.ran})
    raise typer.Exit(code)
