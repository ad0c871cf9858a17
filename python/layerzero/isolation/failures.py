"""Errors and warnings of a worker's kernels as JSON, and back: type, text and LayerZero's parts of a message."""

import builtins
import traceback
import warnings
from typing import Any

from layerzero import errors
from layerzero.errors import KernelExecutionError, LayerZeroError
from layerzero.isolation.protocol import MAX_TEXT, MAX_WARNINGS

_PARTS = ("field", "wanted", "got", "fix")
_FIELDS: dict[str, Any] = {"type": str, "text": str, "trace": str, "memory": bool, "lost": bool}
FIELDS = _FIELDS | {part: str for part in _PARTS}
# What CUDA says when a context is lost. This process has a context of its own, which still works.
_LOST = (
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "device-side assert",
    "unspecified launch",
)
_seen: dict[Any, Any] = {}  # warnings that were shown, as Python keeps them for each module


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as the cause of the error here."""

    def __str__(self) -> str:
        return f"in the worker:\n{self.args[0]}"


def _cut(text: str, most: int = MAX_TEXT) -> str:
    raw = text.encode(errors="replace")
    return text if len(raw) <= most else raw[: most - 3].decode(errors="ignore") + "..."


def document_of(error: BaseException) -> dict[str, Any]:
    """Returns an exception as the document of an ERROR message."""
    name = type(error).__qualname__
    text = str(error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    lost = isinstance(error, errors.ContextLostError) or any(words in text for words in _LOST)
    return {
        "type": name if type(error).__module__ == "builtins" else f"{type(error).__module__}.{name}",
        "text": _cut(text),
        "trace": _cut(trace[-MAX_TEXT:]),
        "memory": isinstance(error, MemoryError) or name == "OutOfMemoryError",
        "lost": lost,
        **{part: _cut(str(getattr(error, part, "")), MAX_TEXT // 4) for part in _PARTS},
    }


def error_of(document: dict[str, Any], where: str) -> Exception:
    """Returns the exception of an ERROR message: of the same type, if it is one of Python's or LayerZero's, or torch's out
    of memory; else a KernelExecutionError that names the type."""
    error = _same_type(document) or KernelExecutionError(
        where, "a result", f"{document['type']}: {document['text']}", _fix(document)
    )
    error.__cause__ = WorkerTraceback(document["trace"])
    return error


def _fix(document: dict[str, Any]) -> str:
    if document["lost"]:
        return "nothing: its worker is started again, and the device still serves this process"
    return ""


def _same_type(document: dict[str, Any]) -> Exception | None:
    module, _, name = document["type"].rpartition(".")
    if document["lost"]:
        return None  # ContextLostError would end the use of the device in this process
    if module.startswith("layerzero."):
        kind = getattr(errors, name, None)
        parts = [document[part] for part in _PARTS]
        if isinstance(kind, type) and issubclass(kind, LayerZeroError):
            return _make(kind, *parts) if parts[1] else _make(kind, document["text"])
    if module == "torch" and name == "OutOfMemoryError":
        import torch

        return _make(torch.OutOfMemoryError, document["text"])
    kind = getattr(builtins, document["type"], None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return _make(kind, document["text"])
    return None


def _make(kind: type[Exception], *parts: str) -> Exception | None:
    try:
        return kind(*parts)
    except TypeError:  # it wants other arguments, as UnicodeDecodeError
        return None


class Recorder:
    """The warnings of one call in a worker, instead of lines on its standard error."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        warnings.simplefilter("always")
        warnings.showwarning = self._show

    def _show(
        self, message: Any, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if len(self.found) < MAX_WARNINGS:
            text, place = _cut(str(message), 1024), _cut(filename, 512)
            self.found.append({"category": category.__name__, "text": text, "file": place, "line": lineno})

    def take(self) -> list[dict[str, Any]]:
        """Returns the warnings since the last call, and forgets them."""
        found = self.found[:]
        self.found.clear()
        return found


def warn(found: list[dict[str, Any]]) -> None:
    """Shows warnings of a worker, as this process's filters say."""
    if len(_seen) > 1000:
        _seen.clear()
    for warning in found:
        kind = getattr(builtins, warning["category"], None) or getattr(errors, warning["category"], None)
        text = warning["text"]
        if not (isinstance(kind, type) and issubclass(kind, Warning)):
            kind, text = UserWarning, f"{warning['category']}: {text}"
        warnings.warn_explicit(text, kind, warning["file"], warning["line"], registry=_seen)
