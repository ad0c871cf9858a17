"""`lz.tune`: measures the kernels of calls side by side and lets the fastest decide from then on."""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import layerzero as lz
from layerzero import _layerzero, perf_records
from layerzero.contracts import contracts, flat_name
from layerzero.errors import InvalidRequestError, WrongTypeError
from layerzero.host.policy import isolation, policy_in_force
from layerzero.host.typed import typed
from layerzero.inspection.report import Record
from layerzero.torch.devices import device_of
from layerzero.tuning import states, workload
from layerzero.tuning.fills import filled
from layerzero.tuning.process import Ended, Worker, workers
from layerzero.tuning.workload import Entry, Workload

# That one kernel's first call, or the measurement of a call, may take; isolation.timeout_s if that is more.
HANG_S = 60.0
MOST_CRASHES = 20  # of one tuning


@dataclass
class Options:
    """Options of a tuning; see tune()."""

    device: str = "cpu"
    samples: int | None = None
    seconds: float | None = None
    memory_mb: int = 0
    modes: tuple[str, ...] = ("eager", "graph")
    caches: tuple[str, ...] = ("cold", "warm")
    shard: tuple[int, int] = (1, 1)
    variants: int = 0
    imports: tuple[str, ...] = ()
    again: bool = False
    ignore_environment: bool = False
    nice: int = 0
    on_step: Callable[["Step"], None] | None = None


@dataclass(frozen=True)
class Step:
    """Progress of a tuning, after each call."""

    done: int
    total: int
    call: str
    seconds: float  # since the beginning
    left_s: float | None  # an estimate


@dataclass
class Session:
    """A tuning that runs."""

    options: Options
    columns: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    crashed: dict[str, str] = field(default_factory=dict)  # "operation kernel" -> how the worker ended
    failed: dict[str, str] = field(default_factory=dict)  # call -> why nothing of it was measured
    known: int = 0  # calls that were in the database
    records: int = 0
    interrupted: str = ""

    def add(self, entry: Entry, results: list[dict[str, Any]]) -> None:
        """Keeps the results of a call, and writes its records at once: what is measured survives an interruption."""
        rows = [row for result in results for row in result.pop("records")]
        for result in results:
            result["count"] = entry.count
            if any(why == states.OUT_OF_MEMORY for why in result["left"].values()) and not result["kernels"]:
                self.states.append(_state(entry, self.columns, states.OUT_OF_MEMORY, result))
        self.results += results
        if rows:
            _write(rows)
            self.records += len(rows)

    def fail(self, entry: Entry, why: str) -> None:
        """Keeps why a call could not be measured."""
        self.failed[entry.text()] = why
        if why == states.OUT_OF_MEMORY:
            self.states.append(_state(entry, self.columns, why))


