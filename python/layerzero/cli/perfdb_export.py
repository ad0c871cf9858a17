"""layerzero perfdb export."""

from pathlib import Path
from typing import Annotated

import typer

from layerzero.cli._output import Json, print_json
from layerzero.cli._perfdb import Database, Device, Operation, chosen


def command(
    file: Annotated[
        Path, typer.Argument(help="the file to write: a database if its name ends with .sqlite, else JSON")
    ],
    operation: Operation = None,
    device: Device = None,
    database: Database = None,
    key: Annotated[
        Path | None, typer.Option(help="sign the file with the private key in this file; see layerzero sign")
    ] = None,
    json: Json = False,
) -> None:
    """Writes the records of the database to a file.

    `layerzero perfdb import` and `merge` read the file. An existing file of that name is replaced.
    """
    from layerzero import perf_records
    from layerzero.host import signing

    records = chosen(perf_records.read_database(database), operation, device)
    if file.suffix == ".sqlite":
        file.unlink(missing_ok=True)
        perf_records.write_database(records, file)
    else:
        perf_records.write(file, records)
    signature = signing.sign(file, key)["signature"] if key is not None else None
    report = {"file": str(file), "records": len(records), "signature": signature}
    print_json(report) if json else print(
        f"{len(records)} records in {file}" + (f", signed in {signature}" if signature else "")
    )
