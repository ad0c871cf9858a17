"""layerzero doctor."""

import contextlib
import importlib

import typer

from layerzero.cli._output import Json, NoImport, print_json
from layerzero.inspection import doctor_report


def command(no_import: NoImport = False, json: Json = False) -> None:
    """Shows devices, libraries, packages, problems and what would help, the largest gain first. Exit code 1 if something is wrong.

    Libraries that are installed, torch first, are imported and tried: only that shows whether they work.
    """
    if not no_import:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
    report = doctor_report(imports=not no_import)
    if json:
        print_json(report.to_dict())
    else:
        print(report)
    raise typer.Exit(0 if report.ok else 1)
