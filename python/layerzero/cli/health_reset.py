"""layerzero health reset."""

from fnmatch import fnmatchcase
from typing import Annotated

import typer

import layerzero as lz
from layerzero.cli._call import all_kernel_ids
from layerzero.cli._output import Json, note, print_json
from layerzero.errors import UnknownNameError


def command(
    kernel: Annotated[str, typer.Argument(help="a kernel id, or a glob such as torch.*; default: all kernels")] = "",
    json: Json = False,
) -> None:
    """Lets kernels that failed be selected again.

    It removes what this machine has recorded about their failures. Exit code 2 for an id or a glob of no kernel that is much like
    a kernel's: a mistake. Other ids may be those of kernels that only an application registers.
    """
    removed = lz.reset_health(kernel)
    if kernel and not removed:
        _check_known(kernel, json)
    if json:
        print_json({"kernel": kernel, "removed": removed})
    else:
        print(f"removed: {removed}")


def _check_known(kernel: str, json: bool) -> None:
    """Refuses a text that is no id or glob of a known kernel, registered or recorded, but much like such an id.

    Other texts pass: kernels of the compiler and of applications are registered only when they are needed.
    """
    report = lz.health()
    recorded = {row["kernel"] for row in (*report["quarantine"], *report["graph_safe"])}
    known = sorted({*all_kernel_ids(), *recorded, *(breaker["kernel_id"] for breaker in report["breakers"])})
    if any(fnmatchcase(one, kernel) or fnmatchcase(kernel, one) for one in known):  # rows have globs too
        return
    import difflib

    near = difflib.get_close_matches(kernel, known, n=3, cutoff=0.8)
    if near and not kernel.startswith("inductor."):
        fix = f"the nearest: {', '.join(near)}"
        raise UnknownNameError("kernel", "the id of a kernel or a glob of ids", repr(kernel), fix)
    note(json)(f"nothing is recorded of {kernel}")
