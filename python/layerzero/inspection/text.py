"""Reports as text and as HTML, for `print`, notebooks and the command line."""

import itertools
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

PIPE_WIDTH = 200  # columns, if standard output is no terminal
_LEAST_TEXT = 24  # columns of a cell whose words may wrap
_GAP = " │ "


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str = "",
    *,
    wraps: Sequence[str] = (),
    width: int | None = None,
    colour: bool = False,
) -> str:
    """Returns a table as text. Cells of the columns in `wraps` may span lines; all others stay on one line, so that a program
    can find an id in them.

    Columns that do not fit into `width` are left out, the rightmost first, and named below. None: all are shown.
    """
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    cells = [
        [text if name in wraps else text.replace("\n", "; ") for name, text in zip(columns, row, strict=True)]
        for row in texts
    ]
    natural = [
        max(len(name), *(len(line) for row in cells for line in row[i].split("\n")), 0)
        for i, name in enumerate(columns)
    ]
    least = [min(n, _LEAST_TEXT) if name in wraps else n for name, n in zip(columns, natural, strict=True)]
    shown = list(range(len(columns))) if width is None else _that_fit(columns, least, wraps, width)
    widths = _widths(columns, natural, shown, wraps, width)

    def lines_of(row: Sequence[str]) -> list[str]:
        parts = [_wrapped(row[i], widths[i]) if columns[i] in wraps else [row[i]] for i in shown]
        lines = itertools.zip_longest(*parts, fillvalue="")
        return [_GAP.join(c.ljust(widths[i]) for i, c in zip(shown, line, strict=True)).rstrip() for line in lines]

    head = "\n".join(lines_of(columns))
    lines = [title] if title else []
    lines += [f"\x1b[1m{head}\x1b[0m" if colour else head, "─┼─".join("─" * widths[i] for i in shown)]
    lines += [line for row in cells for line in lines_of(row)]
    if left_out := [name for i, name in enumerate(columns) if i not in shown]:
        lines.append(f"not shown, too wide: {', '.join(left_out)} (in a pipe and with --json they are)")
    return "\n".join(lines)


def terminal_width() -> int:
    """Returns the columns of the terminal on standard output, or PIPE_WIDTH."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else PIPE_WIDTH


def _wrapped(text: str, width: int) -> list[str]:
    lines = (textwrap.wrap(line, width, break_on_hyphens=False) for line in text.split("\n"))
    return [line for wrapped in lines for line in wrapped or [""]]


def _that_fit(columns: Sequence[str], least: Sequence[int], wraps: Sequence[str], room: int) -> list[int]:
    """Returns the indices of the columns to show. The first column and the texts are dropped last."""
    shown = list(range(len(columns)))
    droppable = sorted(shown[1:], key=lambda i: (columns[i] in wraps, -i))
    for index in droppable:
        if sum(least[i] for i in shown) + (len(shown) - 1) * len(_GAP) > room:
            shown.remove(index)
    return shown


def _widths(
    columns: Sequence[str], natural: Sequence[int], shown: Sequence[int], wraps: Sequence[str], width: int | None
) -> list[int]:
    """Returns the columns' widths: texts share the remaining width, those that need less than their share first."""
    widths = list(natural)
    if width is None:
        return widths
    texts = sorted((i for i in shown if columns[i] in wraps), key=lambda i: natural[i])
    room = width - (len(shown) - 1) * len(_GAP) - sum(natural[i] for i in shown if columns[i] not in wraps)
    for place, i in enumerate(texts):
        share = max(room // (len(texts) - place), min(natural[i], _LEAST_TEXT))
        widths[i] = min(natural[i], share)
        room -= widths[i]
    return widths


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """Returns the same table as HTML for a notebook."""
    from html import escape

    def line(row: Sequence[Any], tag: str) -> str:
        texts = (escape("" if value is None else str(value)).replace("\n", "<br>") for value in row)
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>"
    )


def html_text(text: str) -> str:
    """Returns text of fixed width as HTML for a notebook."""
    from html import escape

    return f"<pre>{escape(text)}</pre>"


def backends_text(found: list[dict[str, Any]]) -> str:
    """Returns a row for each library, then each missing item once, with its command on a separate line."""
    rows = [[b["name"], (b["version"] or "yes") if b["installed"] else "no", b["kernels"], _usable(b)] for b in found]
    lines = [table(["backend", "installed", "kernels", "usable here"], rows, "Backends")]
    wanted: dict[tuple[str, str, str], list[str]] = {}
    for backend in found:
        for item in backend["missing"]:
            if not item["fix"] and item["code"]:
                lines += ["", f"{backend['name']} cannot be used: {item['code']}: {item['detail']}"]
            else:
                wanted.setdefault((item["what"], item["detail"], item["fix"]), []).append(backend["name"])
    for (what, detail, fix), names in wanted.items():
        lines += ["", f"missing for {', '.join(names)}: {what} ({detail})"]
        lines.append(f"    {fix}" if fix else "    there is nothing to install")
    return "\n".join(lines)


def _usable(backend: dict[str, Any]) -> str:
    if backend["usable"]:
        where = f", in a worker ({backend['worker']['mode']})" if backend["worker"] else ""
        return ("yes" if backend["tried"] else "not tried") + where
    return "no, wants " + ", ".join(item["what"] for item in backend["missing"])
