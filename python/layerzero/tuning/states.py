"""Calls that tuning could not measure, and why: "untuned: out of memory" is a state that `layerzero doctor` and explain
show. Kept in untuned.json in the policy's cache_dir."""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layerzero.host.files import replaced
from layerzero.host.policy import policy_in_force

FILE = "untuned.json"
MOST = 1000
OUT_OF_MEMORY = "out of memory"
_SAME = ("operation", "device_id", "dtype", "axes", "options")


def path() -> Path:
    """Returns where the states are kept."""
    return Path(os.path.expanduser(policy_in_force()["keys"]["cache_dir"]["value"])) / FILE


def read() -> list[dict[str, Any]]:
    """Returns {"operation", "name", "call", "device_id", "dtype", "axes", "options", "state", "at"} of each such call; a
    file that is missing or damaged has none."""
    try:
        rows = json.loads(path().read_bytes()[: 8 << 20])["untuned"]
        return [row for row in rows if isinstance(row, dict) and {"name", "call", "state", *_SAME} <= set(row)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def key_of(row: dict[str, Any]) -> str:
    """Returns what two states of one call have in common."""
    return json.dumps([row[name] for name in _SAME], sort_keys=True)


def update(states: Iterable[dict[str, Any]], tuned: Iterable[dict[str, Any]] = ()) -> None:
    """Adds states, and removes those of calls that were tuned since."""
    known = {key_of(row): row for row in read()}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    changed = known | {key_of(row): row | {"at": now} for row in states}
    for row in tuned:
        changed.pop(key_of(row), None)
    if changed == known:
        return
    newest = sorted(changed.values(), key=lambda row: row.get("at", ""))[-MOST:]
    with replaced(path(), folders=True) as file:
        file.write(json.dumps({"version": 1, "untuned": newest}, indent=1).encode())


def of_call(operation: str, device_id: str, dtype: str, axes: dict[str, int], options: dict[str, str]) -> str:
    """Returns the state of a call; "" if tuning has not failed for it."""
    if not path().exists():
        return ""
    wanted = key_of({"operation": operation, "device_id": device_id, "dtype": dtype, "axes": axes, "options": options})
    return next((row["state"] for row in read() if key_of(row) == wanted), "")
