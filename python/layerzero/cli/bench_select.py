"""layerzero bench select."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from layerzero import _layerzero
from layerzero.cli._output import Json
from layerzero.errors import NotInstalledError


def command(
    repeat: Annotated[int | None, typer.Option(help="repetitions of each part")] = None, json: Json = False
) -> None:
    """Times the selection of a kernel. Always prints JSON.

    The parts: a hit in the cache of the call site, a hit in the plan cache, a miss, and calls while another thread
    invalidates the cache.
    """
    program = _program()
    if not program.is_file():
        raise NotInstalledError(
            "bench select", "the benchmark program", "none: a wheel has none", "build it in a clone: make bench"
        )
    arguments = [] if repeat is None else ["--repeat", str(repeat)]
    sys.stdout.flush()
    raise typer.Exit(min(subprocess.run([program, *arguments], check=False).returncode, 1))


def _program() -> Path:
    """Returns the path of the program in a clone's build, next to the library."""
    return Path(_layerzero.__file__).resolve().parent.parent / "bin" / "lz_bench_select"


command.hidden = lambda: not _program().is_file()  # type: ignore[attr-defined]
