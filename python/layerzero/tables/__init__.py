"""Dispatch tables (docs/design/0037-tables.md): made by `solve`, kept in files, put in force, compared; and locks of
deployments."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerzero import _layerzero, backends
from layerzero.errors import ConfigError, WrongTypeError
from layerzero.host.files import replaced
from layerzero.host.typed import typed


def engine(command: str, **arguments: Any) -> Any:
    """Returns the engine's answer to a command about tables, as data."""
    return json.loads(_layerzero.table(command, json.dumps(arguments)))


class DispatchTable:
    """A table as data: `document` is the JSON form, which docs/design/0037-tables.md describes.

    lz.solve makes one; `save` writes it, `DispatchTable.read` reads either form again.
    """

    @typed
    def __init__(self, document: dict[str, Any], source: str = "table") -> None:
        _check_parts(document, source)
        self.document, self._source = document, source

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "DispatchTable":
        """Reads a table in binary form or as JSON. ConfigError: it is neither, or damaged; UntrustedFileError,
        NotInstalledError: as `load_table`."""
        backends.ensure_registered()
        name = os.fspath(path)
        if not name.endswith(".json"):
            return cls(engine("read", path=name), name)
        text = bytes(_layerzero.read_trusted(name, "dispatch table"))
        try:
            document = json.loads(text)
        except ValueError as error:
            raise ConfigError(name, "a dispatch table", f"no JSON ({error})", "make it again") from None
        if not isinstance(document, dict):
            raise ConfigError(name, "a dispatch table", f"a JSON {type(document).__name__}", "make it again")
        table = cls(document, name)
        table.to_bytes()  # checks it
        return table

    @property
    def plans(self) -> list[dict[str, Any]]:
        """The buckets with their operations, as in the document."""
        return self.document["plans"]

    def entries(self) -> list[dict[str, Any]]:
        """Returns every entry: op, kernel_id, when, us ..., with its `bucket`."""
        return [{**one, "bucket": plan["bucket"]} for plan in self.plans for one in plan["ops"]]

    def to_bytes(self) -> bytes:
        """Returns the binary form, which `load_table` reads."""
        # What is for people and locks alone would be parsed at each loading.
        kept = {key: value for key, value in self.document.items() if key not in ("choices", "joint", "uncompiled")}
        return _layerzero.table("build", json.dumps({"document": json.dumps(kept), "what": self._source}))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table whole or not at all: as JSON if the name ends in .json, else in binary form."""
        as_text = os.fspath(path).endswith(".json")
        data = (json.dumps(self.document, indent=1) + "\n").encode() if as_text else self.to_bytes()
        with replaced(path) as file:
            file.write(data)

    def __str__(self) -> str:
        entries = self.entries()
        kernels = sorted({(e["op"], e["kernel_id"]) for e in entries})
        lines = [
            f"dispatch table of {self.document.get('model_id') or 'operations'} on {self.document['hardware_signature']}: "
            f"{len(entries)} entries in {len(self.plans)} buckets"
        ]
        for op, kernel in kernels:
            count = sum((e["op"], e["kernel_id"]) == (op, kernel) for e in entries)
            lines.append(f"  {op:28} {kernel:36} {count:5} entries")
        for pair in self.document.get("joint", []):
            lines.append(f"  joint: {pair['text']}")
        for one in self.document.get("uncompiled", []):
            lines.append(f"  not compiled: {one['kernel_id']} for {one['call']}: {one['why']}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"


def _check_parts(document: dict[str, Any], source: str) -> None:
    """Raises ConfigError where a part is missing that the methods of a table read; `to_bytes` checks all of it."""

    def lacks(one: Any, *names: str) -> bool:
        return not isinstance(one, Mapping) or not set(names) <= one.keys()

    if not isinstance(document, dict):
        raise WrongTypeError("DispatchTable: document", "a dict", type(document).__name__)
    wrong = ""
    if lacks(document, "hardware_signature", "plans"):
        missing = ", ".join(name for name in ("hardware_signature", "plans") if name not in document)
        wrong = f"a document without {missing}"
    elif not isinstance(document["plans"], list):
        wrong = f"plans that are a {type(document['plans']).__name__}"
    elif any(lacks(plan, "bucket", "ops") or not isinstance(plan["ops"], list) for plan in document["plans"]):
        wrong = "a plan without bucket or ops"
    elif any(lacks(entry, "op", "kernel_id") for plan in document["plans"] for entry in plan["ops"]):
        wrong = "an entry without op or kernel_id"
    if wrong:
        fix = "make it with lz.solve, or read its file with lz.DispatchTable.read"
        raise ConfigError(source, "a dispatch table with hardware_signature and plans", wrong, fix)


@typed
def load_table(
    path: str | os.PathLike[str], *, numerics: str | None = None, tp_invariant: bool = False
) -> dict[str, Any]:
    """Puts a table in force for this process: from now on its kernels are chosen, for calls that it has an entry for,
    before any scoring. Every constraint of a chosen kernel is checked as ever. Returns its state, as `table_state`.

    numerics, tp_invariant: the table must be marked so. VersionMismatchError says what differs where it was made for
    another installation; ConfigError: it is no table or damaged; UntrustedFileError: another user can change it, or the
    policy wants a signature and it has none. After an error the table before stays in force. The policy's `table` does the
    same at the first selection.
    """
    backends.ensure_registered()
    return engine("load", path=str(Path(path).absolute()), numerics=numerics or "", tp_invariant=tp_invariant)


def unload_table() -> None:
    """Takes the table out of force."""
    engine("unload")


def table_state() -> dict[str, Any]:
    """Returns the table in force: path, entries, bytes, model_id, and how many selections it was used for, or not and
    why; `path` is None where there is none, `problem` says why the policy's table was refused."""
    return engine("state")
