"""Tables as text, for the command line and for a REPL: names are never broken, columns are left out instead."""

import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

PIPE_WIDTH = 200  # columns, where nobody's terminal has a width
_LEAST_TEXT = 24  # columns of a cell whose words may wrap
_GAP = 1


def table_text(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    wraps: Sequence[str] = (),
    width: int | None = None,
    colour: bool = False,
) -> str:
    """The table. Cells of the columns in `wraps` are text, whose words may go on in the next line; every other cell stays
    on one line. What does not fit into `width` is left out column by column from the right, and said below."""
    from rich.console import Console
    from rich.table import Table

    cells = [["" if value is None else str(value) for value in row] for row in rows]
    room = width or terminal_width()
    shown, left_out = _that_fit(columns, cells, wraps, room)
    table = Table(title=title or None, title_justify="left", show_edge=False, pad_edge=False)
    for index in shown:
        text = columns[index] in wraps
        table.add_column(columns[index], overflow="fold", no_wrap=not text)
    for row in cells:
        table.add_row(*(row[index] for index in shown))
    out = io.StringIO()
    # A name that is wider than the terminal alone stays whole: the terminal breaks it, a copy does not.
    widest = max(room, *(_least(columns, cells, wraps, index) for index in shown[:1]))
    options: dict[str, Any] = {"force_terminal": True} if colour else {"no_color": True, "force_terminal": False}
    Console(file=out, width=widest, **options).print(table, markup=False)
    if left_out:
        out.write(f"not shown for want of width: {', '.join(left_out)} (in a pipe and with --json they are)\n")
    return out.getvalue()


def terminal_width() -> int:
    """Columns of the terminal that standard output is, or PIPE_WIDTH."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else PIPE_WIDTH


def _least(columns: Sequence[str], cells: list[list[str]], wraps: Sequence[str], index: int) -> int:
    """The fewest columns that a column takes."""
    lines = [line for row in cells for line in row[index].split("\n")]
    natural = max(map(len, [columns[index], *lines]))
    return min(natural, _LEAST_TEXT) if columns[index] in wraps else natural


def _that_fit(
    columns: Sequence[str], cells: list[list[str]], wraps: Sequence[str], room: int
) -> tuple[list[int], list[str]]:
    """Indices of the columns to show, and names of the others. The first column and the texts stay."""
    least = [_least(columns, cells, wraps, index) for index in range(len(columns))]
    shown = list(range(len(columns)))

    def needed() -> int:
        return sum(least[index] for index in shown) + (len(shown) - 1) * (2 * _GAP + 1)

    for droppable in (
        [index for index in reversed(shown[1:]) if columns[index] not in wraps],
        [index for index in reversed(shown[1:]) if columns[index] in wraps],
    ):
        for index in droppable:
            if needed() > room:
                shown.remove(index)
    return shown, [columns[index] for index in range(len(columns)) if index not in shown]