def _write(rows: list[dict[str, Any]]) -> None:
    state = perf_records.database_state()
    if state["sqlite"] is not None:
        perf_records.write_database(rows)
        return
    path = Path(state["path"]).with_name("prior.records.json")
    kept = perf_records.read(path) if path.exists() else []
    new = {_identity(row) for row in rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    perf_records.write(path, [row for row in kept if _identity(row) not in new] + rows)


def _identity(row: dict[str, Any]) -> str:
    names = ("kernel_id", "operation", "device_id", "dtype", "axes", "options", "cache_state", "execution")
    return json.dumps([row[name] for name in names], sort_keys=True)


def _state(entry: Entry, columns: dict[str, Any], why: str, result: dict[str, Any] | None = None) -> dict[str, Any]:
    about: Any = result or _described(entry) or vars(entry)
    row = {name: about[name] for name in ("operation", "dtype", "axes", "options")}
    return row | {"name": entry.name, "call": entry.line, "device_id": columns["device_id"], "state": why}


def _described(entry: Entry) -> dict[str, Any] | None:
    """Returns the operation, dtype, axes and options of a call, without allocating it; None if it is refused."""
    from layerzero.errors import LayerZeroError
    from layerzero.tuning.draw import described

    try:
        report = lz.explain(entry.name, **described(entry.name, entry.line))
    except (LayerZeroError, ValueError, TypeError):
        return None
    axes = {axis: int(report.key[axis]) for axis in contracts()[entry.name]["axes"] if axis in report.key}
    return {
        "operation": report.operation,
        "dtype": report.key["dtype"],
        "axes": axes,
        "options": report.options.to_dict(),
        "kernels": [c.kernel_id for c in report.candidates if c.admissible and not c.reference],
    }


# ---- what to tune


def entries_of(target: Any, args: tuple[Any, ...], call: dict[str, Any], device: str) -> list[Entry]:
    """Returns the calls that tune() is asked for, with what their tables are filled with."""
    if isinstance(target, Workload):
        found = target.calls
    elif isinstance(target, str) and not _is_file(target):
        found = _of_operation(target, args, call, device)
    elif isinstance(target, str | PathLike):
        found = workload.read(fspath(target)).calls
    elif callable(target):
        with workload.record() as recording:
            target(*args, **call)
        found = recording.workload.calls
        if not found:
            fix = "lz.kernelize(model) first, or call operations of layerzero"
            raise InvalidRequestError("tune", "a function that calls operations", "one that called none", fix)
    else:
        raise WrongTypeError(
            "operation", "an operation, a workload or its file, a model or a function", type(target).__name__
        )
    return [e if e.drawn else replace(e, line=filled(e.line, e.axes), drawn=True) for e in found]


def _is_file(text: str) -> bool:
    return text.endswith(".json") or "/" in text


def _of_operation(operation: str, args: tuple[Any, ...], call: dict[str, Any], device: str) -> list[Entry]:
    name = flat_name(operation)
    cases = call.pop("cases", None)
    if cases is not None:
        return [Entry(name, str(line), device=device, drawn=True) for line in cases]
    if args or call:
        from layerzero.tuning.grid import line_of, lines_of_grid

        if not args and not any(hasattr(value, "dtype") and hasattr(value, "shape") for value in call.values()):
            return [Entry(name, line, device=device, drawn=True) for line in lines_of_grid(operation, call)]
        described = line_of(operation, args, call)
        return [described] if described.drawn else [replace(described, device=device)]
    from layerzero.bench.operations import all_cases, cases_folder

    found = all_cases([name], None if device == "cpu" else cases_folder() / "cuda")
    if not found:
        fix = f"pass shapes: lz.tune({operation!r}, input=..., weight=...), or cases=[...]"
        raise InvalidRequestError("tune", "an operation with bench cases, or a call", f"{name} alone", fix)
    return [Entry(name, case.line, device=device, drawn=True) for case in found]


# ---- the tuning


@typed
def tune(
    operation: Any,
    *args: Any,
    device: str | None = None,
    samples: int | None = None,
    budget_s: float | None = None,
    memory_mb: int = 0,
    modes: str | Sequence[str] = ("eager", "graph"),
    caches: str | Sequence[str] = ("cold", "warm"),
    shard: tuple[int, int] = (1, 1),
    variants: int = 0,
    imports: Sequence[str] = (),
    again: bool = False,
    ignore_environment: bool = False,
    on_step: Callable[[Step], None] | None = None,
    **call: Any,
) -> Record:
    """Measures every kernel of calls and writes the whole ranking to the performance database, which decides from then on.

    `operation`: an operation with tensors, shapes or nothing (the shipped cases); a workload, or the path of its file; a model or
    a function, which is called once with the other arguments to see which operations it calls.

    lz.tune("rms_norm", input=x, weight=w)
    lz.tune("attention.causal", dtype=torch.bfloat16, head_dim=128, seq_lens=[512, 2048], batch_sizes=[1, 8])
    lz.tune(model.generate, input_ids=ids, max_new_tokens=8)
    lz.tune("workload.json", budget_s=600, shard=(1, 4))

    Kernels run in another process: one that crashes or hangs is left out, and this process goes on. A kernel is timed once its
    result has been compared with the reference's, and replaces the default if it is faster beyond noise in the finals, again in
    reverse order, and in ordinary calls. Eager calls and CUDA graphs, warm and cold tensors are measured apart.

    device: "cpu" or "cuda:N", by default that of the calls. samples: rounds of the finals (perfdb.tune_samples). budget_s:
    time limit, no call begins after it. memory_mb: MiB that the process may use; what does not fit is "untuned: out of
    memory". shard: (i, n) tunes the i-th of n parts, i from 1. variants: finds the k kernels of each operation that lose
    least over the calls. imports: modules that register kernels, for the other process. again: measures calls again that
    the database already has. ignore_environment: times of a hot or busy machine decide too, not only as hints.

    Returns a Record: calls, winners, untuned, crashed, failed, records, seconds, budget, ok ...
    """
    for name, number in (("budget_s", budget_s or 0.0), ("memory_mb", memory_mb), ("variants", variants)):
        if not 0 <= number < math.inf:
            raise InvalidRequestError(f"tune: {name}", "a finite number, 0 or more", repr(number))
    options = Options(
        samples=samples,
        seconds=budget_s,
        memory_mb=memory_mb,
        modes=_subset("modes", modes, ("eager", "graph")),
        caches=_subset("caches", caches, ("cold", "warm")),
        shard=shard,
        variants=variants,
        imports=tuple(imports),
        again=again,
        ignore_environment=ignore_environment,
        on_step=on_step,
    )
    entries = entries_of(operation, args, call, device or _device_of(args, call))
    devices = sorted({device or entry.device for entry in entries})
    if len(devices) != 1:
        raise InvalidRequestError("device", "calls of one device", ", ".join(devices) or "no calls", "pass device=")
    return run(entries, replace(options, device=str(device_of("tune: device", devices[0]))))


def _subset(field_name: str, given: str | Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    wanted = (given,) if isinstance(given, str) else tuple(given)
    for one in wanted:
        if one not in known:
            raise InvalidRequestError(field_name, f"some of {', '.join(known)}", repr(one))
    if not wanted:
        raise InvalidRequestError(field_name, f"some of {', '.join(known)}", "none")
    return tuple(one for one in known if one in wanted)


def _device_of(args: tuple[Any, ...], call: dict[str, Any]) -> str:
    for value in (*args, *call.values()):
        where = getattr(value, "device", None)
        if where is not None and getattr(where, "type", None) == "cuda":
            return f"cuda:{where.index or 0}"
    return "cpu"


def sharded(entries: list[Entry], shard: tuple[int, int]) -> list[Entry]:
    """Returns the i-th of n parts of the calls, by their text: every process that is asked agrees, whatever the order."""
    part, parts = shard
    if not 1 <= part <= parts:
        raise InvalidRequestError("shard", "i/n with 1 <= i <= n", f"{part}/{parts}")
    ordered = sorted(entries, key=lambda e: e.text())
    mine = {e.text() for e in ordered[part - 1 :: parts]}
    return [e for e in entries if e.text() in mine]


def run(entries: list[Entry], options: Options) -> Record:
    """Tunes calls of one device."""
    from layerzero.tuning.environment import device_columns, environment, unusual

    if options.samples is not None and options.samples < 6:
        raise InvalidRequestError("samples", "at least 6 rounds", str(options.samples))
    start = time.monotonic()
    state = environment(options.device)
    columns = device_columns(options.device) | ({} if options.ignore_environment else state)
    session = Session(options, columns)
    chosen = sharded(_distinct(entries), options.shard)
    todo = chosen if options.again else [e for e in chosen if not _is_known(session, e)]
    session.known = len(chosen) - len(todo)
    try:
        _measure(session, todo, start)
    except KeyboardInterrupt:
        session.interrupted = "interrupted"
    finally:
        _layerzero.use_prior()
        done = [r | {"device_id": columns["device_id"]} for r in session.results if r["kernels"]]
        states.update(session.states, done)
    warning = "" if options.ignore_environment else unusual(state)
    return _report(session, chosen, columns, time.monotonic() - start, warning)


def _distinct(entries: Iterable[Entry]) -> list[Entry]:
    """Returns each call once, with the sum of its counts: its modes are all measured at once."""
    found: dict[str, Entry] = {}
    for entry in entries:
        known = found.get(entry.text())
        found[entry.text()] = replace(entry, count=entry.count + known.count) if known else entry
    return sorted(found.values(), key=lambda e: -e.count)


def _is_known(session: Session, entry: Entry) -> bool:
    """True if the database has every kernel of a call, of this run. Then its result is made of them."""
    about = _described(entry)
    if about is None or len(about["kernels"]) < 2:
        return False
    rows = [row for row in _rows(session) if all(row[k] == about[k] for k in ("operation", "dtype", "axes", "options"))]
    eager = {row["kernel_id"] for row in rows if row["execution"] == "eager"}
    modes = {row["execution"] for row in rows}
    wanted = set(session.options.modes) if session.options.device != "cpu" else {"eager"}
    return len(eager) > 1 and wanted <= modes


def _rows(session: Session) -> list[dict[str, Any]]:
    """Returns the rows of the database that were measured here as this session measures."""
    if "_rows" not in vars(session):
        state = perf_records.database_state()
        rows = perf_records.read_database() if state["sqlite"] is not None else []
        import torch

        from layerzero.tuning.records import PROTOCOL

        same = {"protocol": PROTOCOL, "torch_version": torch.__version__}
        names = ("device_id", "driver_version", "temperature", "memory_pressure", "power_state", "concurrent_work")
        same |= {name: session.columns.get(name) for name in names}
        kept = [r for r in rows if all(r.get(k) == v for k, v in same.items()) and _is_current(r)]
        vars(session)["_rows"] = kept
    return vars(session)["_rows"]


def _is_current(row: dict[str, Any]) -> bool:
    from layerzero.tuning.records import kernel_row

    try:
        kernel = kernel_row(flat_name(row["operation"]), row["kernel_id"])
    except StopIteration:
        return False
    return str(kernel.version) == row["kernel_version"] and kernel.library_version == row["backend_version"]


def _settings(session: Session, start: float) -> dict[str, Any]:
    import torch

    options, keys = session.options, policy_in_force()["keys"]
    return {
        "device": options.device,
        "rounds": options.samples or int(keys["perfdb.tune_samples"]["value"]),
        "caches": options.caches,
        "executions": options.modes,
        "columns": session.columns,
        "denied": session.crashed,
        "seed": 0,
        "until": None if options.seconds is None else start + options.seconds,
        "threads": torch.get_num_threads(),
        "imports": options.imports,
        "memory_mb": options.memory_mb,
        "policy": _changed(keys),
    }


def _changed(keys: dict[str, Any]) -> dict[str, Any]:
    """Returns the policy's keys that are not defaults, for the other process: what code has set is known to this one alone."""
    nested: dict[str, Any] = {}
    for name, entry in keys.items():
        section, dot, key = name.partition(".")
        if entry["origin"] != "default" and section not in ("perfdb", "metrics", "trace", "version", "log_json"):
            if dot:
                nested.setdefault(section, {})[key] = entry["value"]
            else:
                nested[section] = entry["value"]
    return nested


def _measure(session: Session, todo: list[Entry], start: float) -> None:
    options, begun = session.options, time.monotonic()
    timeout = max(HANG_S, isolation().timeout_s)
    if not todo:
        return
    with workers(_settings(session, start), timeout, options.nice) as worker:
        for number, entry in enumerate(todo):
            if options.seconds is not None and time.monotonic() - start > options.seconds:
                session.interrupted = "out_of_time"
                return
            _measure_one(session, entry, worker)
            if len(session.crashed) >= MOST_CRASHES:
                session.interrupted = "too_many_crashes"
                return
            if options.on_step:
                took = time.monotonic() - begun
                left = took / (number + 1) * (len(todo) - number - 1)
                options.on_step(Step(number + 1, len(todo), entry.text(), took, left))


def _measure_one(session: Session, entry: Entry, worker: Callable[[], Worker]) -> None:
    """Measures a call. A kernel that ends the worker is left out, and the call is measured again without it."""
    for _ in range(MOST_CRASHES):
        try:
            running = worker()
            running.deny(session.crashed)
            answer = running.tune(entry.name, entry.line)
        except Ended as end:
            if not end.kernel:
                session.fail(entry, f"the process that measures has ended: {end.how}")
                return
            session.crashed[f"{entry.name} {end.kernel}"] = end.how
            if len(session.crashed) >= MOST_CRASHES:
                return
            continue
        if answer["event"] == "failed":
            session.fail(entry, answer["why"])
            if answer["lost"]:
                running.end()
        else:
            session.add(entry, answer["results"])
        return


# ---- the report


def _report(session: Session, chosen: list[Entry], columns: dict[str, Any], seconds: float, warning: str) -> Record:
    winners = [r for r in session.results if r["winner"] and r["winner"] != r["default"]]
    report: dict[str, Any] = {
        "device_id": columns["device_id"],
        "calls": len(chosen),
        "known": session.known,
        "measured": len({(r["name"], r["line"]) for r in session.results if r["kernels"]}),
        "records": session.records,
        "winners": len(winners),
        "expected_gain": _expected(session.results),
        "results": session.results,
        "crashed": session.crashed,
        "failed": session.failed,
        "untuned": [{"name": s["name"], "call": s["call"], "state": s["state"]} for s in session.states],
        "environment": {
            k: columns.get(k) for k in ("temperature", "memory_pressure", "power_state", "concurrent_work")
        },
        "warning": warning,
        "database": perf_records.database_state()["path"],
        "seconds": seconds,
        "budget_s": session.options.seconds,
        "ok": not session.interrupted and not session.failed,
    }
    if session.options.variants:
        report["variants"] = best_variants(session.results, session.options.variants)
    if session.interrupted == "interrupted":
        report["interrupted"] = True
    elif session.interrupted:
        report[session.interrupted] = True
    return Record(report)


def _expected(results: list[dict[str, Any]]) -> dict[str, float] | None:
    """Returns the share of the calls' time that the winners save, weighted by how often each occurs, with its interval; of
    the cold times, where there are any, as selection takes them."""
    chosen: dict[tuple[str, str, str], dict[str, Any]] = {}
    for r in results:
        key = (r["name"], r["line"], r["execution"] or "")
        if r["kernels"] and (key not in chosen or r["cache_state"] == "cold"):
            chosen[key] = r
    total = sum(r["count"] * _us(r, r["default"]) for r in chosen.values())
    if not total:
        return None

    def saved(gain: str) -> float:
        return sum(r["count"] * _us(r, r["default"]) * (1 - 1 / (1 + r[gain])) for r in chosen.values()) / total

    return {"share": saved("gain"), "low": saved("gain_low"), "high": saved("gain_high")}


def _us(result: dict[str, Any], kernel: str) -> float:
    return next(row["us"] for row in result["kernels"] if row["kernel_id"] == kernel)


def best_variants(results: list[dict[str, Any]], k: int) -> list[dict[str, Any]]:
    """Returns, for each operation, the k kernels that lose least over its calls, and what they lose: the mean of time / best
    time, less 1. A call that none of them serves counts as a thousand times its best."""
    by_operation: dict[str, list[dict[str, Any]]] = {}
    for r in results:
        if r["kernels"]:
            by_operation.setdefault(r["name"], []).append(r)
    found = []
    for name, those in sorted(by_operation.items()):
        kernels = sorted({row["kernel_id"] for r in those for row in r["kernels"]})
        times = [{row["kernel_id"]: row["us"] for row in r["kernels"]} for r in those]
        us = [of.get(kernel, math.inf) for of in times for kernel in kernels]
        indices, loss = _layerzero.best_variants(us, [float(r["count"]) for r in those], len(kernels), k)
        found.append({"operation": name, "kernels": [kernels[i] for i in indices], "loss": loss, "of": len(kernels)})
    return found
