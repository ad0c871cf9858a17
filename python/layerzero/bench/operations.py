"""Times of every kernel that can serve a call, rooflines, the regret of selection, and measured priors.

Each round times all kernels of a call in turns, and the first one again (A/A). Kernels are compared with the
operation's torch reference before they are timed; a kernel without a rival is timed together with the reference.
Selection is judged on held-out rounds: records come from the even rounds, the regret (time of the chosen kernel / time
of the best) from the odd ones.
"""

import itertools
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import layerzero as lz
from layerzero import _layerzero, perf_records
from layerzero.bench.cases import arguments_of
from layerzero.bench.ranking import FOLDS, p99, record, use
from layerzero.contracts import contracts
from layerzero.errors import NotInstalledError
from layerzero.tuning.core import Clock, Side
from layerzero.tuning.draw import arguments_on
from layerzero.tuning.gate import TOLERANCE
from layerzero.tuning.sides import COLD_BYTES


def cases_folder() -> Path:
    staged = Path(lz.__file__).parent / "_bench"
    if not staged.is_dir():
        raise NotInstalledError(str(staged), "the cases of bench/ops", "none", "install LayerZero again")
    return staged


@dataclass
class Case:
    """One call: `line` in the grammar of conformance cases; cold: every call reads different memory."""

    operation: str
    line: str
    cold: bool
    samples: dict[str, list[float]] = field(default_factory=dict)  # kernel id -> us of each round
    stream: list[float] = field(default_factory=list)  # us to read the same bytes, from caches or memory like the call
    copy: list[float] = field(default_factory=list)  # us to read them and to write as many as the call writes
    again: list[float] = field(default_factory=list)  # the first kernel again
    reference: list[float] = field(default_factory=list)  # torch's expression, if only one kernel serves the call
    about: dict[str, Any] = field(default_factory=dict)  # "operation" (the id), "axes", "options", "dtype", "bytes"
    call: dict[str, Any] = field(default_factory=dict)  # arguments of the call
    chosen: str = ""  # the kernel that runs on this machine by default
    regrets: dict[str, float] = field(default_factory=dict)  # by how the kernel was chosen
    drawn: bool = False  # the line is in the grammar of layerzero.tuning.draw, as that of a call with sizes by name


_PRODUCT = re.compile(r"\d+(?:\*\d+)+")


def _value(product: re.Match[str]) -> str:
    return str(math.prod(map(int, product[0].split("*"))))


def read_cases(text: str, operation: str) -> Iterator[Case]:
    """`for A in 1 2; for B,C in 3,4 5,6` sets {A}, {B} for the indented lines below. A line may begin with `cold`.

    A size may be a product: 18*{B}.
    """
    combinations: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("for "):
            loops = []
            for loop in line.split(";"):
                names, _, values = loop.strip().removeprefix("for ").partition(" in ")
                keys = names.split(",")
                parts = [value.split(",") if len(keys) > 1 else [value] for value in values.split()]
                loops.append([dict(zip(keys, one, strict=True)) for one in parts])
            combinations = [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*loops)]
            continue
        for names_and_values in combinations:
            call = _PRODUCT.sub(_value, line.strip().format(**names_and_values))
            yield Case(operation, call.removeprefix("cold "), call.startswith("cold "))


def all_cases(operations: list[str] | None = None, folder: Path | None = None) -> list[Case]:
    found: list[Case] = []
    for path in sorted((folder or cases_folder()).glob("*.cases")):
        if operations is None or path.stem in operations:
            found += read_cases(path.read_text(encoding="utf-8"), path.stem)
    return found


def _first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def _written(results: Any, arguments: dict[str, Any]) -> int:
    """Returns the bytes of results that are not arguments changed in place."""
    given = {a.data_ptr() for a in arguments.values() if isinstance(a, torch.Tensor)}
    results = results if isinstance(results, tuple) else (results,)
    return sum(t.nbytes for t in results if isinstance(t, torch.Tensor) and t.data_ptr() not in given)


