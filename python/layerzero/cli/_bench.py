"""What measuring commands share: calls with sizes by name, and rows that are written as they come."""

import contextlib
import csv
import io
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer

from layerzero.errors import InvalidRequestError

Calls = Annotated[
    list[str] | None,
    typer.Option(
        "--call", help="a call instead of the shipped cases, as 'rms_norm --input f32[rows,576] ...'; repeatable"
    ),
]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", help="NAME=SIZE,SIZE: sizes for a name in --call; repeatable")
]
Cold = Annotated[bool, typer.Option("--cold", help="with --call: each call reads memory that is in no cache")]
Output = Annotated[
    list[Path] | None,
    typer.Option(help="write rows to this .csv or .md file as they come, or the report to this .json; repeatable"),
]
EXAMPLE = "--call 'rms_norm --input f32[rows,576] --weight f32[576]' --size rows=1,64"
ENDINGS = (".csv", ".md", ".json")


def sizes_by_name(given: list[str] | None, option: str) -> dict[str, list[int]] | None:
    """Returns {"rows": [1, 64]} for ["rows=1,64"]; None for nothing."""
    found: dict[str, list[int]] = {}
    for text in given or ():
        name, equals, values = text.partition("=")
        try:
            found[name] = [int(value) for value in values.split(",")]
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidRequestError(option, "NAME=SIZE,SIZE, for example seq_len=128,512", repr(text))
    return found or None


def cases_of(calls: list[str] | None, sizes: list[str] | None, cold: bool) -> list[Any]:
    """Returns the calls of --call for every combination of --size, as cases; none where --call was not given."""
    import itertools

    from layerzero.bench.operations import Case
    from layerzero.inspection.call_text import read_call
    from layerzero.tables.calls import names_in, with_sizes
    from layerzero.tuning.fills import filled
    from layerzero.tuning.grid import line_of

    by_name = sizes_by_name(sizes, "--size") or {}
    if not calls and (by_name or cold):
        raise InvalidRequestError("--size" if by_name else "--cold", "calls that it is for", "none", EXAMPLE)
    unused = by_name.keys() - {name for text in calls or () for name in names_in(text)}
    if unused:
        raise InvalidRequestError("--size", "names that a --call has", ", ".join(sorted(unused)), EXAMPLE)
    found = []
    for text in calls or ():
        names = sorted(names_in(text))
        if missing := [name for name in names if name not in by_name]:
            raise InvalidRequestError("--size", f"sizes of {', '.join(missing)}", "none", EXAMPLE)
        for values in itertools.product(*(by_name[name] for name in names)):
            words = shlex.split(with_sizes(text, dict(zip(names, values, strict=True))))
            operation, arguments = read_call(words[0], words[1:])
            entry = line_of(operation, (), arguments)
            found.append(Case(entry.name, filled(entry.line, entry.axes), cold, drawn=True))
    return found


class Rows:
    """Writes rows to files as they come, so that a run that ends early has left what it measured; `report` ends them.

    with Rows(paths, ("operation", "us")) as rows: rows.add({"operation": "cast", "us": 2.5})
    """

    def __init__(self, paths: Sequence[Path] | None, columns: Sequence[str]) -> None:
        self._columns, self._documents = columns, [path for path in paths or () if path.suffix == ".json"]
        self._paths = [path for path in paths or () if path.suffix != ".json"]
        for path in self._paths + self._documents:
            if path.suffix not in ENDINGS:
                raise InvalidRequestError("--output", f"a file that ends in {', '.join(ENDINGS)}", str(path))
        self._files: list[tuple[Any, Callable[[Sequence[Any]], str]]] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Rows":
        for path in self._paths:
            try:
                file = self._open.enter_context(path.open("w", encoding="utf-8", newline=""))
            except OSError as error:
                raise InvalidRequestError("--output", "a file that can be written", f"{path} ({error})") from error
            self._files.append((file, _csv_line if path.suffix == ".csv" else _md_line))
        self._write(self._columns)
        for file, line in self._files:
            if line is _md_line:
                file.write(_md_line(["---"] * len(self._columns)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _write(self, values: Sequence[Any]) -> None:
        for file, line in self._files:
            file.write(line(values))
            file.flush()

    def add(self, row: dict[str, Any]) -> None:
        """Writes one row; a column that it lacks stays empty."""
        self._write([row.get(name) for name in self._columns])

    def report(self, report: dict[str, Any]) -> None:
        """Writes the whole report to the files that end in .json."""
        from layerzero.host.files import replaced

        for path in self._documents:
            with replaced(path) as file:
                file.write((json.dumps(report, indent=1) + "\n").encode())


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([_text(value) for value in values])
    return line.getvalue()


def _md_line(values: Sequence[Any]) -> str:
    rounded = [f"{value:.4g}" if isinstance(value, float) else _text(value) for value in values]
    return "| " + " | ".join(text.replace("|", "\\|") for text in rounded) + " |\n"


TIMES = ("operation", "call", "execution", "cache", "kernel", "us", "low_us", "high_us", "over_best", "chosen")


def times_of(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row (TIMES) for each kernel of a call of `bench ops`, fastest first. over_best: its time over the fastest one's.
    chosen: selection takes it on this machine; empty where that is judged at the end (a GPU)."""
    kernels = row.get("kernels") or [
        {"kernel_id": k, "us": us} for k, us in sorted(row["us"].items(), key=lambda i: i[1])
    ]
    for kernel in kernels:
        yield {
            "operation": row["name"],
            "call": row["call"],
            "execution": row.get("execution", "eager"),
            "cache": "cold" if row["cold"] else "warm",
            "kernel": kernel["kernel_id"],
            "us": kernel["us"],
            "low_us": kernel.get("low_us"),
            "high_us": kernel.get("high_us"),
            "over_best": kernel["us"] / kernels[0]["us"],
            "chosen": kernel["kernel_id"] == row["chosen"] if row["chosen"] else None,
        }


REGRETS = (
    "operation",
    "call",
    "execution",
    "cache",
    "kernels",
    "by_priorities",
    "by_records",
    "regret_by_priorities",
    "regret",
)


def regret_of(cell: dict[str, Any]) -> dict[str, Any]:
    """Returns a cell of `bench regret` as a row (REGRETS)."""
    return {
        **{name: cell[name] for name in ("operation", "call", "execution", "kernels")},
        "cache": cell["cache_state"],
        "by_priorities": cell["chosen"]["priorities"],
        "by_records": cell["chosen"]["records"],
        "regret_by_priorities": cell["regret"]["priorities"],
        "regret": cell["regret"]["records"],
    }
