"""Times to load a dispatch table and to select with one; memory over repeated loads and replaced records. Writes JSON to standard output.

python bench/tables.py [--entries 10000] [--output bench/results/tables-<machine>.json]
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import layerzero as lz
import torch
from common import finish, record
from layerzero import _layerzero
from layerzero.tables import engine

BAR_MS = 1.0  # for 10,000 entries
MOST_KIB = 4096  # that the process may grow


def large(entries: int) -> lz.DispatchTable:
    """A table of this machine with this number of entries: the class of one norm, for a grid of rows and widths."""
    table = lz.solve("rms_norm --input bf16[rows,576] --weight bf16[576]", {"rows": [8]})
    side = math.isqrt(entries)
    document, (first, *_) = table.document, table.entries()
    ops = []
    for row, width in itertools.product(range(side), range(entries // side)):
        when = {**first["when"], "...": [8 * row + 1, 8 * row + 8], "hidden": [570 + 10 * width, 579 + 10 * width]}
        ops.append({"op": first["op"], "kernel_id": first["kernel_id"], "when": when, "us": 1.0})
    document["plans"] = [{"bucket": {"rows": 8 * side}, "ops": ops, "jit_artifacts": []}]
    return lz.DispatchTable(document)


def milliseconds(work, rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times)


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def kib_of_records(sets: int) -> int:
    """Returns how many KiB the process grew over this many replacements of its measured records, by two sets in turns; after
    a tenth of them, when memory is what it will be."""
    row = record(kernel_id="hwy.norm.rms", backend="hwy", device_id=_layerzero.device_id("cpu"), dtype="bfloat16")
    texts = []
    for widths in ((576, 1024), (640, 2048)):
        rows = [row | {"axes": {"...": 4 * n, "hidden": width}} for width in widths for n in range(1, 33)]
        texts.append(json.dumps({"schema_version": "1.0", "records": rows}))
    x, w = torch.ones(4, 576, dtype=torch.bfloat16), torch.ones(576, dtype=torch.bfloat16)
    for number in range(sets):
        if number == sets // 10:
            before = resident_kib()
        _layerzero.use_prior(texts[number % 2], "bench tables")
        lz.rms_norm(x, w)
    _layerzero.use_prior()
    return resident_kib() - before


def hits(rounds: int = 20000) -> float:
    """Nanoseconds of a call whose plan the call site has: the least of several runs."""
    x, w = torch.ones(4, 576, dtype=torch.bfloat16), torch.ones(576, dtype=torch.bfloat16)
    lz.rms_norm(x, w)
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            lz.rms_norm(x, w)
        best = min(best, (time.perf_counter_ns() - start) / rounds)
    return best


def misses(rounds: int = 200) -> float:
    """Microseconds of a selection: `which` after every plan was made stale."""
    x, w = torch.ones(4, 576, dtype=torch.bfloat16), torch.ones(576, dtype=torch.bfloat16)

    def once():
        _layerzero.invalidate()
        lz.rms_norm(x, w)

    return milliseconds(once, rounds)[rounds // 2] * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--record-sets", type=int, default=10000)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    without = {"hit_ns": hits(), "miss_us": misses()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.lzt"
        large(given.entries).save(path)
        load = milliseconds(lambda: engine("load", path=str(path)), given.rounds)
        used = lz.explain("rms_norm", torch.ones(4, 576, dtype=torch.bfloat16), torch.ones(576, dtype=torch.bfloat16))
        used_with = {"hit_ns": hits(), "miss_us": misses()}
        before = resident_kib()
        for _ in range(1000):
            engine("load", path=str(path))
        grown = resident_kib() - before
        grown_by_records = kib_of_records(given.record_sets)
        report = {
            "device": engine("identity")["hardware_signature"],
            "entries": given.entries,
            "bytes": path.stat().st_size,
            "load_ms": {"least": load[0], "median": statistics.median(load), "p90": load[int(len(load) * 0.9)]},
            "use": used.table.use,
            "without_table": without,
            "with_table": used_with,
            "kib_grown_over_1000_loads": grown,
            "record_sets": given.record_sets,
            "kib_grown_over_record_sets": grown_by_records,
        }
        lz.unload_table()
    report["ok"] = report["load_ms"]["least"] <= BAR_MS and used.table.use == "used"
    report["ok"] = report["ok"] and max(grown, grown_by_records) < MOST_KIB
    return finish(report, given.output)


if __name__ == "__main__":
    sys.exit(main())
