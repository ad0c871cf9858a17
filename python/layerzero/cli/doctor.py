"""layerzero doctor."""

import contextlib
import importlib
import os
import sys
from typing import Annotated

import typer

from layerzero.cli._output import Json, NoImport, print_json
from layerzero.errors import InvalidRequestError
from layerzero.inspection import doctor_report


def command(
    no_import: NoImport = False,
    bundle: Annotated[
        str | None, typer.Option("--bundle", metavar="FILE", help="also write a .zip for a bug report")
    ] = None,
    json: Json = False,
) -> None:
    """Shows what is on this machine, and every problem found.

    It lists devices, libraries, packages and problems, and what would make calls faster, the largest gain first.
    Installed libraries, torch first, are imported and tested, because only that shows whether they work. The bundle has
    versions, libraries, policy, kernels, counters and health as JSON, without tensors; paths are shortened and secrets
    of the environment removed: read it before you send it. Exit code 1 if something is wrong.
    """
    if not no_import:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    report = doctor_report(imports=not no_import)
    if bundle is not None:
        from layerzero.telemetry.bundle import write

        try:
            files = write(bundle, report.to_dict(), imports=not no_import)
        except OSError as error:
            raise InvalidRequestError(
                "--bundle", "a file that can be written", f"{bundle} ({os.strerror(error.errno or 0)})"
            ) from error
        print(f"{bundle}: {', '.join(files)}", file=sys.stderr)
    if json:
        print_json(report.to_dict())
    else:
        print(report)
    raise typer.Exit(0 if report.ok else 1)
