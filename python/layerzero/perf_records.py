"""Files of measured records (schemas/records.schema.json): read, checked and written by the engine."""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from layerzero import _layerzero


def read(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Returns the records of a file, with null for unknown values; a ConfigError says what is wrong and where."""
    text = Path(path).read_text(encoding="utf-8")
    return json.loads(_layerzero.records(text, str(path)))["records"]


def write(path: str | PathLike[str], records: Sequence[dict[str, Any]]) -> None:
    """Checks and writes records, one per line; equal records produce equal bytes."""
    document = json.dumps({"schema_version": "1.0", "records": list(records)})
    Path(path).write_text(_layerzero.records(document, str(path)), encoding="utf-8")
