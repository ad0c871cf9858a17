"""Records that inspection returns: JSON objects with attributes and keys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from layerzero.errors import Reason
from layerzero.inspection.text import html_table, html_text, table

_PLAIN = (str, int, float, bool)
_SHOWN = 4


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
        """Returns a short form: the first plain values."""
        plain = {key: value for key, value in self._data.items() if value is None or isinstance(value, _PLAIN)}
        parts = [f"{key}={value!r}" for key, value in list(plain.items())[:_SHOWN]]
        rest = len(self._data) - len(parts)
        return f"{type(self).__name__}({', '.join(parts)}{f', ... {rest} more' if rest else ''})"

    def __str__(self) -> str:
        """Returns all data as indented JSON."""
        return json.dumps(self._data, indent=2, default=str)

    def _repr_html_(self) -> str:
        return html_text(str(self))

    def __reduce__(self) -> Any:
        return type(self), (self._data,)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plain data, which the caller may change."""
        return json.loads(json.dumps(self._data))


class Candidate(Record):
    """One kernel of a selection: kernel_id, source, admissible, reference, score, terms, preference, reasons."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        return [Reason(**r) for r in self._data[key]] if key == "reasons" else super().__getitem__(key)

    @property
    def only_lacks_compilation(self) -> bool:
        """True if the kernel would take the call, and is not compiled for such calls."""
        return {reason["code"] for reason in self._data["reasons"]} == {"JIT_DISABLED"}

    def ranked(self) -> str:
        """Returns which condition of the call changed the kernel's priority: "ranked lower, 5 instead of 60: rows >= 1024".

        "" if its default applies, or if the kernel is refused or a reference."""
        preference, default = self._data["preference"], self._data["default_priority"]
        if preference is None or not self._data["admissible"] or self._data["reference"]:
            return ""
        how = "lower" if preference["priority"] < default else "higher"
        return f"ranked {how}, {preference['priority']} instead of {default}: {preference['text']}"


def priority_text(kernel: Mapping[str, Any]) -> str:
    """Returns a kernel's priorities: "reference", "60" or "60; 5 where rows >= 1024"."""
    if kernel["reference"]:
        return "reference"
    others = [f"{p['priority']} where {p['text']}" for p in kernel["preferences"]]
    return "; ".join([str(kernel["priority"]), *others])


class DoctorReport(Record):
    """The result of doctor(): layerzero, python, torch, devices, threads, libraries, policy, counters, problems, ok ...

    `print` shows the same text as `layerzero doctor`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        problems = len(self._data["problems"])
        devices = ", ".join(device["name"] for device in self._data["devices"]["devices"])
        return f"<layerzero {self.layerzero.version} on {devices}: {f'{problems} problems' if problems else 'ok'}>"

    def __str__(self) -> str:
        from layerzero.inspection.doctor_text import doctor_text

        return doctor_text(self._data)


class KernelRecord(Record):
    """One kernel: kernel_id, operation, name, source, platform, dtypes, constraints, installed, usable, detail ..."""

    __slots__ = ()

    def __repr__(self) -> str:
        state = "cannot run here" if self.usable is False else "can run here"
        return f"<{self.kernel_id} of {', '.join(self._data['operations'])} on {self.platform}: {state}>"


class KernelList(list[Any]):
    """A list of kernels that prints as a table."""

    _COLUMNS = ("operation", "kernel", "platform", "priority", "installed")

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns the cells of the table."""
        return [
            (
                k.operation + (f" and {len(k.operations) - 1} more" if len(k.operations) > 1 else ""),
                k.kernel_id,
                k.platform,
                priority_text(k),
                "yes" if k.usable is not False else f"no: {k.detail}",
            )
            for k in self
        ]

    def __repr__(self) -> str:
        return f"<{len(self)} kernels of {len({k.operation for k in self})} operations>"

    def __str__(self) -> str:
        return table(self._COLUMNS, self.rows(), f"{len(self)} kernels")

    def _repr_html_(self) -> str:
        return html_table(self._COLUMNS, self.rows(), f"{len(self)} kernels")


class Choice(dict[str, Any]):
    """{"kernel_id", "score"} of a call; `print` shows the id, as `layerzero which` does."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"a choice has {', '.join(self)}, not {name!r}")

    def __str__(self) -> str:
        return str(self["kernel_id"])

    def _repr_html_(self) -> str:
        return html_table(tuple(self), [tuple(self.values())])


class SelectionReport(Record):
    """A selection: operation, kernel_id, score, candidates, plan, key, options, policy_hash, policy_facts, device, locked,
    notes."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        return [Candidate(c) for c in self._data[key]] if key == "candidates" else super().__getitem__(key)

    def __repr__(self) -> str:
        refused = sum(not candidate["admissible"] for candidate in self._data["candidates"])
        rest = f"{len(self._data['candidates'])} kernels, {refused} refused"
        return f"<{self.operation} on {self.device.name}: {self.kernel_id or 'no kernel'}; {rest}>"

    def __str__(self) -> str:
        lines = [f"{self.operation} on {self.device.name}: {self.kernel_id or 'no kernel'}"]
        waiting = [c.kernel_id for c in self.candidates if c.only_lacks_compilation]
        for candidate in self.candidates:
            if candidate.only_lacks_compilation:
                continue
            if candidate.admissible:
                why = ", ".join(filter(None, (f"score {candidate.score:g}", candidate.ranked())))
            else:
                why = "; ".join(dict.fromkeys(map(str, candidate.reasons)))
            mark = "*" if candidate.kernel_id == self.kernel_id else " "
            lines.append(f" {mark} {candidate.kernel_id}: {why}")
        lines += [f"   not compiled for this call: {', '.join(waiting)}"] if waiting else []
        lines += [f"   {note}" for note in self.to_dict().get("notes", [])]
        return "\n".join(lines)

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Returns (mark of the chosen one, kernel, score or "refused", why) of each candidate: the chosen one, then by score."""
        rows = []
        # A tie within noise is decided without the measured term, so the score of the chosen one need not be the highest.
        order = sorted(self.candidates, key=lambda c: (c.kernel_id != self.kernel_id, not c.admissible, -c.score))
        for candidate in order:
            if candidate.admissible:
                score = f"{candidate.score:g}"
                terms = " + ".join(f"{term.name} {term.value:g}" for term in candidate.terms) or "reference"
                why = "; ".join(filter(None, (terms, candidate.ranked())))
            else:
                score, why = "refused", "\n".join(dict.fromkeys(map(str, candidate.reasons)))
            rows.append(("->" if candidate.kernel_id == self.kernel_id else "", candidate.kernel_id, score, why))
        return rows

    def _repr_html_(self) -> str:
        caption = f"{self.operation} on {self.device.name}: {self.kernel_id or 'no kernel may run'}"
        return html_table(("", "kernel", "score", "why"), self.rows(), caption)


def _wrap(value: Any) -> Any:
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [_wrap(v) for v in value]
    return value
