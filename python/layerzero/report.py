"""Records that inspection returns: attributes and keys, and the plain dict behind them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """Why a kernel was refused."""

    code: str
    field: str
    wanted: str
    got: str
    message: str

    def __getitem__(self, key: str) -> str:
        return asdict(self)[key]

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        """The plain data."""
        return asdict(self)


class Record(Mapping[str, Any]):
    """A JSON object with attribute access. Nested objects are records too."""

    __slots__ = ("_data",)

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def __getitem__(self, key: str) -> Any:
        return _wrap(self._data[key])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has {', '.join(self._data)}, not {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._data})

    def __eq__(self, other: object) -> bool:
        return self._data == (other._data if isinstance(other, Record) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({json.dumps(self._data, default=str)})"

    def __reduce__(self) -> Any:
        return type(self), (self._data,)

    def to_dict(self) -> dict[str, Any]:
        """The plain data; the caller's to change."""
        return json.loads(json.dumps(self._data))


class Candidate(Record):
    """One kernel of a selection: kernel_id, source, admissible, reference, score, terms, reasons."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        return [Reason(**r) for r in self._data[key]] if key == "reasons" else super().__getitem__(key)


class SelectionReport(Record):
    """A selection: operation, kernel_id, score, candidates, plan, key, options, policy_hash, device, locked; notes."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        return [Candidate(c) for c in self._data[key]] if key == "candidates" else super().__getitem__(key)

    def __str__(self) -> str:
        lines = [f"{self.operation} on {self.device.name}: {self.kernel_id or 'no kernel'}"]
        for candidate in self.candidates:
            if candidate.admissible:
                why = f"score {candidate.score:g}"
            else:
                why = "; ".join(str(reason) for reason in candidate.reasons)
            mark = "*" if candidate.kernel_id == self.kernel_id else " "
            lines.append(f" {mark} {candidate.kernel_id}: {why}")
        lines += [f"   {note}" for note in self.to_dict().get("notes", [])]
        return "\n".join(lines)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(mark of the chosen one, kernel, score or "refused", why) of each candidate, best first."""
        rows = []
        for candidate in sorted(self.candidates, key=lambda c: (not c.admissible, -c.score)):
            if candidate.admissible:
                score = f"{candidate.score:g}"
                why = " + ".join(f"{term.name} {term.value:g}" for term in candidate.terms) or "reference"
            else:
                score, why = "refused", "\n".join(map(str, candidate.reasons))
            rows.append(("->" if candidate.kernel_id == self.kernel_id else "", candidate.kernel_id, score, why))
        return rows

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        from html import escape

        def line(cells: Iterable[str], tag: str) -> str:
            inner = "".join(f"<{tag}>{escape(cell).replace(chr(10), '<br>')}</{tag}>" for cell in cells)
            return f"<tr>{inner}</tr>"

        caption = escape(f"{self.operation} on {self.device.name}: {self.kernel_id or 'no kernel may run'}")
        body = "".join(line(row, "td") for row in self.rows())
        head = line(("", "kernel", "score", "why"), "th")
        return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"


def _wrap(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [_wrap(v) for v in value]
    return value
