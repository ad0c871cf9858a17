"""`lz.report`: records the decisions of a run for an HTML page."""

import json
import os
import platform
import threading
import time
from types import TracebackType
from typing import Any

from layerzero import _layerzero, configure
from layerzero.backends.report import gains
from layerzero.host import blocks, watching
from layerzero.host.files import check_writable, replaced
from layerzero.host.typed import typed
from layerzero.inspection.metrics import metrics
from layerzero.telemetry.health import breakers

_MOST = 2000  # decisions that are kept


class report:
    """Records the decisions of a `with` block; at its end they are written to `path` as one HTML page.

    with lz.report("decisions.html"): model(x)

    The page needs no network: each decision with its alternatives and reasons, the times of the kernels that ran, and what
    to install or change. Decisions of before the block are made again inside it, and runs are counted. `to_dict()` and
    `html()` return what was recorded so far. Tensors' contents are not recorded.
    """

    @typed
    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._decisions: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._left_out = 0
        self._handle: int | None = None
        self._before: dict[tuple[str, str], dict[str, Any]] = {}
        self._after: list[dict[str, Any]] | None = None
        self._seconds, self._start = 0.0, time.monotonic()

    def __enter__(self) -> "report":
        if self._handle is not None:
            raise blocks.entered_twice("report")
        if self._path is not None:
            check_writable("report", self._path)
        self._before = {(r["operation"], r["kernel_id"]): r for r in metrics().to_dict()["runs"]}
        self._counted = json.loads(_layerzero.policy_text())["keys"]["metrics.enabled"]["value"]
        if not self._counted:
            configure(metrics={"enabled": True})
        self._handle = watching.watch(_layerzero.observe_selections(self._selected))
        _layerzero.invalidate()
        self._start = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is None:
            raise blocks.not_entered("report")
        watching.stop(self._handle)
        self._handle = None
        self._seconds = time.monotonic() - self._start
        self._after = self._runs()
        if not self._counted:
            configure(metrics={"enabled": False})
        if self._path is not None:
            self.write(self._path)

    def _selected(self, text: str, device: str, inputs: str, seconds: float) -> None:
        selection = json.loads(text)
        key = (selection["operation"], selection["kernel_id"], device, inputs, json.dumps(selection["options"]))
        with self._lock:
            if known := self._decisions.get(key):
                known["times"] += 1
            elif len(self._decisions) >= _MOST:
                self._left_out += 1
            else:
                self._decisions[key] = {
                    "device": device,
                    "inputs": inputs,
                    "us": seconds * 1e6,
                    "times": 1,
                    "report": selection,
                }

    def _runs(self) -> list[dict[str, Any]]:
        """Returns the runs of kernels since the block began."""
        found = []
        for run in metrics().to_dict()["runs"]:
            before = self._before.get((run["operation"], run["kernel_id"]))
            if before is not None:
                for key in ("runs", "hits", "misses", "failures", "fallbacks", "seconds"):
                    run[key] -= before[key]
                counts = {b: n - before["buckets"].get(b, 0) for b, n in run["buckets"].items()}
                run["buckets"] = {bound: count for bound, count in counts.items() if count}
            if run["runs"]:
                found.append(run)
        return sorted(found, key=lambda run: -run["seconds"])

    def to_dict(self) -> dict[str, Any]:
        """Returns what was recorded: decisions, runs, gains (of libraries that cannot be used here), breakers ..."""
        version, build = _layerzero.build_id()
        with self._lock:
            decisions = list(self._decisions.values())
        return {
            "version": version,
            "build": build,
            "python": platform.python_version(),
            "machine": [d["model"] for d in json.loads(_layerzero.devices())["devices"]],
            "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "seconds": self._seconds or time.monotonic() - self._start,
            "decisions": decisions,
            "left_out": self._left_out,
            "runs": self._runs() if self._after is None else self._after,
            "gains": gains(),
            "breakers": breakers(),
        }

    def html(self) -> str:
        """Returns the page."""
        from layerzero.telemetry.page import page

        return page(self.to_dict())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the page."""
        page = self.html()
        with replaced(path) as file:
            file.write(page.encode())
