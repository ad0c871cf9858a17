"""Messages of JSON between this process and a worker. Those of calls are C++ (src/worker/message.h). No pickle: every message
has a bounded length, exact fields and checked types.
"""

import json
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from layerzero import _layerzero

VERSION = 2
MAX_TEXT = 8 * 1024  # bytes of one text
MAX_WARNINGS = 16  # of one call
SPIN_US = 50.0  # that a side waits for a message before it sleeps


def spin_us() -> float:
    """Returns how long a side spins: not at all on one processor."""
    return SPIN_US if (os.cpu_count() or 1) > 1 else 0.0


class Kind(IntEnum):
    """The first byte of a message; CALL, ROOM, NEED and RESULT are C++'s."""

    LOAD = 1  # import adapters, and run the probe
    CALL = 2
    ROOM = 3
    READY = 16  # the worker's versions
    LOADED = 17  # the error of what LOAD asked for, or ""
    NEED = 18
    RESULT = 19
    ERROR = 20


class ProtocolError(Exception):
    """A message breaks the protocol."""


class Unsendable(ProtocolError):
    """A value does not fit into a message, and was not sent."""


class Full(Exception):
    """No block of the shared memory is large enough."""


class Hung(Exception):
    """A worker did not answer in time."""


_layerzero.worker_errors(ProtocolError, Unsendable, Full, Hung)


def json_message(kind: Kind, document: dict[str, Any]) -> bytes:
    """Returns a message of JSON."""
    return bytes([kind]) + json.dumps(document).encode()


def read_json(message: bytes, kind: Kind, **fields: type | tuple[type, ...]) -> dict[str, Any]:
    """Returns the document of a JSON message of this kind, which has exactly these fields of these types."""
    if message[:1] != bytes([kind]):
        raise ProtocolError(f"wanted a message of kind {kind.name}, got {message[:1]!r}")
    try:
        document = json.loads(message[1:])
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"wanted JSON: {error}") from None
    if not isinstance(document, dict) or set(document) != set(fields):
        raise ProtocolError(f"wanted the fields {', '.join(fields)}, got {str(document)[:200]}")
    for name, wanted in fields.items():
        if not isinstance(document[name], wanted):
            raise ProtocolError(f"{name}: wanted {wanted}, got {str(document[name])[:200]}")
    return document


def warnings_text(warnings: list[dict[str, Any]]) -> bytes:
    """Returns the warnings of a call as JSON, or nothing if there are none."""
    return json.dumps(warnings[:MAX_WARNINGS]).encode() if warnings else b""


def read_warnings(text: bytes) -> list[dict[str, Any]]:
    """Returns checked warnings: {"category", "text", "file", "line"} each."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"wanted warnings as JSON: {error}") from None
    kinds: dict[str, Callable[[Any], bool]] = {
        name: lambda v: isinstance(v, str) for name in ("category", "text", "file")
    }
    kinds["line"] = lambda v: isinstance(v, int) and not isinstance(v, bool)
    for warning in found if isinstance(found, list) and len(found) <= MAX_WARNINGS else [None]:
        if not isinstance(warning, dict) or set(warning) != set(kinds):
            raise ProtocolError(f"wanted a list of warnings, got {str(found)[:200]}")
        if not all(check(warning[name]) for name, check in kinds.items()):
            raise ProtocolError(f"wanted a warning of texts and a line, got {str(warning)[:200]}")
    return found
