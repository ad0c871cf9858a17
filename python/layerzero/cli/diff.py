"""layerzero diff."""

from pathlib import Path
from typing import Annotated

import typer

from layerzero.cli._output import Json, Quiet, note, print_json
from layerzero.cli.solve import print_differences


def command(
    before: Annotated[Path, typer.Argument(help="a lock, or a table as JSON")],
    after: Annotated[Path | None, typer.Argument(help="the same of the other installation; default: this one")] = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Shows which kernels differ between two installations.

    The times of both kernels are shown. Exit code 1 if a kernel differs. If only versions differ, they are listed and
    the exit code is 0; `layerzero solve --check` is strict about versions too.
    """
    from layerzero.tables.lock import compare, lock_of, read_lock, solve_again

    first = read_lock(before)
    if after is not None:
        second = read_lock(after)
    else:
        progress = note(quiet)
        second = lock_of(solve_again(first, str(before), progress=lambda text: progress(f"solving {text}")))
    found = compare(first, second)
    same = not any(found[key] for key in ("choices", "only_before", "only_after"))
    report = {"before": str(before), "after": str(after or "this installation"), **found, "ok": same}
    if json:
        print_json(report)
    else:
        print_differences(report)
    raise typer.Exit(0 if same else 1)
