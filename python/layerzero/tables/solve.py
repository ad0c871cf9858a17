"""`solve`: decisions of selection for whole buckets of sizes, as a dispatch table.

A bucket is a range of each size, up to and including its value. Within one, selection may decide differently where some
kernel's constraint or some measured time begins to hold: the engine says from where to where a decision holds (the class
of the call), and `solve` asks again below. An entry has its class as its condition, cut at the ends of the bucket, so that
a table never decides a call that selection would decide otherwise.
"""

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import layerzero as lz
from layerzero import _layerzero, backends
from layerzero.contracts import contracts, flat_name
from layerzero.errors import InvalidRequestError, NoKernelFoundError, WrongTypeError, failures_of
from layerzero.host.policy import scope
from layerzero.host.typed import typed
from layerzero.inspection import kernel_rows
from layerzero.tables import DispatchTable, engine
from layerzero.tables.calls import Call, calls_of, recorded_calls, steps_of
from layerzero.tables.compiling import Compiler

Buckets = Mapping[str, Sequence[int]]
DEFAULT_BUCKETS: Buckets = {"seq_len": (128, 512, 2048, 8192, 32768), "batch": (1, 4, 16, 64, 256)}
MOST_ENTRIES = 200_000


@typed
def solve(
    model: Any,
    shape_buckets: Buckets | None = None,
    *,
    device: str | None = None,
    model_id: str | None = None,
    numerics: str | None = None,
    tp_invariant: bool = False,
    tp_sizes: Sequence[int] = (),
    capturing: bool = False,
    plan_mode: bool | None = None,
    expected_calls: int = 1000,
    compile_jit: bool = False,
    budget_s: float | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> DispatchTable:
    """Returns the table of a model or of calls: the kernel that selection would choose, for buckets of sizes.

    model: a model of Transformers, the plan that lz.compile or lz.dry_run returned, calls as text, one per line, with
    names of buckets as sizes: "attention --query bf16[batch,seq_len,32,128] --key ... --causal true"; or a workload that was
    recorded (`lz.record`), or the path of its file ("workload.json"): each of its classes of calls has an entry.
    shape_buckets: ascending sizes by name; default: those names that `model` uses of
    seq_len 128, 512, 2048, 8192, 32768 and batch 1, 4, 16, 64, 256.
    numerics: the only numerics class that kernels may have, "default" for those that declare none. tp_invariant: only
    kernels whose results do not depend on the tensor-parallel size, which then may be one of `tp_sizes` (empty: any).
    Processes that load such a table need the same policy, which `document["policy"]` has.
    capturing: decisions for calls inside a CUDA graph capture. plan_mode: joins neighboring operations by cost; default: the
    policy's. expected_calls: what packing weights once is spread over.
    compile_jit: first compiles the kernels that the calls at the ends of buckets would get if they were compiled, on a thread
    of its own as `lz.warmup` does, and waits for at most `budget_s` seconds (None: as long as it takes). What was not compiled then, or
    failed, is in `document["uncompiled"]`, and the table has the kernels that serve meanwhile.

    Kernels that were compiled while the process ran are named by their artifacts (`jit_artifacts`), so that
    `lz.readiness_check` of another process sees what it lacks.

    InvalidRequestError: a name without buckets, sizes that do not ascend, budget_s without compile_jit; NoKernelFoundError: no kernel may run a call.
    """
    _check_budget(compile_jit, budget_s)
    backends.ensure_registered()
    chains, own_id = _chains(model, shape_buckets, device)
    device = device or chains[0][0].device
    buckets = _checked(shape_buckets, {name for chain in chains for call in chain for name in call.names})
    restrict: dict[str, Any] = {"tp": {"require_tp_invariant": True}} if tp_invariant else {}
    restrict |= {"forbid_numerics": _others(numerics)} if numerics is not None else {}
    with lz.policy(**restrict) if restrict else contextlib.nullcontext(), _no_table():
        identity = engine("identity", device=device or "", policy=scope.get())
        policy = json.loads(_layerzero.policy_text(scope.get()))["keys"]
        joins = policy["plan_mode"]["value"] if plan_mode is None else plan_mode
        plans: dict[str, dict[str, Any]] = {}
        seen: set[str] = set()
        joint: list[dict[str, Any]] = []
        choices: dict[str, dict[str, Any]] = {}
        compiler = Compiler(budget_s) if compile_jit else None
        for call in itertools.chain(*chains) if compiler else ():
            progress(f"compiling for {call.text}")
            while compiler and compiler.compile(call, _reports(call, buckets, device, capturing)):
                pass  # where one fails the next best may have to be compiled
        for chain in chains:
            for call in chain:
                progress(call.text)
                for bucket, entry, artifact in _entries(call, buckets, device, capturing, choices):
                    same = json.dumps([entry["op"], entry["when"]], sort_keys=True)
                    if same in seen:
                        continue
                    seen.add(same)
                    plan = plans.setdefault(json.dumps(bucket), {"bucket": bucket, "ops": [], "jit_artifacts": []})
                    plan["ops"].append(entry)
                    if artifact is not None and artifact not in plan["jit_artifacts"]:
                        plan["jit_artifacts"].append(artifact)
                    if len(seen) > MOST_ENTRIES:
                        raise InvalidRequestError("shape_buckets", f"at most {MOST_ENTRIES} entries", "more")
            if joins:
                from layerzero.tables.joint import join

                joint += join(chain, buckets, device, capturing, expected_calls)
        for one in joint:
            if json.dumps(one["bucket"]) in plans:
                plans[json.dumps(one["bucket"])].setdefault("joint", []).append(one["text"])
    document = {
        "schema_version": "1.0",
        "model_id": model_id or own_id,
        **identity,
        "numerics": numerics,
        "tp_invariant": tp_invariant,
        "tp_sizes": sorted(tp_sizes),
        "capturing": capturing,
        "shape_buckets": {name: list(values) for name, values in buckets.items()},
        "plan_mode": joins,
        "joint": joint,
        "choices": [choices[name] for name in sorted(choices)],
        "plans": list(plans.values()),
        **({"uncompiled": compiler.uncompiled} if compiler else {}),
        "fallback": {"mode": "runtime_select"},
    }
    return DispatchTable(document, model_id or own_id)


@contextlib.contextmanager
def _no_table() -> Iterator[None]:
    """Selection decides by itself: a table in force is not copied into the next one."""
    engine("ignore", on=True)
    try:
        yield
    finally:
        engine("ignore", on=False)


def _chains(what: Any, shape_buckets: Buckets | None, device: str | None) -> tuple[list[list[Call]], str]:
    """Returns lists of calls that follow each other, and a name."""
    from layerzero.tuning import workload

    if isinstance(what, os.PathLike) or (isinstance(what, str) and what.endswith(".json") and " --" not in what):
        what = workload.read(what)
    if isinstance(what, workload.Workload):
        return [[call] for call in recorded_calls(what, device)], "workload"
    if isinstance(what, str) or (isinstance(what, Iterable) and not hasattr(what, "parameters")):
        return [calls_of(what)], "operations"
    plan, name = what, "model"
    if hasattr(what, "parameters"):
        name = getattr(getattr(what, "config", None), "_name_or_path", "") or type(what).__name__
        plan = lz.dry_run(what)
    if not hasattr(plan, "steps"):
        wanted = "a model, a plan of lz.compile or lz.dry_run, or calls as text"
        raise InvalidRequestError("solve", wanted, type(what).__name__)
    first = {name: values[0] for name, values in {**DEFAULT_BUCKETS, **(shape_buckets or {})}.items()}
    return [[*steps] for steps in steps_of(plan, first)], name


def _checked(given: Buckets | None, used: set[str]) -> dict[str, tuple[int, ...]]:
    for name, sizes in (given or {}).items():
        if isinstance(sizes, str) or not isinstance(sizes, Iterable):
            raise WrongTypeError(f"shape_buckets: {name}", "a list of sizes", repr(sizes))
    buckets = {name: tuple(values) for name, values in (given or DEFAULT_BUCKETS).items()}
    for name in sorted(used - buckets.keys()):
        raise InvalidRequestError(f"shape_buckets: {name}", "sizes, since the calls use the name", "none")
    for name, values in buckets.items():
        ascending = all(a < b for a, b in itertools.pairwise(values))
        if not values or not ascending or not all(type(v) is int and v > 0 for v in values):
            raise InvalidRequestError(f"shape_buckets: {name}", "positive sizes that ascend", repr(values))
    return {name: values for name, values in buckets.items() if name in used}


def _check_budget(compile_jit: bool, budget_s: Any) -> None:
    if budget_s is None:
        return
    if not compile_jit:
        raise InvalidRequestError("budget_s", "compile_jit=True with it", "budget_s alone", "nothing else takes long")
    number = isinstance(budget_s, int | float) and not isinstance(budget_s, bool)
    if not number or not 0 <= budget_s < math.inf:
        raise InvalidRequestError("budget_s", "seconds, or None for no end", repr(budget_s))


def _others(numerics: str) -> list[str]:
    known = {kernel["numerics"] for kernel in kernel_rows(constraints=False)} - {""}
    if numerics != "default" and numerics not in known:
        raise InvalidRequestError("numerics", f"default or one of {', '.join(sorted(known))}", repr(numerics))
    return sorted(known - {numerics})


Bucket = dict[str, int]


def _entries(
    call: Call,
    buckets: Mapping[str, tuple[int, ...]],
    device: str | None,
    capturing: bool,
    choices: dict[str, dict[str, Any]],
) -> Iterator[tuple[Bucket, dict[str, Any], str | None]]:
    """Yields every entry of a call with its bucket and the key of its compiled code, if it has any; adds to `choices` those at
    the ends of buckets, by their class."""
    names = [name for name in buckets if name in call.names]
    explained: dict[tuple[int, ...], dict[str, Any]] = {}

    def ask(sizes: Bucket) -> dict[str, Any]:
        point = tuple(sizes[name] for name in names)
        if point not in explained:
            explained[point] = call.explain(sizes, device, capturing)
        return explained[point]

    rates = _rates(ask, names, {name: buckets[name] for name in names})
    for corner in itertools.product(*(buckets[name] for name in names)):
        bucket = dict(zip(names, corner, strict=True))
        least = {name: _before(buckets[name], size) for name, size in bucket.items()}
        steps = [list(_points(ask, name, bucket, least[name], rates)) for name in names]
        for sizes in itertools.product(*steps):
            at = dict(zip(names, sizes, strict=True))
            entry = _entry(call, ask(at), at, bucket, least, buckets, rates)
            if at == bucket:
                choice = _choice(call, ask(at), entry)
                choices[choice["class"]] = choice
            yield bucket, entry, _artifact(ask(at))


def _reports(
    call: Call, buckets: Mapping[str, tuple[int, ...]], device: str | None, capturing: bool
) -> Iterator[tuple[Bucket, dict[str, Any]]]:
    """Yields the reports of a call at the ends of its buckets, each with its sizes."""
    names = [name for name in buckets if name in call.names]
    for corner in itertools.product(*(buckets[name] for name in names)):
        sizes = dict(zip(names, corner, strict=True))
        yield sizes, call.explain(sizes, device, capturing)


def _artifact(report: dict[str, Any]) -> str | None:
    """Returns the key of the chosen kernel's compiled code (layerzero.jit.store); None where no file has it: the kernel is
    not compiled while the process runs, or its library keeps the code in a folder of the user."""
    kind = report["plan"]["jit_kind"]
    if kind is None:
        return None
    from layerzero.jit import library, store

    device = {"device": report["device"]["name"]}
    key = library.key_of(report["kernel_id"], report["operation"], tuple(kind), device)
    return key if store.read(key) is not None else None


def _before(values: Sequence[int], size: int) -> int:
    place = values.index(size)
    return values[place - 1] if place else 0


def _numbers(report: dict[str, Any]) -> dict[str, int]:
    """Returns the facts of a report that are whole numbers: axes and what follows from them."""
    return {name: int(text) for name, text in report["key"].items() if text.lstrip("-").isdecimal()}


# Fact -> name of a size -> the fact's value for each unit of it; None where it is no multiple.
Rates = dict[str, dict[str, float | None]]


def _rates(ask: Callable[[Bucket], dict[str, Any]], names: list[str], buckets: Mapping[str, tuple[int, ...]]) -> Rates:
    """Returns how the facts of a call follow from the sizes, by changing one size at a time."""
    base = {name: values[-1] for name, values in buckets.items()}
    first = _numbers(ask(base))
    rates: Rates = {}
    for name in names:
        other = {**base, name: max(1, base[name] // 2)}
        second = _numbers(ask(other))
        for fact, value in first.items():
            changed = second.get(fact, value)
            if changed == value:
                continue
            proportional = value * other[name] == changed * base[name]
            rates.setdefault(fact, {})[name] = value / base[name] if proportional else None
    return rates


def _points(
    ask: Callable[[Bucket], dict[str, Any]], name: str, bucket: Bucket, least: int, rates: Rates
) -> Iterator[int]:
    """Yields the sizes of a bucket at which a class ends, from its end down."""
    size = bucket[name]
    while size > least:
        yield size
        report = ask({**bucket, name: size})
        numbers, below = _numbers(report), least
        for fact, range_of in report["class"].items():
            rate = rates.get(fact, {}).get(name)
            if not isinstance(range_of, list) or range_of[0] is None or fact not in numbers or not rate:
                continue
            here = numbers[fact] / size  # with the other sizes as they are
            below = max(below, math.ceil(range_of[0] / here - 1e-9) - 1)
        size = min(below, size - 1)


def _entry(
    call: Call,
    report: dict[str, Any],
    at: Bucket,
    bucket: Bucket,
    least: Bucket,
    buckets: Mapping[str, tuple[int, ...]],
    rates: Rates,
) -> dict[str, Any]:
    if report["kernel_id"] is None:
        raise NoKernelFoundError(report["operation"], failures_of(report), f"{call.at(at)}: no kernel may run")
    when = dict(report["class"])
    numbers = _numbers(report)
    for fact, of in rates.items():
        if fact not in numbers or None in of.values():
            continue
        low, high = 1, numbers[fact]
        for name in of:
            high = high * buckets[name][-1] // at[name]
        if len(of) == 1:
            (name,) = of
            low, high = numbers[fact] * least[name] // at[name] + 1, numbers[fact] * bucket[name] // at[name]
        known = when.get(fact)
        first, last = known if isinstance(known, list) else (None, None)
        when[fact] = [max(low, first or low), min(high, high if last is None else last)]
    times = {c["kernel_id"]: c["measured_us"] for c in report["candidates"] if c["admissible"] and "measured_us" in c}
    rivals = sorted((us, kernel) for kernel, us in times.items() if kernel != report["kernel_id"])
    return {
        "op": report["operation"],
        "kernel_id": report["kernel_id"],
        "when": when,
        "us": times.get(report["kernel_id"]),
        "rival": rivals[0][1] if rivals else None,
        "rival_us": rivals[0][0] if rivals else None,
        "count": call.count,
        "transforms": [t["kind"] + " " + t["tensor"] for t in report["plan"]["transforms"]],
        "call": call.at(at),
    }


def _choice(call: Call, report: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the line of a lock for the call at the end of a bucket."""
    keys = ("kernel_id", "us", "rival", "rival_us")
    return {"class": class_text(report), **{key: entry[key] for key in keys}, "count": call.count}


def class_text(report: dict[str, Any]) -> str:
    """Returns "attention.causal b=4 s_q=512 ... dtype=bfloat16": what is equal in two installations for one call."""
    axes = contracts()[flat_name(report["name"])]["axes"]
    parts = [f"{name}={report['key'][name]}" for name in axes if name in report["key"]]
    parts += [f"dtype={report['key']['dtype']}"] if "dtype" in report["key"] else []
    parts += [f"{name}={value}" for name, value in sorted(report["options"].items())]
    parts += ["capturing"] if report["key"].get("capturing") == "true" else []
    return " ".join([report["operation"], *parts])
