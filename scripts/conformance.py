"""Runs every operation, kernel and case, random calls and planted faults: prints one table, or JSON for programs.

    python scripts/conformance.py                    runs build/release/bin/conformance_test, prints, records
    python scripts/conformance.py --json             prints JSON; --random 100000: random calls of each operation
Results per type of CPU accumulate in bench/results/conformance-<cpu>.json. Exit status 0 only if nothing is outside its
tolerance, every planted fault is caught, and every operation has every item of scripts/checklist.py.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from checklist import missing
from layerzero import _layerzero
from machine import machine_type

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"


def measure(preset: str, random_calls: int) -> dict:
    binary = ROOT / "build" / preset / "bin/conformance_test"
    if not binary.exists():
        raise SystemExit(f"{binary.relative_to(ROOT)} is not there. Type: make build")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "conformance.json"
        env = os.environ | {"LZ_CONFORMANCE_JSON": str(out), "LZ_FUZZ_EXECUTIONS": str(random_calls)}
        done = subprocess.run([binary, "--gtest_brief=1"], env=env, stdout=subprocess.PIPE, text=True)
        if not out.exists():
            raise SystemExit(f"the run ended early:\n{done.stdout[-3000:]}")
        return json.loads(out.read_text()) | {"passed": done.returncode == 0, "log": done.stdout}


def host_isa() -> str:
    return next(d["isa"] for d in json.loads(_layerzero.devices())["devices"] if not d["simulated"])


def cpu_types() -> dict[str, set[str]]:
    """Maps the CPU types in devices/ to their instruction sets."""
    files = [json.loads(p.read_text()) for p in sorted((ROOT / "devices").glob("*.json"))]
    return {f["name"]: set(f["facts"]["isa"]) for f in files if f["platform"] == "cpu"}


def key(isa: str) -> set[str]:
    """Spells "AVX-512 BF16" as device files do: avx512_bf16."""
    names = (re.sub(r"^avx-512", "avx512", part.strip().lower()) for part in isa.split(","))
    return {re.sub(r"[^a-z0-9]+", "_", name) for name in names}


def record(result: dict) -> dict[str, str]:
    """Writes this machine's result; returns the file that covers each CPU type, or "missing"."""
    name = machine_type()
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {k: v for k, v in result.items() if k != "log"}
    (RESULTS / f"conformance-{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    have = {p.name: key(json.loads(p.read_text())["isa"]) for p in sorted(RESULTS.glob("conformance-*.json"))}
    return {cpu: next((f for f, sets in have.items() if sets == isa), "missing") for cpu, isa in cpu_types().items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--preset", default=os.environ.get("PRESET", "release"))
    parser.add_argument("--random", type=int, default=2000, metavar="N", help="random calls of each operation")
    options = parser.parse_args()
    result = measure(options.preset, options.random)
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    result |= {"commit": commit.stdout.strip(), "isa": host_isa(), "incomplete_operations": missing()}
    result["cpu_types"] = record(result)
    good = result["passed"] and not result["incomplete_operations"]
    good = good and result["outside_tolerance"] == 0 and result["faults_caught"] == result["faults_planted"]
    if options.json:
        print(json.dumps({k: v for k, v in result.items() if k != "log"}, indent=1))
        return int(not good)
    if not result["passed"]:
        print(result["log"][-6000:])
    lines = {
        "operations": result["operations"],
        "kernels": sum(k["pairs"] > 0 for k in result["kernels"].values()),
        "cases": f"{result['cases']} ({result['refusals']} refusals), {result['pairs']} pairs of kernel and case",
        "random calls": f"{result['random_calls']}, {result['random_launched']} launches",
        "outside tolerance": result["outside_tolerance"],
        "faults": f"{result['faults_planted']} planted, {result['faults_caught']} caught",
        "operations without an item": len(result["incomplete_operations"]),
        "CPU types": ", ".join(f"{cpu}: {where}" for cpu, where in result["cpu_types"].items()),
    }
    for what, value in lines.items():
        print(f"{what:28}{value}")
    for name, items in result["incomplete_operations"].items():
        print(f"  {name} lacks: {', '.join(items)}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
