"""layerzero perfdb vacuum."""

from layerzero.cli._output import Json, print_json, size_text
from layerzero.cli._perfdb import Database


def command(database: Database = None, json: Json = False) -> None:
    """Frees disk space, and repairs a damaged database.

    Records that no process uses any more are removed: those marked as not valid, and those of nightly builds after two
    weeks. If the database is damaged, a new file gets the rows that can be read, and the old file is renamed.
    """
    from layerzero import perf_records

    report = perf_records.vacuum_database(database)
    if json:
        print_json(report)
        return
    if report["damage"]:
        print(f"it was damaged: {report['damage']}; the old file is {report['damaged_file']}")
    removed = f"{report['expired']} expired, {report['invalid']} not valid"
    sizes = f"{size_text(report['bytes_before'])} before, {size_text(report['bytes_after'])} now"
    print(f"{report['path']}: {report['kept']} records kept; removed: {removed}; {sizes}")
