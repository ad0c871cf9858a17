"""layerzero report."""

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from layerzero import report
from layerzero.cli._output import Json, note, print_json
from layerzero.errors import InvalidRequestError


def command(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="a Python program; what follows are its arguments")],
    output: Annotated[str, typer.Option("--output", "-o", help="the page to write")] = "layerzero-report.html",
    json: Json = False,
) -> None:
    """Runs a Python program and writes the decisions of its run as one HTML page: layerzero report -o page.html script.py.

    Options of `report` come before the script. The page needs no network: every decision with its alternatives and
    reasons, times of the kernels that ran, and what to install. It is written too if the program fails.
    """
    if not Path(script).is_file():
        raise InvalidRequestError("script", "a file", f"{script!r}, which is none")
    arguments, sys.argv = sys.argv, [script, *context.args]
    recording = report(output)
    try:
        with recording:
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = arguments
    data = recording.to_dict()
    if json:
        print_json(
            {"output": output, "decisions": len(data["decisions"]), "runs": sum(r["runs"] for r in data["runs"])}
        )
    else:
        note(False)(f"{len(data['decisions'])} decisions are in {output}")


command.context_settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}  # type: ignore[attr-defined]
