"""Log lines as JSON records (`log_json`), at most RATE of them in a second."""

import datetime
import json
import threading
import time
from typing import Any

from layerzero import _layerzero
from layerzero.host import log
from layerzero.telemetry.reasons import why_chosen, why_lost

RATE = 100


class Records:
    """Emits one line for each selection that the policy logs and for each kind of failure.

    Keys of each record: time (UTC, ISO 8601), event, operation, kernel_id; suppressed: how many records the rate limit
    left out before this one, if any. event "selection": operation_id, device, inputs, us (of the selection), reason,
    lost ([{"kernel_id", "codes", "why"}]), policy_hash. event "failure": message.
    """

    def __init__(self) -> None:
        self._lock, self._left, self._since, self._suppressed = threading.Lock(), float(RATE), time.monotonic(), 0
        self._handle = _layerzero.observe_selections(self._selected, True)
        log.json_records = self.emit

    def close(self) -> None:
        _layerzero.stop_observing(self._handle)
        log.json_records = None

    def emit(self, event: str, operation: str, kernel_id: str | None, **fields: Any) -> None:
        suppressed = self._take()
        if suppressed is None:
            return
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        record = {"time": now, "event": event, "operation": operation, "kernel_id": kernel_id, **fields}
        log.record(json.dumps(record | ({"suppressed": suppressed} if suppressed else {})))

    def _take(self) -> int | None:
        """Returns how many records were left out before this one, or None if it is to be left out too."""
        with self._lock:
            now = time.monotonic()
            self._left = min(float(RATE), self._left + (now - self._since) * RATE)
            self._since = now
            if self._left < 1:
                self._suppressed += 1
                return None
            self._left -= 1
            suppressed, self._suppressed = self._suppressed, 0
            return suppressed

    def _selected(self, text: str, device: str, inputs: str, seconds: float) -> None:
        report = json.loads(text)
        lost = [
            {
                "kernel_id": c["kernel_id"],
                "codes": list(dict.fromkeys(r["code"] for r in c["reasons"])),
                "why": why_lost(c, report),
            }
            for c in report["candidates"]
            if c["kernel_id"] != report["kernel_id"]
        ]
        self.emit(
            "selection",
            report["name"],
            report["kernel_id"],
            operation_id=report["operation"],
            device=device,
            inputs=inputs,
            us=round(seconds * 1e6, 3),
            reason=why_chosen(report),
            lost=lost,
            policy_hash=report["policy_hash"],
        )
