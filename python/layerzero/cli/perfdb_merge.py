"""layerzero perfdb merge."""

from pathlib import Path
from typing import Annotated

import typer

from layerzero.cli import perfdb_import
from layerzero.cli._output import Json
from layerzero.cli._perfdb import Database, is_database


def command(
    sources: Annotated[list[Path], typer.Argument(help="databases of other machines, or files of records")],
    database: Database = None,
    json: Json = False,
) -> None:
    """Adds the records of other machines to the database.

    Of two rows with the same key the later measurement is kept, so the order of the files does not matter.
    """
    from layerzero import perf_records

    def add(path: Path) -> dict[str, int]:
        if is_database(path):
            return perf_records.merge_database(path, database)
        return perf_records.write_database(perf_records.read(path, outside=True), database, "newer")

    perfdb_import.show(perfdb_import.add_all(sources, add), json)
