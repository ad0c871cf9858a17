"""layerzero top."""

import shutil
import sys
import time
from typing import Annotated

import typer

from layerzero.cli._output import Json, print_json
from layerzero.errors import InvalidRequestError
from layerzero.inspection.text import terminal_width
from layerzero.telemetry.top import fetch, text, view


def command(
    port: Annotated[int, typer.Option(help="port of the process's metrics server", min=1, max=65535)] = 9464,
    host: Annotated[str, typer.Option(help="host that the process runs on")] = "127.0.0.1",
    interval: Annotated[float, typer.Option(help="seconds between two updates", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="show one interval, then end")] = False,
    json: Json = False,
) -> None:
    """Shows the kernels of a running process, live.

    It shows rates, times, hits, fallbacks and open breakers; Ctrl-C ends it. The process has to serve its metrics: call
    lz.serve_metrics() in it, or start it with LAYERZERO_METRICS=9464.
    """
    if json and not once:
        raise InvalidRequestError("--json", "--once --json", "--json alone", "add --once")
    url = f"http://{host}:{port}"
    before = fetch(url)
    while True:
        time.sleep(interval)
        now = fetch(url)
        shown = view(before, now)
        if once:
            print_json(shown) if json else print(text(shown, terminal_width()))
            return
        height = shutil.get_terminal_size().lines if sys.stdout.isatty() else None
        clear = "\x1b[H\x1b[J" if height is not None else ""
        print(clear + text(shown, terminal_width(), height), flush=True)
        before = now
