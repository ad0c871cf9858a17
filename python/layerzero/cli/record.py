"""layerzero record."""

import json as json_module
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from layerzero.cli._output import Json, print_json, print_table
from layerzero.errors import InvalidRequestError
from layerzero.host.files import check_writable


def command(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="after --: a program and its arguments, such as python serve.py")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the workload file to write")] = Path("workload.json"),
    json: Json = False,
) -> None:
    """Runs a program and records which calls it makes.

    The classes of its calls, with counts, are written to a workload for `layerzero tune`; the contents of tensors are
    not recorded. The exit code is the program's. Ctrl-C ends the program, and what it called until then is written. For
    a program that starts others, put {pid} into --output: each process writes its own file. With --json the program's
    output goes to standard error.
    """
    from layerzero.tuning.workload import VARIABLE, read

    path = output.resolve()
    several = "{pid}" in str(path)
    if not several and not path.parent.is_dir():
        raise InvalidRequestError("--output", "a file in a folder that exists", str(output))
    if not several:
        check_writable("--output", path)
        path.unlink(missing_ok=True)
    command_line = [program, *context.args]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program gets it too, and ends first
    try:
        environment = os.environ | {VARIABLE: str(path)}
        out = sys.stderr if json else None
        code = subprocess.Popen(
            command_line, env=environment, stdout=out, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        ).wait()
    except OSError as error:
        raise InvalidRequestError("program", "a program that can be started", f"{program}: {error.strerror}") from None
    finally:
        signal.signal(signal.SIGINT, before)
    if not several and not path.exists():
        text = "one that imports layerzero and ends by itself, not by os._exit or a signal that Python does not handle"
        raise InvalidRequestError("program", text, f"no workload; exit code {code}")
    calls = [] if several else read(path).calls
    report = {"output": str(path), "exit_code": code, "classes": len(calls), "calls": sum(c.count for c in calls)}
    if json:
        print_json(report)
    elif not several:
        rows = [[c.name, c.line, c.device, c.execution, c.count, json_module.dumps(c.kernels)] for c in calls[:20]]
        print_table(
            f"{report['classes']} classes of calls in {path}",
            ["operation", "call", "device", "as", "count", "kernels"],
            rows,
            wraps=("call", "kernels"),
        )
        print(f"next: layerzero tune {output}")
    raise typer.Exit(code if code >= 0 else 128 - code)


command.context_settings = {  # type: ignore[attr-defined]
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
