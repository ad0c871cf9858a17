"""Has the kernels compiled that the calls of a table would get: what `solve(compile_jit=True)` does before it decides."""

import time
from collections.abc import Iterable
from typing import Any

from layerzero.tables.calls import Call, Sizes


class Compiler:
    """Compiles on the queue's thread (layerzero.jit.work), and waits until `budget_s` are over; None: without an end.

    uncompiled: the kernels that were not ready then or failed, for the document of the table.
    """

    def __init__(self, budget_s: float | None) -> None:
        self._until = None if budget_s is None else time.monotonic() + budget_s
        self._tried: set[Any] = set()
        self.uncompiled: list[dict[str, str]] = []

    def compile(self, call: Call, reports: Iterable[tuple[Sizes, dict[str, Any]]]) -> bool:
        """Has everything compiled that the reports of a call want. Returns False if they want nothing that was not tried before."""
        from layerzero.jit import library, work

        any_new = False
        for sizes, report in reports:
            wanted = report["wanted"]
            if wanted is None:
                continue
            kind = tuple(wanted["kind"])
            key = report["operation"], wanted["kernel_id"], kind
            if key in self._tried:
                continue
            self._tried.add(key)
            described = call.described(sizes, report)
            if described is None:
                self._leave(call, sizes, wanted, "the call cannot be made apart from its program: use lz.warmup(model)")
                continue
            one = library.queued(report["operation"], wanted["kernel_id"], kind, described)
            work.wait(one, self._until)
            any_new = True
            if one.state != "ready":
                self._leave(call, sizes, wanted, one.detail or "not compiled within the budget")
        return any_new

    def _leave(self, call: Call, sizes: Sizes, wanted: dict[str, Any], why: str) -> None:
        self.uncompiled.append({"kernel_id": wanted["kernel_id"], "call": call.at(sizes), "why": why})