def _read(*tensors: tuple[int, int]) -> None:
    for address, size in tensors:
        _layerzero.read_stream(address, size)


def _steps(read: list[tuple[int, int]], to: int, left: int) -> list[tuple[int, int, int]]:
    """Returns (from, to, bytes) steps that read all of `read` and write `left` bytes from `to` on; to = 0: only reads.

    If more is written than read, memory is copied repeatedly.
    """
    read = [(address, size // 8 * 8) for address, size in read if size >= 8]
    left = left // 8 * 8 if read else 0
    steps, again = [], False
    while True:
        for address, size in read:
            copied = min(size, left)
            steps.append((address, to, copied))
            steps.append((address + copied, 0, 0 if again else size - copied))
            to, left = to + copied, left - copied
        if left == 0:
            return [step for step in steps if step[2]]
        again = True


def _copy(*steps: tuple[int, int, int]) -> None:
    for start, to, size in steps:
        if to:
            _layerzero.copy_stream(start, to, size)
        else:
            _layerzero.read_stream(start, size)


def _check(case: Case, results: dict[str, torch.Tensor], wanted: torch.Tensor) -> None:
    for kernel, result in results.items():
        if not wanted.is_floating_point():
            continue  # sampled ids: conformance tests their distribution
        error = torch.linalg.vector_norm(result.double() - wanted.double())
        rounds = case.call.get("activations") == "int8"  # a value halfway between two integers may round to either
        bound = max(TOLERANCE[wanted.dtype], 1e-2 if rounds else 0) * torch.linalg.vector_norm(wanted.double())
        if not error <= bound:
            raise RuntimeError(f"{case.operation} {case.line}: {kernel} is off by {error:.3g}, allowed {bound:.3g}")


def measure(case: Case, rounds: int) -> None:
    """Fills in the case; one that only references serve gets no samples."""
    read_line = partial(arguments_on, "cpu") if case.drawn else arguments_of
    arguments = read_line(case.operation, case.line)
    names = [p["name"] for p in contracts()[case.operation]["params"] if p["kind"] == "tensor"]
    while not isinstance(arguments.get(names[-1]), torch.Tensor):
        names.pop()  # a prepared call takes tensors in this order
    tensors: dict[str, Any] = {name: arguments.get(name) for name in names}
    report = lz.explain(case.operation, **arguments)
    admitted = [c for c in report.candidates if c.admissible]
    kernels = [c.kernel_id for c in admitted if not c.reference]
    function = getattr(lz, case.operation)
    reference = next(c.kernel_id for c in admitted[::-1] if c.reference)
    results = function(**arguments, kernel=reference)
    wanted = _first(results)
    unread = {"weight"} if tensors.get("packed") is not None else set()
    read = [name for name, t in tensors.items() if t is not None and name not in unread]
    written = _written(results, arguments)
    size = sum(tensors[name].nbytes for name in read) + written
    axes = {name: int(report.key[name]) for name in contracts()[case.operation]["axes"] if name in report.key}
    case.about = {"operation": report.operation, "dtype": report.key["dtype"], "axes": axes}
    case.about |= {"options": report.options.to_dict(), "bytes": size}
    case.call = arguments
    _check(case, {k: _first(function(**arguments, kernel=k)) for k in kernels}, wanted)
    count = max(1, min(16, -(-COLD_BYTES // size))) if case.cold else 1
    copies = [tensors] + [{k: None if t is None else t.clone() for k, t in tensors.items()} for _ in range(count - 1)]
    parts = [[turn[name] for name in read] for turn in copies]
    large = [tuple((t.data_ptr(), t.nbytes) for t in part if t.nbytes * 64 > size) for part in parts]
    output = torch.empty(written, dtype=torch.uint8)  # one for all turns, as an allocator would reuse the last one
    copied = [tuple(_steps(list(part), output.data_ptr(), written)) for part in large if written * 64 > size and part]
    turns = [tuple(turn.values()) for turn in copies]
    calls = {k: lz.prepare(case.operation, **arguments, kernel=k) for k in kernels}
    clock, sides = Clock(), {kernel: Side(call, tuple(turns)) for kernel, call in calls.items()}
    for side in sides.values():
        clock.prepare(side)
    _in_rounds(case, clock, sides, rounds, _others(case, kernels, reference, tuple(turns), large, copied, sides))
    case.chosen = report.kernel_id


def _others(
    case: Case,
    kernels: list[str],
    reference: str,
    turns: tuple[tuple[Any, ...], ...],
    large: list[tuple[Any, ...]],
    copied: list[tuple[Any, ...]],
    sides: dict[str, Side],
) -> list[tuple[list[float], Side]]:
    """Returns what is timed after the kernels of each round, and where its times go."""
    loops = max((side.loops for side in sides.values()), default=1)
    found = []
    if large[0]:
        found.append((case.stream, Side(_read, tuple(large), loops=loops)))
    if copied:
        found.append((case.copy, Side(_copy, tuple(copied), loops=loops)))
    if len(kernels) == 1:
        found.append((case.reference, Side(lz.prepare(case.operation, **case.call, kernel=reference), turns)))
    return found


def _in_rounds(
    case: Case, clock: Clock, sides: dict[str, Side], rounds: int, others: list[tuple[list[float], Side]]
) -> None:
    case.samples = {kernel: [] for kernel in sides}
    for number in range(rounds if sides else 0):
        order = list(sides) if number % 2 else list(sides)[::-1]
        lists = [case.samples[kernel] for kernel in order] + [times for times, _ in others] + [case.again]
        timed = [sides[k] for k in order] + [side for _, side in others] + [next(iter(sides.values()))]
        for times, (us, _) in zip(lists, clock.samples(timed, range(len(timed))), strict=True):
            times.append(us)


def records(cases: list[Case], rounds: slice = slice(None)) -> list[dict[str, Any]]:
    """Returns measured records (schemas/records.schema.json) of these rounds for every call with several kernels."""
    device = _layerzero.device_id("cpu")
    kernels = {k.kernel_id: k for k in lz.list_kernels()}
    made = {}
    for case in cases:
        if len(case.samples) < 2:
            continue
        for kernel, samples in case.samples.items():
            state = "cold" if case.cold else "warm"
            row = record(case.about, kernels[kernel], samples[rounds], device_id=device, cache_state=state)
            made[(kernel, *(str(row[k]) for k in ("operation", "dtype", "axes", "options", "cache_state")))] = row
    return list(made.values())


def _spread(case: Case) -> float:
    """Returns the A/A spread: the median relative difference of the same kernel within a round."""
    first = next(iter(case.samples.values()))
    return statistics.median(abs(b / a - 1) for a, b in zip(first, case.again, strict=True))


def _regret(case: Case, chosen: str) -> float:
    """Returns time of the chosen kernel / time of the best by even rounds, on odd rounds; 1 if within A/A."""
    best = min(case.samples, key=lambda kernel: statistics.median(case.samples[kernel][::2]))
    pairs = zip(case.samples[chosen][1::2], case.samples[best][1::2], strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    return ratio if ratio > 1 + _spread(case) else 1.0


def _summary(regrets: list[float]) -> dict[str, float]:
    ordered = sorted(regrets)
    return {
        "mean": statistics.fmean(regrets),
        "p99": p99(ordered),
        "max": ordered[-1],
        "calls": len(regrets),
    }


def _chosen(case: Case) -> str:
    return lz.explain(case.operation, **case.call).kernel_id


def selection(cases: list[Case]) -> dict[str, Any]:
    """Returns the regret by priorities alone, with records of the same calls, and of other calls (held out)."""
    rivals = [case for case in cases if len(case.samples) > 1]
    if not rivals:
        return {}
    chosen: dict[str, dict[int, str]] = {"priorities": {}, "measured": {}, "held_out": {}}
    try:
        use([])
        chosen["priorities"] = {id(c): _chosen(c) for c in rivals}
        use(records(rivals, slice(None, None, 2)))
        chosen["measured"] = {id(c): _chosen(c) for c in rivals}
        order = random.Random(7).sample(rivals, len(rivals))
        for fold in range(FOLDS):
            out = {id(case) for case in order[fold::FOLDS]}
            use(records([c for c in rivals if id(c) not in out], slice(None, None, 2)))
            chosen["held_out"] |= {id(c): _chosen(c) for c in rivals if id(c) in out}
    finally:
        _layerzero.use_prior()
    for case in rivals:
        case.regrets = {how: _regret(case, found[id(case)]) for how, found in chosen.items()}
    return {how: _summary([case.regrets[how] for case in rivals]) for how in chosen}


_STORED = ("numbers", "half_bytes", "integers", "floats")  # StoredAs and MultipliedAs of bench/roofline/roofline.h
_MULTIPLIED = ("f32", "bf16", "int8")
_INTEGERS = {"int8", "uint8", "q8_0"}  # 8-bit integer formats; fp8_e4m3 and similar are floats


def roofs(bytes_read: int = 256 << 20, rounds: int = 9) -> dict[str, Any]:
    """Returns the best of some rounds: "stream_gb_s" of reading memory, "f32_gflop_s" of multiply-adds in registers,
    "weights_g_s" of products with quantized weights, by how they are stored and multiplied, as far as this CPU has a
    loop. Loops take tens of milliseconds, because waiting threads may take 4 ms to start.
    """
    data = torch.ones(bytes_read // 4)
    stream, gflops = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        _layerzero.read_stream(data.data_ptr(), data.nbytes)
        stream.append(data.nbytes / (time.perf_counter() - start) / 1e9)
        start = time.perf_counter()
        count = _layerzero.multiply_adds(30_000_000)
        gflops.append(2 * count / (time.perf_counter() - start) / 1e9)
    weights = {
        f"{stored} {multiplied}": rate
        for s, stored in enumerate(_STORED)
        for m, multiplied in enumerate(_MULTIPLIED)
        if (rate := max(_weights_rate(s, m) for _ in range(rounds)))
    }
    return {"stream_gb_s": max(stream), "f32_gflop_s": max(gflops), "weights_g_s": weights}


def _weights_rate(stored: int, multiplied: int) -> float:
    start = time.perf_counter()
    count = _layerzero.multiply_weights(stored, multiplied, 100_000)
    return count / (time.perf_counter() - start) / 1e9


def _multiply_adds(about: dict[str, Any]) -> int:
    """Returns the multiply-adds of a call, 0 if it is not bound by them."""
    axes, operation = about["axes"], about["operation"]
    if operation.startswith("mlp.linear"):
        return axes["..."] * axes["n"] * axes["k"]
    if not operation.startswith("attention."):
        return 0
    if "blocks" in axes:  # the sequences of a case fill all blocks of its cache
        return axes["h_q"] * axes["blocks"] * axes["block_size"] * (axes["d_qk"] + axes["d_v"])
    hidden = (axes["s_q"] - 1) / 2 if about["options"].get("causal") == "true" else 0
    return int(axes["b"] * axes["h_q"] * axes["s_q"] * (axes["s_kv"] - hidden) * (axes["d_qk"] + axes["d_v"]))


def _compute_us(about: dict[str, Any], roof: dict[str, Any]) -> float:
    """Returns the minimum time of the arithmetic: every weight is decoded once and multiplied with the first row,
    further rows cost a multiply-add each.
    """
    adds, options = _multiply_adds(about), about["options"]
    as_float = roof["f32_gflop_s"] * 1e3 / 2  # multiply-adds per us
    multiplied = "int8" if options.get("activations") == "int8" else about["dtype"]
    weights = {name: rate * 1e3 for name, rate in roof["weights_g_s"].items()}
    if not about["operation"].startswith("mlp.linear") or "..." not in about["axes"]:
        return adds / as_float
    further = weights.get(
        f"numbers {multiplied}", weights.get("integers int8", as_float) if multiplied == "int8" else as_float
    )
    rows = max(1, about["axes"]["..."])
    first = weights.get(f"{_stored(options)} {'f32' if multiplied == 'f16' else multiplied}", further)
    return adds / rows / min(first, further) + adds / rows * (rows - 1) / further


def _stored(options: dict[str, str]) -> str:
    """Returns how a weight's format is stored; q6_k counts as 4 bits, the other two bits are extra."""
    name = options.get("format", "")
    if not name:
        return "numbers"
    if name in _INTEGERS:
        return "integers"
    return "floats" if "fp8" in name else "half_bytes"


def _shares(case: Case, best_us: float, roof: dict[str, Any]) -> dict[str, float | None]:
    """Returns, relative to the time of the best kernel: the time to read the same bytes from the same place; that plus
    writing the outputs; the larger of the latter and of the arithmetic.
    """
    stream = statistics.median(case.stream)
    copy = statistics.median(case.copy) if case.copy else stream
    least = max(copy, _compute_us(case.about, roof))
    shares = {"share_of_stream": stream, "share_of_copy": copy, "share_of_roof": least}
    return {name: us / best_us for name, us in shares.items()}


def _row(case: Case, roof: dict[str, Any]) -> dict[str, Any]:
    medians = {kernel: statistics.median(samples) for kernel, samples in case.samples.items()}
    best = min(medians, key=lambda kernel: medians[kernel])
    return {
        "name": case.operation,
        "call": case.line,
        **case.about,
        "cold": case.cold,
        "aa_spread": _spread(case),
        "us": medians,
        "best": best,
        "chosen": case.chosen,
        "reference_us": statistics.median(case.reference) if case.reference else None,
        **_shares(case, medians[best], roof),
        "regret": case.regrets,
    }


def run(
    cases: list[Case], rounds: int = 14, seconds: float | None = None, on_step: Callable[..., None] | None = None
) -> dict[str, Any]:
    """Returns the whole report; `records(cases)` afterwards returns the prior. `seconds`: no case begins later. on_step: called
    after each case with its operation and its rows of the report, which have no regret yet."""
    interrupted = {}
    start = time.monotonic()
    with torch.inference_mode():
        roof = roofs()
        try:
            for number, case in enumerate(cases):
                if seconds is not None and time.monotonic() - start > seconds:
                    interrupted = {"out_of_time": len(cases) - number}
                    break
                measure(case, rounds)
                if on_step:
                    on_step(case.operation, [_row(case, roof)] if len(case.again) == rounds else [])
        except KeyboardInterrupt:  # keep what was measured
            interrupted = {"interrupted": True}
        measured = [case for case in cases if len(case.again) == rounds]
        chosen = selection(measured)
    return {
        "device_id": _layerzero.device_id("cpu"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "roofs": roof,
        "regret": chosen,
        "calls": [_row(case, roof) for case in measured],
        **interrupted,
    }


def keep(rows: list[dict[str, Any]]) -> Path:
    """Writes records where selections on this machine read them: into the performance database, in place of those of the same
    operations, device and run; on a machine without SQLite into a file. Returns the path."""
    state = perf_records.database_state()
    if state["sqlite"] is None:
        path = Path(state["path"]).with_name("prior.records.json")
        write_prior(rows, path)
        return path
    perf_records.write_database(rows, how="replace_run")
    _layerzero.use_prior()
    return Path(state["path"])


def write_prior(rows: list[dict[str, Any]], path: Path) -> int:
    """Writes records to the file that selections on this machine read; returns their number. The file's records of other
    devices, and of operations that were not measured now, stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = {(row["device_id"], row["operation"]) for row in rows}
    kept = perf_records.read(path) if path.exists() else []
    perf_records.write(path, [row for row in kept if (row["device_id"], row["operation"]) not in measured] + rows)
    _layerzero.use_prior()
    return len(rows)
