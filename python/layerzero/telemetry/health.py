"""Health as metrics and reports have it."""

import json
from typing import Any

from layerzero import _layerzero


def health() -> dict[str, Any]:
    """Returns the data of `lz.health()`."""
    return json.loads(_layerzero.health())


def breakers() -> list[dict[str, str]]:
    """Returns {"operation", "kernel_id", "device", "state"} of each kernel that failed."""
    return [{key: str(b[key]) for key in ("operation", "kernel_id", "device", "state")} for b in health()["breakers"]]
