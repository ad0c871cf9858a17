"""Converts a machine's measured records to the prior that the library ships for its kind:
devices/priors/<machine>.json.

  layerzero bench ops --write-prior && scripts/ship_prior.py ~/.cache/layerzero/prior.records.json
Keeps operations whose best kernel depends on the sizes, and of these the calls that the nearest kept call mispredicts.
"""

import json
import math
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


def distance(a: dict[str, int], b: dict[str, int]) -> float:
    return sum(abs(math.log2(max(a[name], 1)) - math.log2(max(b[name], 1))) for name in a)


def says_the_same(kept: dict[str, float], call: dict[str, float]) -> bool:
    best = min(kept, key=lambda kernel: kept[kernel])
    return kept.keys() == call.keys() and call[best] <= ALIKE * min(call.values())


def thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        calls[json.dumps([row["operation"], row["dtype"], row["axes"], row.get("options"), row["cache_state"]])].append(
            row
        )
    kept: dict[tuple[str, str, str, str], list[tuple[dict[str, int], dict[str, float]]]] = defaultdict(list)
    left = []
    for group in calls.values():
        first, times = group[0], {row["kernel_id"]: row["median_us"] for row in group}
        known = kept[first["operation"], first["dtype"], json.dumps(first.get("options")), first["cache_state"]]
        nearest = min(known, key=lambda call: distance(call[0], first["axes"]), default=None)
        if nearest and distance(nearest[0], first["axes"]) <= NEAR and says_the_same(nearest[1], times):
            continue
        known.append((first["axes"], times))
        left += group
    return left


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # The build of a C library is only known on the measuring machine.
    of_libraries = {kernel["kernel_id"] for kernel in json.loads(_layerzero.kernels(None)) if kernel["library"]}
    records = [r for r in document["records"] if r["kernel_id"] not in of_libraries]
    rows = thinned([r for r in records if r["operation"].startswith(OPERATIONS)])
    lines = [json.dumps({k: v for k, v in row.items() if v not in (None, {})}) for row in rows]
    path = ROOT / f"devices/priors/{machine()}.json"
    path.parent.mkdir(exist_ok=True)
    body = ",\n".join(lines)
    path.write_text(f'{{"schema_version": "1.0", "records": [\n{body}\n]}}\n', encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(rows)} records")


if __name__ == "__main__":
    main()
