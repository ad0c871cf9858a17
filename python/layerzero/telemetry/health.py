"""States of breakers, where this build has them."""

import json
from typing import Any

from layerzero import _layerzero


def health() -> dict[str, Any] | None:
    """Returns the process's health, or None if this build does not know it."""
    read = getattr(_layerzero, "health", None)
    return None if read is None else json.loads(read())


def breakers() -> list[dict[str, str]]:
    """Returns {"operation", "kernel_id", "device", "state"} of each kernel that failed."""
    known = health() or {}
    return [
        {
            "operation": str(b.get("operation", "")),
            "kernel_id": str(b.get("kernel_id", b.get("kernel", ""))),
            "device": str(b.get("device", "")),
            "state": str(b.get("state", "")),
        }
        for b in known.get("breakers", [])
    ]
