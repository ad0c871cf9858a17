"""Reports as text and as HTML: what `print` shows, a notebook shows, and the command line prints."""

from collections.abc import Iterable, Sequence
from typing import Any

_GAP = "  "


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> str:
    """A table of plain text. Cells are never folded, so that a program can find an id in a line."""
    cells = [[str(column) for column in columns]]
    cells += [["" if value is None else str(value).replace("\n", "; ") for value in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, _GAP.join("-" * width for width in widths))
    return "\n".join([title, *lines] if title else lines)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """The same table for a notebook."""
    from html import escape

    def line(row: Sequence[Any], tag: str) -> str:
        texts = (escape("" if value is None else str(value)).replace("\n", "<br>") for value in row)
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead>{line(columns, 'th')}</thead><tbody>{body}</tbody></table>"
    )


def html_text(text: str) -> str:
    """Text of fixed width for a notebook."""
    from html import escape

    return f"<pre>{escape(text)}</pre>"


def backends_text(found: list[dict[str, Any]]) -> str:
    """A row for each library, then what is missing: each thing once, with the command on a line of its own."""
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
    return "yes" if backend["usable"] else "no, wants " + ", ".join(item["what"] for item in backend["missing"])
