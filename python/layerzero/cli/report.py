"""layerzero report."""

from typing import Annotated

import typer

from layerzero import report
from layerzero.cli._output import Json, note, print_json
from layerzero.cli._program import Script, check_program, run_program, takes_program


@takes_program
def command(
    context: typer.Context,
    script: Script,
    output: Annotated[str, typer.Option("--output", "-o", help="the page to write")] = "layerzero-report.html",
    json: Json = False,
) -> None:
    """Runs a program and writes its decisions as an HTML page.

    Example: layerzero report -o page.html script.py; options of `report` come before the script. The page needs no
    network. It has every decision with its alternatives and reasons, the times of the kernels that ran, and what to
    install. It is also written if the program fails. The exit code is the program's. With --json the program's output
    goes to standard error.
    """
    check_program(script)
    with report(output) as recording:
        code = run_program(script, context.args, json)
    data = recording.to_dict()
    if json:
        print_json(
            {"output": output, "decisions": len(data["decisions"]), "runs": sum(r["runs"] for r in data["runs"])}
        )
    else:
        note(False)(f"{len(data['decisions'])} decisions are in {output}")
    raise typer.Exit(code)
