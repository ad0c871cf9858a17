"""layerzero perfdb import."""

from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero.cli._output import Json, print_json, progress
from layerzero.cli._perfdb import Database, existing, is_database


def command(
    files: Annotated[list[Path], typer.Argument(help="files of records, or databases")],
    database: Database = None,
    json: Json = False,
) -> None:
    """Adds the records of files to the database.

    A row with the same key is replaced. A file is added whole or not at all.
    """
    from layerzero import perf_records

    def add(path: Path) -> dict[str, int]:
        rows = perf_records.read_outside(path) if is_database(path) else perf_records.read(path, outside=True)
        return perf_records.write_database(rows, database)

    show(add_all(files, add), json)


def add_all(files: list[Path], add: Any) -> dict[str, Any]:
    """Adds each file, after all of them were found; returns the counts of each."""
    for path in files:
        existing(path)
    added = []
    with progress("files", total=len(files)) as step:
        for path in files:
            added.append({"file": str(path), **add(path)})
            step(path.name)
    return {"files": added}


def show(report: dict[str, Any], json: bool) -> None:
    if json:
        print_json(report)
        return
    for one in report["files"]:
        print(f"{one['file']}: {one['added']} added, {one['replaced']} replaced, {one['unchanged']} unchanged")
