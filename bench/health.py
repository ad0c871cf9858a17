"""Planted kernels that fail in every way, under load: only right results or typed errors may come out.

python bench/health.py --calls 1000000 --threads 16 > bench/results/health-<machine>.json
python bench/health.py --calls 20000 --control unchecked     (and leak: a planted fault that this script has to find)

Kernels of `norm.rms` that raise, refuse, return NaN, return another call's output, are wrong once in 1,000 calls, run out of memory
and write half of their output before they raise are called by all threads at once, next to right ones; one that writes an
input and raises; and in processes of their own one that dies of SIGSEGV, one that hangs until a limit, and one that loses
its CUDA context (emulated by CUDA's message). The JSON has the counts, the breaker states and the memory over time; exit
code 1 if a result was wrong, an error had no type, a process hung, memory grew, or a breaker or the quarantine is not as
specified. With --control results are not compared, or a kernel keeps memory: then exit code 0 says that it was found.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import layerzero as lz
import torch

X = torch.arange(32, dtype=torch.float32).view(4, 8)
W = torch.full((8,), 2.0)
RIGHT = torch.nn.functional.rms_norm(X, (8,), W, 1e-6)
OTHER = torch.nn.functional.rms_norm(X + 1, (8,), W, 1e-6)

CHILD = """
import os, signal, sys, time, torch, layerzero as lz
fault = sys.argv[1]
@lz.register_kernel("norm.rms", "planted.child", supported_dtypes=["float32"], priority=100)
def kernel(input, weight, eps, weight_offset=None):
    if fault == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hang":
        time.sleep(3600)
    if fault == "sticky":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return torch.nn.functional.rms_norm(input, (8,), weight, eps)
x, w = torch.arange(32, dtype=torch.float32).view(4, 8), torch.full((8,), 2.0)
right = torch.nn.functional.rms_norm(x, (8,), w, 1e-6)
outcomes = []
for _ in range(20):
    try:
        outcomes.append("right" if torch.allclose(lz.rms_norm(x, w), right) else "wrong")
    except lz.ContextLostError:
        outcomes.append("ContextLostError")
print(sorted(set(outcomes)), lz.which("rms_norm", x, w).kernel_id if "right" in outcomes else None, lz.health()["status"])
"""


def right(input: torch.Tensor, weight: torch.Tensor, eps: float, weight_offset: Any = None) -> torch.Tensor:
    return torch.nn.functional.rms_norm(input, (8,), weight, eps)


def half(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    right(input[:2], weight, eps)
    raise RuntimeError("planted: after half of the output")


def fault(error: BaseException) -> Any:
    def kernel(input: Any, weight: Any, eps: float) -> Any:
        raise error

    return kernel


# name -> (period of the calls that are at fault, what it does then)
PLANTED = {
    "planted.raises": (50, fault(RuntimeError("planted"))),
    "planted.refuses": (20, fault(lz.KernelRefusedError("planted"))),
    "planted.half": (80, half),
    "planted.memory": (100, fault(MemoryError("planted"))),
    "other.liar": (1000, lambda *_: OTHER.clone()),
    "other.nan": (1500, lambda *_: torch.full_like(X, float("nan"))),
    "other.output": (2000, lambda input, *_: input.clone()),
}


def plant() -> None:
    def sometimes(period: int, wrong: Any) -> Any:
        calls = [0]

        def kernel(input: Any, weight: Any, eps: float, weight_offset: Any = None) -> Any:
            calls[0] += 1
            return wrong(input, weight, eps) if calls[0] % period == 0 else right(input, weight, eps)

        return kernel

    for rank, (name, (period, wrong)) in enumerate(PLANTED.items()):
        take = lz.register_kernel("norm.rms", name, supported_dtypes=["float32"], priority=100 - rank)
        take(sometimes(period, wrong))


def writes_an_input() -> dict[str, Any]:
    """A kernel that writes half of a cache and raises: a typed error that names the caches, and no other kernel."""

    @lz.register_kernel("kv.append_paged", "planted.write", supported_dtypes=["float32"], priority=100, accepts=["*"])
    def write(key_cache: Any, value_cache: Any, key: Any, value: Any, slots: Any, k_scale: Any, v_scale: Any) -> None:
        key_cache[0, 0] = 1
        raise RuntimeError("planted")

    caches = [torch.zeros(4, 8, 2, 16) for _ in range(2)]
    try:
        lz.kv_append_paged(*caches, torch.ones(1, 2, 16), torch.ones(1, 2, 16), torch.tensor([1]))
        return {"error": None, "ok": False}
    except lz.KernelExecutionError as error:
        return {"error": type(error).__name__, "ok": "may have been written" in str(error)}
    finally:
        lz.unregister_kernel("kv.append_paged", "planted.write")


def child(kind: str, folder: str, limit: float) -> tuple[int | None, str]:
    env = os.environ | {"LAYERZERO_CACHE_DIR": folder}
    try:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, kind], env=env, capture_output=True, text=True, timeout=limit
        )
        return done.returncode, done.stdout.strip()
    except subprocess.TimeoutExpired:
        return None, ""


def processes(limit: float) -> dict[str, Any]:
    """Each fault in a process of its own, and what the next process does."""
    found: dict[str, Any] = {}
    for kind in ("segfault", "hang", "sticky"):
        with tempfile.TemporaryDirectory() as folder:
            first, second = child(kind, folder, limit), child("none", folder, 10 * limit)
        found[kind] = {
            "first": {"exit_code": first[0], "output": first[1]},
            "next": {"exit_code": second[0], "output": second[1]},
            "ok": second[0] == 0 and "['right']" in second[1] and "planted.child" not in second[1],
        }
    found["segfault"]["ok"] &= found["segfault"]["first"]["exit_code"] == -11
    found["hang"]["ok"] &= found["hang"]["first"]["exit_code"] is None
    found["sticky"]["ok"] &= "['ContextLostError'] None restart" in found["sticky"]["first"]["output"]
    return found


def resident() -> float:
    """Resident memory of this process, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def leaks(kept: list[Any]) -> Any:
    def kernel(input: Any, weight: Any, eps: float) -> Any:
        kept.append(bytearray(65536))
        return right(input, weight, eps)

    return kernel


