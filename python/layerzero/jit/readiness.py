"""`lz.readiness_check`: whether this process may get traffic. Each check is one function; nothing is compiled here."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from layerzero import _layerzero, backends
from layerzero.errors import LayerZeroError
from layerzero.host.policy import jit_settings, policy_in_force
from layerzero.host.typed import typed
from layerzero.inspection.text import table
from layerzero.jit import examples, flight, library, manifest, state, store, work
from layerzero.jit.examples import Call

MOST_NAMED = 5  # calls that a text names


class Check(NamedTuple):
    """One check. state: "pass", "warn", "fail" or "skip" (it is about something that this process does not use)."""

    name: str
    state: str
    code: str  # "JIT_CACHE_INCOMPLETE"; "" if it passed
    detail: str
    fix: str


class ReadinessReport(NamedTuple):
    """The checks in order. ready: none of them failed."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def ready(self) -> bool:
        return all(check.state != "fail" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: ready, checks, seconds."""
        return {"ready": self.ready, "checks": [check._asdict() for check in self.checks], "seconds": self.seconds}

    def __str__(self) -> str:
        rows = [[check.name, check.state, check.code, check.detail, check.fix] for check in self.checks]
        title = "ready" if self.ready else "not ready"
        return table(["check", "state", "code", "detail", "fix"], rows, title, wraps=("detail", "fix"))


Outcome = tuple[str, str, str, str]  # state, code, detail, fix
_more: dict[str, Callable[[], Outcome]] = {}


def add_check(name: str, check: Callable[[], Outcome]) -> None:
    """Has readiness_check() ask one more function: it returns state, code, detail and fix."""
    _more[name] = check


@typed
def readiness_check(model: Any = None, *, require_warmup: bool = False) -> ReadinessReport:
    """Checks whether this process is ready for traffic; nothing is compiled or changed.

    model: only its calls of the shape manifest count; by default those of all models. require_warmup: a process that has not
    called `lz.warmup` is not ready, whatever is on the disk.

    The checks: policy, backends (they load, with one CUDA version), descriptors, table (a dispatch table is current, its compiled kernels on disk), jit (every call of
    the manifest has its kernel compiled, JIT_CACHE_INCOMPLETE), warmup, graphs, memory, health, telemetry.
    """
    begin = time.perf_counter()
    backends.ensure_registered()
    checks: dict[str, Callable[[], Outcome]] = {
        "policy": _policy,
        "backends": _backends,
        "descriptors": _descriptors,
        "table": _table,
        "jit": lambda: _jit(model),
        "warmup": lambda: _warmup(model, require_warmup),
        "graphs": _graphs,
        "memory": _memory,
        "health": _health,
        "telemetry": _telemetry,
        **_more,
    }
    found = []
    for name, check in checks.items():
        try:
            found.append(Check(name, *check()))
        except (LayerZeroError, OSError) as error:
            found.append(Check(name, "fail", "CHECK_FAILED", str(error), getattr(error, "fix", "") or ""))
    return ReadinessReport(tuple(found), time.perf_counter() - begin)


def _passed(detail: str) -> Outcome:
    return "pass", "", detail, ""


def _skipped(detail: str) -> Outcome:
    return "skip", "", detail, ""


def _devices() -> dict[str, Any]:
    return json.loads(_layerzero.devices())


def _has_cuda() -> bool:
    return any(device["platform"] == "cuda" for device in _devices()["devices"])


def _keys() -> dict[str, Any]:
    return {name: entry["value"] for name, entry in policy_in_force()["keys"].items()}


def _policy() -> Outcome:
    _layerzero.startup()
    if not _keys()["enabled"]:
        return "fail", "DISABLED", "enabled is false: only references serve calls", "remove `enabled: false`"
    return _passed("read")


def _backends() -> Outcome:
    """Libraries that are installed and whose build does not fit the process, or that failed their test."""
    from layerzero.backends import report

    found = report.report(imports=False)
    wrong = [one for one in found if one["compatibility"]["state"] == "refused"]
    broken = [
        k["backend"] for k in json.loads(_layerzero.kernels(None, False)) if k["installed"] and k["usable"] is False
    ]
    names = sorted({*(one["name"] for one in wrong), *broken})
    if names:
        return (
            "fail",
            "BACKEND_INCOMPATIBLE",
            f"installed, and cannot be used: {', '.join(names)}",
            "`layerzero backends` has the reasons; remove it, or install the build that fits",
        )
    return _passed(f"{sum(one['installed'] for one in found)} installed")


def _descriptors() -> Outcome:
    found = list(backends.problems())
    if found:
        return (
            "fail",
            "CAPABILITIES_SCHEMA_MISMATCH",
            "; ".join(found),
            "correct the descriptors, or remove the packages",
        )
    return _passed(f"{len(backends.libraries())} libraries")


def _table() -> Outcome:
    """A table that was wanted is in force, and what its kernels need compiled is there."""
    from layerzero.tables import table_state

    found = table_state()
    if found["problem"] is not None:
        return "fail", "TABLE_REFUSED", found["problem"], 'make it again: `layerzero solve`, or `table: ""`'
    if found["path"] is None:
        return _skipped("no dispatch table is loaded: calls are selected for when they come")
    missing = [key for key in found["jit_artifacts"] if store.failure_of(key) is None and store.read(key) is None]
    if missing:
        detail = (
            f"{len(missing)} of {len(found['jit_artifacts'])} compiled kernels of {found['path']} are not on the disk"
        )
        return "fail", "JIT_CACHE_INCOMPLETE", detail, "run `lz.warmup` with the calls of the table before traffic"
    return _passed(f"{found['path']}: {found['entries']} entries")


def _manifest(model: Any) -> list[manifest.Recorded]:
    found = manifest.read()
    if model is None:
        return list(found.values())
    key = manifest.model_hash(model)
    return [found[key]] if key in found else []


def _jit(model: Any) -> Outcome:
    """Every call of the manifest gets its best kernel, or would after a warm-up that compiles nothing."""
    recorded = _manifest(model)
    missing = list(_incomplete([call for one in recorded for call in one.calls]))
    counts = work.counts()
    fix = "run `lz.warmup('manifest')` before traffic"
    if missing:
        named = "; ".join(missing[:MOST_NAMED]) + (
            f" and {len(missing) - MOST_NAMED} more" if missing[MOST_NAMED:] else ""
        )
        return "fail", "JIT_CACHE_INCOMPLETE", f"{len(missing)} calls lack their kernel: {named}", fix
    if counts.waiting or counts.compiling:
        left = counts.waiting + counts.compiling
        return "fail", "JIT_CACHE_INCOMPLETE", f"{left} kernels are waiting or being compiled", "wait for them"
    old = [one for one in recorded if manifest.stale(one)]
    if old:
        days = f"{max(one.age_days for one in old):.0f} days (jit.manifest_stale_days: {jit_settings().manifest_stale_days:g})"
        return (
            "warn",
            "SHAPE_MANIFEST_STALE",
            f"the manifest is {days} old",
            "lz.warmup(model, inputs=..., record=True)",
        )
    if not recorded:
        return _skipped(f"no shape manifest at {manifest.path()}")
    return _passed(f"{sum(len(one.calls) for one in recorded)} calls")


def _incomplete(calls: list[Call]) -> Iterator[str]:
    """Yields "operation: kernel" of each call whose best kernel is compiled neither in this process nor on the disk."""
    for call in calls:
        operation = _layerzero.ops[call["operation"]]
        arguments = examples.described(call) if call["device"] == "cpu" else examples.arguments(call)
        try:
            report = json.loads(_layerzero.explain(operation, (), arguments, None, True))
        except LayerZeroError as error:
            yield f"{call['operation']}: {error}"
            continue
        if report["kernel_id"] is None:
            yield f"{call['operation']}: no kernel may run"
        elif (wanted := report["wanted"]) is not None and not _on_disk(wanted, report["operation"], call):
            yield f"{report['operation']}: {wanted['kernel_id']}"


def _on_disk(wanted: dict[str, Any], operation: str, call: Call) -> bool:
    """True for a process that has not been warmed up, if the next one will find the compiled code. A failure counts too:
    a warm-up cannot help it."""
    key = library.key_of(wanted["kernel_id"], operation, tuple(wanted["kind"]), call)
    if store.failure_of(key) is not None:
        return True
    return not state.warmups()["runs"] and store.read(key) is not None


def _warmup(model: Any, required: bool) -> Outcome:
    done = state.warmups()
    if done["runs"]:
        left = done["calls"] - done["ready"]
        if left:
            return (
                "warn",
                "WARMUP_INCOMPLETE",
                f"{left} of {done['calls']} calls are not ready",
                "see lz.warmup's report",
            )
        return _passed(f"{done['calls']} calls")
    fix = "call lz.warmup before traffic"
    if required or _manifest(model):
        return "fail" if required else "warn", "WARMUP_INCOMPLETE", "this process has not been warmed up", fix
    return _skipped("no shape manifest names calls")


def _graphs() -> Outcome:
    if not _has_cuda():
        return _skipped("no CUDA device")
    if _keys().get("graph_strict_mode"):
        return _passed("graph_strict_mode: captures are proven")
    return "warn", "GRAPHS_NOT_VALIDATED", "graph_strict_mode is off", "turn it on if calls are captured in CUDA graphs"


def _memory() -> Outcome:
    headroom = _keys()["memory_headroom_mb"]
    free = flight.free_memory()
    if free is not None and free < headroom << 20:
        detail = f"{free >> 20} MiB of host memory are free, memory_headroom_mb is {headroom}"
        return "fail", "MEMORY_HEADROOM_EXCEEDED", detail, "free memory, or lower memory_headroom_mb"
    if not headroom:
        return "warn", "MEMORY_HEADROOM_EXCEEDED", "memory_headroom_mb is 0", "set it to what the process needs besides"
    return _passed(f"{headroom} MiB are kept free")


def _health() -> Outcome:
    found = json.loads(_layerzero.health())
    reasons = "; ".join(f"{reason['code']}: {reason['text']}" for reason in found["reasons"])
    fixes = "; ".join(reason["fix"] for reason in found["reasons"])
    if found["status"] == "ok":
        return _passed("no kernel is kept from being selected")
    code = found["reasons"][0]["code"] if found["reasons"] else "DEGRADED"
    return "fail" if found["status"] == "restart" else "warn", code, reasons, fixes


def _telemetry() -> Outcome:
    keys = _keys()
    if keys["metrics.enabled"] or keys["metrics.listen"] or keys["metrics.file"] or keys["trace.opentelemetry"]:
        return _passed("runs are counted")
    return "warn", "TELEMETRY_OFF", "runs are not counted", "metrics: {enabled: true}, or lz.serve_metrics()"


def is_alive() -> tuple[bool, str]:
    """Returns whether a restart would not help, and why it would: a device whose context is lost stays lost."""
    found = json.loads(_layerzero.health())
    lost = [reason["text"] for reason in found["reasons"] if reason["code"] == "CONTEXT_LOST"]
    return not lost, "; ".join(lost) or "alive"
