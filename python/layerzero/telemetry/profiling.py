"""`lz.profile`: where the time of a call goes, operation by operation, and what would be faster."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, WrongTypeError
from layerzero.host import watching
from layerzero.host.observe import KernelRun, observe
from layerzero.host.typed import typed
from layerzero.inspection.report import Record
from layerzero.inspection.text import table
from layerzero.telemetry.reasons import why_chosen, why_lost

_FASTER = 0.97  # a time above this share of the chosen kernel's is within the noise of records
_TORCH_OPERATIONS = 8


class Profile(Record):
    """Where the time of a call goes.

    seconds: the median of `runs` calls, with nothing observed. operations: the kernels that ran, most time first, a row for
    each class of inputs: {"operation", "kernel_id", "device", "inputs", "runs": of one call, "us": of one run, "share": of the
    call's time, "why": it was chosen, "faster"}. faster: kernels with shorter measured times that lost, {"kernel_id", "us",
    "needs": what has to change}. elsewhere: {"seconds", "share", "torch": [{"name", "us", "share"}]}, the time outside
    LayerZero's kernels and torch's operations in it. notes: what the numbers leave out.
    """

    __slots__ = ()

    def __str__(self) -> str:
        rows = [
            [
                f"{row['share']:.1%}",
                row["operation"],
                row["kernel_id"],
                f"{row['runs']:g}",
                f"{row['us']:.4g}",
                row["inputs"],
                "\n".join([row["why"], *(_faster_text(f) for f in row["faster"])]),
            ]
            for row in self._data["operations"]
        ]
        rest = self._data["elsewhere"]
        rows.append([f"{rest['share']:.1%}", "elsewhere", "", "", "", "", _torch_text(rest["torch"])])
        head = f"{self._data['seconds'] * 1e3:.4g} ms a call, median of {self._data['runs']}"
        columns = ["share", "operation", "kernel", "runs", "us", "inputs", "why, and what would be faster"]
        return "\n".join([table(columns, rows, head, wraps=["inputs", columns[-1]]), *self._data["notes"]])


def _faster_text(faster: dict[str, Any]) -> str:
    return f"{faster['kernel_id']}: {faster['us']:.4g} us; {faster['needs']}"


def _torch_text(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{row['name']} {row['share']:.1%}" for row in rows)


@typed
def profile(call: Callable[..., Any], *args: Any, runs: int = 5, **kwargs: Any) -> Profile:
    """Returns where the time of `call(*args, **kwargs)` goes. `call`: a model or any other function.

    print(lz.profile(model, input_ids))

    The call runs without gradients, 3 + 2 * `runs` times: once to warm up, `runs` times to be timed, once with its selections
    recorded, `runs` times with every kernel timed (on CUDA each one is waited for), and once under torch's profiler. Selections
    of the process are made again, as after a change of the policy. The steps of a captured CUDA graph are one launch and
    are not timed one by one.
    """
    if not callable(call):
        raise WrongTypeError("call", "a model or another function", repr(call))
    if runs < 1:
        raise InvalidRequestError("runs", "at least 1", str(runs))
    torch = sys.modules.get("torch")

    def once() -> float:
        start = time.perf_counter()
        if torch is None:
            call(*args, **kwargs)
        else:
            with torch.no_grad():
                call(*args, **kwargs)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    seconds = statistics.median(once() for _ in range(runs))
    selections = _selections(once)
    ran: list[KernelRun] = []
    with observe(ran.append, wait=True):
        for _ in range(runs):
            once()
    rows = _rows(ran, runs, seconds, selections)
    rest = max(0.0, 1 - sum(row["share"] for row in rows))
    outside = {"seconds": seconds * rest, "share": rest, "torch": _of_torch(once, seconds) if torch is not None else []}
    return Profile(
        {"seconds": seconds, "runs": runs, "operations": rows, "elsewhere": outside, "notes": _notes(ran, rest)}
    )


def profile_model(model: Any, prompt_tokens: int = 128, runs: int = 5) -> dict[str, Profile]:
    """Returns the profiles of a causal model's prompt and of the token after it: {"prompt", "token"}."""
    import torch
    from transformers import DynamicCache

    vocabulary = model.get_input_embeddings().num_embeddings
    device = next(model.parameters()).device
    ids = torch.randint(vocabulary, (1, prompt_tokens), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values

    def token() -> None:
        model(ids[:, :1], past_key_values=cache, use_cache=True)
        if isinstance(cache, DynamicCache):
            cache.crop(-1)

    return {"prompt": profile(model, ids, use_cache=True, runs=runs), "token": profile(token, runs=runs)}


def _selections(once: Callable[[], object]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Returns (operation, device, inputs) -> the selection's report of one call."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}

    def selected(text: str, device: str, inputs: str, seconds: float) -> None:
        report = json.loads(text)
        found[report["name"], device, inputs] = report

    handle = watching.watch(_layerzero.observe_selections(selected))
    try:
        _layerzero.invalidate()
        once()
    finally:
        watching.stop(handle)
    return found


def _rows(
    ran: list[KernelRun], runs: int, seconds: float, selections: dict[tuple[str, str, str], dict[str, Any]]
) -> list[dict[str, Any]]:
    times: dict[tuple[str, str, str, str], list[float]] = {}
    for run in ran:
        if run.error is None:
            times.setdefault((run.operation, run.kernel_id, run.device, run.inputs), []).append(run.seconds)
    rows = []
    for (operation, kernel, device, inputs), spent in times.items():
        report = selections.get((operation, device, inputs), {})
        known = report.get("kernel_id") == kernel
        rows.append(
            {
                "operation": operation,
                "kernel_id": kernel,
                "device": device,
                "inputs": inputs,
                "runs": len(spent) / runs,
                "us": statistics.median(spent) * 1e6,
                "share": sum(spent) / runs / seconds,
                "why": why_chosen(report) if known else "",
                "faster": _faster(report) if known else [],
            }
        )
    return sorted(rows, key=lambda row: -row["share"])


def _faster(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns kernels with shorter measured times than the chosen one's, and what each one needs."""
    times = {c["kernel_id"]: c["measured_us"] for c in report["candidates"] if c.get("measured_us")}
    chosen = times.get(report["kernel_id"])
    if chosen is None:
        return []
    faster = [c for c in report["candidates"] if times.get(c["kernel_id"], chosen) < chosen * _FASTER]
    rows = [
        {
            "kernel_id": c["kernel_id"],
            "us": times[c["kernel_id"]],
            "needs": why_lost(c, report)
            if c["reasons"]
            else "nothing: the priorities decide, since the times may be equal",
        }
        for c in faster
    ]
    return sorted(rows, key=lambda row: row["us"])


def _of_torch(once: Callable[[], object], seconds: float) -> list[dict[str, Any]]:
    """Returns torch's operations outside LayerZero's kernels with the most host time of their own."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        once()
    spent: dict[str, float] = {}
    for event in profiler.events():
        if event.name.startswith("aten::") and not _inside_a_kernel(event):
            spent[event.name] = spent.get(event.name, 0.0) + event.self_cpu_time_total
    most = sorted(spent.items(), key=lambda item: -item[1])[:_TORCH_OPERATIONS]
    return [{"name": name, "us": us, "share": us / 1e6 / seconds} for name, us in most]


def _inside_a_kernel(event: Any) -> bool:
    while event is not None:
        if event.name.startswith("layerzero::"):
            return True
        event = event.cpu_parent
    return False


def _notes(ran: list[KernelRun], rest: float) -> list[str]:
    notes = []
    if failed := sum(run.error is not None for run in ran):
        notes.append(f"{failed} runs of kernels failed and are not counted: `layerzero health show`")
    if not ran:
        notes.append(
            "no kernel of LayerZero ran: call lz.kernelize(model) first; a captured CUDA graph shows none either"
        )
    elif rest == 0.0:
        notes.append("the kernels alone took longer than the call: each of them was waited for")
    return notes