def load(calls: int, threads: int, seconds: float, control: str) -> dict[str, Any]:
    counts: dict[str, int] = {"right": 0, "wrong": 0}
    guard, memory, began = threading.Lock(), [], time.monotonic()
    if control == "leak":
        PLANTED["planted.raises"] = (2, leaks([]))
    plant()

    def work() -> None:
        mine = {"right": 0, "wrong": 0}
        with lz.shadow(rate=0.0 if control == "unchecked" else 1.0):
            for _ in range(calls // threads):
                try:
                    mine["right" if torch.allclose(lz.rms_norm(X, W), RIGHT) else "wrong"] += 1
                except Exception as error:
                    mine[type(error).__name__] = mine.get(type(error).__name__, 0) + 1
        with guard:
            for key, count in mine.items():
                counts[key] = counts.get(key, 0) + count

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.monotonic() - began < seconds:
        time.sleep(0.2)
        memory.append(round(resident(), 2))
        if len(memory) % 10 == 0:
            # What was learned is forgotten now and then, so that wrong results are made and found again.
            lz.reset_health("other.*")
    hung = sum(worker.is_alive() for worker in workers)
    settled = memory[len(memory) // 4 :] or memory
    return {
        "calls": calls,
        "threads": threads,
        "seconds": round(time.monotonic() - began, 2),
        "results": counts,
        "hung": hung,
        "memory_mib": {"first": memory[0], "settled": settled[0], "last": memory[-1], "most": max(memory)},
        "memory_growth_mib": round(settled[-1] - settled[0], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1800, help="after that a thread that still runs has hung")
    parser.add_argument("--limit", type=float, default=20, help="seconds for a process whose kernel hangs")
    parser.add_argument("--control", choices=("", "unchecked", "leak"), default="", help="a fault that has to be found")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        known = lz.health().to_dict()["quarantine"]
        lz.configure(cache_dir=folder, health={"failures": 3, "retry_s": 0.05, "error_budget": 10**9})
        run = load(options.calls, options.threads, options.seconds, options.control)
        health = lz.health().to_dict()
        run["write"] = writes_an_input()
    run["control"] = options.control
    if options.control:
        run["found"] = run["results"]["wrong"] > 0 if options.control == "unchecked" else run["memory_growth_mib"] >= 16
        print(json.dumps(run, indent=1))
        return 0 if run["found"] else 1
    run["processes"] = processes(options.limit)
    run["breakers"] = [
        {key: b[key] for key in ("kernel_id", "state", "outcomes", "failures_in_a_row")} for b in health["breakers"]
    ]
    run["shadow"] = health["shadow"]
    typed = {name for name in run["results"] if isinstance(getattr(lz, name, None), type)}
    untyped = set(run["results"]) - typed - {"right", "wrong"}
    run["untyped_errors"] = sorted(untyped)
    failing = {b["kernel_id"] for b in run["breakers"] if b["outcomes"].get("failed_before_write")}
    lying = {row["kernel"] for row in health["quarantine"]}
    run["states_as_specified"] = {
        "failures are counted": failing <= {"planted.raises", "planted.half"},
        "refusals and short memory open no breaker": not any(
            b["state"] != "closed" for b in run["breakers"] if b["kernel_id"] in ("planted.refuses", "planted.memory")
        ),
        "only kernels that lied are in quarantine": lying
        <= {"other.liar", "other.nan", "other.output"} | {row["kernel"] for row in known},
    }
    run["ok"] = (
        run["results"]["wrong"] == 0
        and not untyped
        and run["hung"] == 0
        and run["memory_growth_mib"] < 16
        and run["write"]["ok"]
        and all(run["states_as_specified"].values())
        and all(p["ok"] for p in run["processes"].values())
    )
    print(json.dumps(run, indent=1))
    return 0 if run["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
