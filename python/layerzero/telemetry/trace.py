"""`lz.trace`: OpenTelemetry spans of selections and of runs of kernels."""

import json
import time
from types import TracebackType
from typing import Any

from opentelemetry import trace as api
from opentelemetry.trace import Status, StatusCode

from layerzero import _layerzero
from layerzero.errors import WrongTypeError
from layerzero.host import blocks, watching
from layerzero.telemetry.reasons import why_chosen


class trace:
    """Makes an OpenTelemetry span for each run of a kernel and each selection while the `with` block is open.

    with lz.trace(): model(x)

    Spans are children of the span that is current on the calling thread; sampling and export are those of the
    application's provider, or of `provider`. "layerzero.run <operation>" has the attributes layerzero.operation,
    .kernel, .device, .inputs, .cache ("hit", "miss", or "fallback": another kernel of the call failed before) and, if it
    is known, .reason; a run that failed has the status ERROR. "layerzero.select <operation>" has .kernel ("" if none may
    run), .reason, .candidates and .refused. Times are host times: on a GPU that of the launch. While a trace is open
    programs run their steps on the caller's thread. Needs opentelemetry-api.
    """

    def __init__(self, provider: Any = None) -> None:
        if provider is not None and not hasattr(provider, "get_tracer"):
            raise WrongTypeError("trace: provider", "an OpenTelemetry tracer provider or None", type(provider).__name__)
        self._provider, self._handles = provider, list[list[int]]()
        self._reasons: dict[tuple[str, str], str] = {}

    def __enter__(self) -> "trace":
        self._tracer = api.get_tracer("layerzero", _layerzero.build_id()[0], tracer_provider=self._provider)
        handles = _layerzero.observe(self._ran, False, True), _layerzero.observe_selections(self._selected)
        self._handles.append([watching.watch(handle) for handle in handles])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._handles:
            raise blocks.not_entered("trace")
        for handle in self._handles.pop():
            watching.stop(handle)

    def _span(self, name: str, seconds: float, attributes: dict[str, Any], error: str | None = None) -> None:
        end = time.time_ns()
        span = self._tracer.start_span(name, start_time=end - int(seconds * 1e9), attributes=attributes)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=end)

    def _ran(
        self,
        operation: str,
        kernel: str,
        device: str,
        inputs: str,
        seconds: float,
        fallback: bool,
        error: str | None,
        missed: bool,
    ) -> None:
        attributes = {
            "layerzero.operation": operation,
            "layerzero.kernel": kernel,
            "layerzero.device": device,
            "layerzero.inputs": inputs,
            "layerzero.cache": "fallback" if fallback else "miss" if missed else "hit",
        }
        if reason := self._reasons.get((operation, kernel)):
            attributes["layerzero.reason"] = reason
        self._span(f"layerzero.run {operation}", seconds, attributes, error)

    def _selected(self, text: str, device: str, inputs: str, seconds: float) -> None:
        report = json.loads(text)
        reason, candidates = why_chosen(report), report["candidates"]
        kernel = report["kernel_id"] or ""
        if len(self._reasons) < 10_000:
            self._reasons[report["name"], kernel] = reason
        attributes = {
            "layerzero.operation": report["name"],
            "layerzero.kernel": kernel,
            "layerzero.device": device,
            "layerzero.inputs": inputs,
            "layerzero.reason": reason,
            "layerzero.candidates": len(candidates),
            "layerzero.refused": sum(not c["admissible"] for c in candidates),
        }
        self._span(f"layerzero.select {report['name']}", seconds, attributes)
