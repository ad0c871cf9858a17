"""layerzero backends."""

import typer

from layerzero import backends
from layerzero.backends.report import report
from layerzero.cli._output import Json, NoImport, print_json
from layerzero.inspection.text import backends_text


def command(no_import: NoImport = False, json: Json = False) -> None:
    """Lists libraries of kernels: whether installed, what each provides, what is missing and the command that fixes it.

    Exit code 1 if an installed backend cannot be used.
    """
    found = report(imports=not no_import)
    problems = list(backends.problems())
    if json:
        print_json({"backends": found, "problems": problems})
    else:
        print(backends_text(found))
        print()
        for backend in found:
            print(f"{backend['name']}: {backend['description']} Operations: {_operations(backend)}.")
        for problem in problems:
            print(f"problem: {problem}")
    raise typer.Exit(1 if problems else 0)


def _operations(backend: dict) -> str:
    """Returns families of operations: "attention, norm" for attention.standard.decode, norm.rms."""
    return ", ".join(dict.fromkeys(operation.partition(".")[0] for operation in backend["operations"]))
