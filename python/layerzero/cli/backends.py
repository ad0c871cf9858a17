"""layerzero backends."""

from typing import Annotated

import typer

from layerzero import backends
from layerzero.backends import compatibility
from layerzero.backends.report import report, serving
from layerzero.cli._output import Json, NoImport, print_json
from layerzero.contracts import contracts
from layerzero.errors import InvalidRequestError, known_name
from layerzero.inspection.text import backends_text


def _names() -> list[str]:
    return sorted(contracts())


def command(
    operation: Annotated[
        list[str] | None,
        typer.Option(
            help="only libraries that serve this operation and can be used here together; repeatable",
            autocompletion=_names,
        ),
    ] = None,
    write_matrix: Annotated[
        bool, typer.Option(help="write which libraries passed and failed here to compatibility.matrix_path")
    ] = False,
    no_import: NoImport = False,
    json: Json = False,
) -> None:
    """Lists the libraries of kernels and what each one lacks.

    For each library: whether it is installed, which operations it has kernels for, what is missing and the command that
    installs it. Exit code 1 if an installed library cannot be used.
    """
    for name in operation or ():
        known_name("--operation", "an operation", name, _names(), "see `layerzero list`")
    if write_matrix and no_import:
        raise InvalidRequestError("--write-matrix", "libraries that are tried", "--no-import", "leave one of them out")
    found = report(imports=not no_import)
    if write_matrix:
        compatibility.write_matrix(found)
    if operation:
        found = serving(found, operation)
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
