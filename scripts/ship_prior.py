"""Converts a machine's measured records to the prior that the library ships for its kind:
devices/priors/<machine>.json, or devices/priors/<GPU>.json.

  layerzero bench ops --records cpu.json && scripts/ship_prior.py cpu.json
  layerzero bench ops --device cuda --records gpu.json && scripts/ship_prior.py gpu.json
Keeps operations whose best kernel depends on the sizes (of a GPU all), and of these the calls that the nearest kept call
mispredicts.
"""

import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from layerzero import _layerzero
from machine import machine

ROOT = Path(__file__).resolve().parent.parent
OPERATIONS = ("mlp.linear", "attention.")
NEAR = 2  # doublings, over all axes
ALIKE = 1.1  # ratio of times that count as equal
ALIKE_ON_GPU = 1.02  # which repeats its times better
POOLS = ("blocks", "pages")  # axes that separate no calls (src/perfdb/prior.h)


def distance(a: dict[str, int], b: dict[str, int]) -> float:
    return sum(abs(math.log2(max(a[name], 1)) - math.log2(max(b[name], 1))) for name in a if name not in POOLS)


Times = dict[str, dict[str, float]]  # mode -> kernel -> us


def says_the_same(kept: Times, call: Times, alike: float) -> bool:
    """Returns whether the kept call has the same kernels in each mode, and its fastest are fast enough for this one."""
    if kept.keys() != call.keys():
        return False
    for mode, us in kept.items():
        best = min(us, key=lambda kernel: us[kernel])
        if us.keys() != call[mode].keys() or call[mode][best] > alike * min(call[mode].values()):
            return False
    return True


def kind_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns what the calls have in common that are compared by their axes."""
    names = ("operation", "dtype", "options", "cache_state")
    return tuple(json.dumps(row.get(name)) for name in names)


def thinned(rows: list[dict[str, Any]], alike: float) -> list[dict[str, Any]]:
    calls: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        calls[(*kind_of(row), json.dumps(row["axes"]))].append(row)
    kept: dict[tuple[str, ...], list[tuple[dict[str, int], Times]]] = defaultdict(list)
    left = []
    for group in calls.values():
        first = group[0]
        times: Times = defaultdict(dict)  # by mode: both are kept, or none
        for row in group:
            times[row.get("execution", "eager")][row["kernel_id"]] = row["median_us"]
        known = kept[kind_of(first)]
        nearest = min(known, key=lambda call: distance(call[0], first["axes"]), default=None)
        if nearest and distance(nearest[0], first["axes"]) <= NEAR and says_the_same(nearest[1], times, alike):
            continue
        known.append((first["axes"], times))
        left += group
    return left


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # The build of a C library is only known on the measuring machine.
    of_libraries = {kernel["kernel_id"] for kernel in json.loads(_layerzero.kernels(None, False)) if kernel["library"]}
    records = [r for r in document["records"] if r["kernel_id"] not in of_libraries]
    gpus = {r["device_id"] for r in records if r.get("sm_version")}
    if gpus:
        (gpu,) = gpus  # a file has one device's records
        rows = thinned([r for r in records if r["device_id"] == gpu], ALIKE_ON_GPU)
        name = re.sub(r"[^a-z0-9]+", "-", gpu.partition(",")[0].lower())
    else:
        rows, name = thinned([r for r in records if r["operation"].startswith(OPERATIONS)], ALIKE), machine()
    lines = [json.dumps({k: v for k, v in row.items() if v not in (None, {})}) for row in rows]
    path = ROOT / f"devices/priors/{name}.json"
    path.parent.mkdir(exist_ok=True)
    body = ",\n".join(lines)
    path.write_text(f'{{"schema_version": "1.0", "records": [\n{body}\n]}}\n', encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(rows)} records")


if __name__ == "__main__":
    main()
