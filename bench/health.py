"""Planted kernels that fail in every way, under load: only right results or typed errors may come out.

python bench/health.py --calls 1000000 --threads 16 > bench/results/health-<machine>.json
python bench/health.py --calls 40000 --control     (every planted fault that this script has to find; --control leak: one)

Each kernel of PLANTED serves the calls of one number of rows, so that each of them runs whatever becomes of the others: kernels of
`norm.rms` that raise, refuse, return NaN, return their input, are wrong once in 1,000 calls, run out of memory, write half of
their output before they raise, or always fail. All threads call all classes at once, and four more call a library in a worker
that is killed by -9 every second that it runs. Then: one kernel that writes an input and raises; and in processes of their own
one that dies of SIGSEGV, one that hangs until it is killed, and one that loses its CUDA context (emulated by CUDA's message).
The JSON has the counts, the breaker states and the memory over time; exit code 1 if a result was wrong, an error had no type, a
process hung, memory grew, a planted kernel was never at fault, or a breaker or the quarantine is not as specified. With
--control results are not compared (unchecked), a kernel keeps memory (leak) or no planted kernel is ever selected (unreached):
then exit code 0 says that each was found.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layerzero as lz
import torch
from layerzero.isolation import client

W = torch.full((8,), 2.0)

CHILD = """
import os, signal, sys, time, torch, layerzero as lz
fault = sys.argv[1]
@lz.register_kernel("norm.rms", "planted.child", supported_dtypes=["float32"], priority=100)
def kernel(input, weight, eps, weight_offset=None):
    print("begun", flush=True)
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


def fails(error: type[BaseException]) -> Any:
    def kernel(input: Any, weight: Any, eps: float) -> Any:
        raise error("planted")  # a new one each time: one that is raised again keeps the frames of all times before

    return kernel


# name -> (period of the calls that are at fault, what it does then)
PLANTED: dict[str, tuple[int, Any]] = {
    "planted.raises": (50, fails(RuntimeError)),
    "planted.refuses": (20, fails(lz.KernelRefusedError)),
    "planted.half": (80, half),
    "planted.memory": (100, fails(MemoryError)),
    "planted.broken": (1, fails(RuntimeError)),
    "other.liar": (1000, lambda input, weight, eps: right(input + 1, weight, eps)),
    "other.nan": (700, lambda input, *_: torch.full_like(input, float("nan"))),
    "other.output": (500, lambda input, *_: input.clone()),
}
LIARS = {name for name in PLANTED if name.startswith("other.")}
INPUTS = [torch.arange(8.0 * rows).view(rows, 8) for rows in range(1, len(PLANTED) + 1)]
RIGHT = [right(x, W, 1e-6) for x in INPUTS]


class Planted:
    """A kernel that is at fault once in a period, and counts its runs."""

    def __init__(self, name: str, rows: int) -> None:
        self.period, self.wrong = PLANTED[name]
        self.numbers, self.runs = itertools.count(1), 0
        take = lz.register_kernel(
            "norm.rms",
            name,
            supported_dtypes=["float32"],
            priority=100,
            accepts=["weight"],
            constraints=[{"field": "rows", "relation": "==", "operand": rows}],
        )
        take(self.kernel)

    def kernel(self, input: Any, weight: Any, eps: float) -> Any:
        self.runs = next(self.numbers)
        return self.wrong(input, weight, eps) if self.runs % self.period == 0 else right(input, weight, eps)


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


def child(kind: str, folder: str, limit: float) -> dict[str, Any]:
    """Runs CHILD; one that still runs `limit` seconds after its kernel has begun is killed, which is an exit code of None."""
    command = [sys.executable, "-c", CHILD, kind]
    env = os.environ | {"LAYERZERO_CACHE_DIR": folder}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        first = process.stdout.readline().strip()  # of a kernel that has begun, or of the end
        try:
            rest, _ = process.communicate(timeout=limit if first == "begun" else 600)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            code, rest = None, process.communicate()[0]
    lines = [line for line in [first, *rest.splitlines()] if line != "begun"]
    return {"begun": first == "begun", "exit_code": code, "output": "\n".join(lines)}


def processes(limit: float) -> dict[str, Any]:
    """Each fault in a process of its own, and what the next process does."""
    found: dict[str, Any] = {}
    for kind in ("segfault", "hang", "sticky"):
        with tempfile.TemporaryDirectory() as folder:
            first, second = child(kind, folder, limit if kind == "hang" else 600), child("none", folder, 600)
        answered = second["exit_code"] == 0 and "['right']" in second["output"] and not second["begun"]
        found[kind] = {"first": first, "next": second, "ok": first["begun"] and answered}
    found["segfault"]["ok"] &= found["segfault"]["first"]["exit_code"] == -11
    found["hang"]["ok"] &= found["hang"]["first"]["exit_code"] is None
    sticky = found["sticky"]["first"]
    # The next process has a context of its own, in which the kernel may run again.
    found["sticky"]["ok"] = sticky["begun"] and "['ContextLostError'] None restart" in sticky["output"]
    return found


WORKER = "torch", "subprocess", "layerzero.backends.torch.adapters:rms_norm"


def isolate() -> str:
    """Starts the worker of `workers`. Returns the error, or ""."""
    library, mode, adapter = WORKER
    lz.configure(backend_isolation={library: mode}, isolation={"start_timeout_s": 300})
    return client.prove(library, mode, (adapter,), "")


def workers(over: threading.Event, threads: int) -> dict[str, Any]:
    """Calls of torch's kernel in a worker that is killed every second that it runs, until `over`."""
    library, mode, adapter = WORKER
    kernel, x, kills, began = client.proxy(library, mode, adapter, "torch.rms_norm"), INPUTS[3], 0, time.monotonic()
    counts: Counter[str] = Counter()

    def work() -> None:
        while not over.is_set():
            try:
                counts["right" if torch.allclose(kernel(x, W, 1e-6), RIGHT[3]) else "wrong"] += 1
            except lz.KernelRefusedError:  # the worker is starting
                counts["refused"] += 1
                time.sleep(0.01)
            except Exception as error:
                counts[type(error).__name__] += 1

    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    while not over.wait(1):
        if pid := client.states()[library].get("pid"):
            os.kill(pid, signal.SIGKILL)
            kills += 1
    for thread in running:
        thread.join(300)
    hung = sum(thread.is_alive() for thread in running)
    typed = set(counts) <= {"right", "refused", "WorkerError"}
    seconds = round(time.monotonic() - began, 2)
    ok = bool(kills and counts["right"] and counts["WorkerError"] and typed and not hung)
    return {"seconds": seconds, "threads": threads, "kills": kills, "results": dict(counts), "hung": hung, "ok": ok}


def resident() -> float:
    """Resident memory of this process, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def leaks(kept: list[Any]) -> Any:
    def kernel(input: Any, weight: Any, eps: float) -> Any:
        kept.append(bytearray(65536))
        return right(input, weight, eps)

    return kernel


def quarantined() -> set[str]:
    return {row["kernel"] for row in lz.health().to_dict()["quarantine"]}


def load(calls: int, threads: int, seconds: float, control: str) -> dict[str, Any]:
    """All threads call all classes. Returns the counts, the memory and what was learned of the kernels."""
    counts: Counter[str] = Counter(right=0, wrong=0)
    guard, memory, began = threading.Lock(), [], time.monotonic()
    if control == "leak":
        PLANTED["planted.raises"] = (2, leaks([]))
    away = 1000 if control == "unreached" else 0  # rows that no call has
    known, lied = quarantined(), set[str]()
    planted = {name: Planted(name, rows + away) for rows, name in enumerate(PLANTED, 1)}

    def work(first: int) -> None:
        mine: Counter[str] = Counter()
        with lz.shadow(rate=0.0 if control == "unchecked" else 1.0):
            for number in range(first, first + calls // threads):
                at = number % len(INPUTS)
                try:
                    mine["right" if torch.allclose(lz.rms_norm(INPUTS[at], W), RIGHT[at]) else "wrong"] += 1
                except Exception as error:
                    mine[type(error).__name__] += 1
        with guard:
            counts.update(mine)

    running = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running) and time.monotonic() - began < seconds:
        time.sleep(0.2)
        memory.append(round(resident(), 2))
        if len(memory) % 10 == 0:
            # What was learned is forgotten now and then, so that wrong results are made and found again.
            lied |= quarantined() - known
            lz.reset_health("other.*")
    lied |= quarantined() - known
    settled = memory[len(memory) // 4 :] or memory
    return {
        "calls": calls,
        "threads": threads,
        "seconds": round(time.monotonic() - began, 2),
        "results": dict(counts),
        "hung": sum(thread.is_alive() for thread in running),
        "planted": {name: {"runs": p.runs, "at_fault": p.runs // p.period} for name, p in planted.items()},
        "quarantined": sorted(lied),
        "memory_mib": {"first": memory[0], "settled": settled[0], "last": memory[-1], "most": max(memory)},
        "memory_growth_mib": round(settled[-1] - settled[0], 2),
    }


def states(run: dict[str, Any], breakers: list[dict[str, Any]]) -> dict[str, bool]:
    """What has to be known of each planted kernel after the load."""
    of = {b["kernel_id"]: b for b in breakers}
    outcomes = {name: set(of[name]["outcomes"]) - {"done"} if name in of else set() for name in PLANTED}
    broken = run["planted"]["planted.broken"]
    return {
        "every planted kernel was at fault": all(p["at_fault"] > 0 for p in run["planted"].values()),
        "failures are counted": outcomes["planted.raises"] == outcomes["planted.half"] == {"failed_before_write"},
        "refusals and short memory are counted, and open no breaker": outcomes["planted.refuses"] == {"refused"}
        and outcomes["planted.memory"] == {"out_of_memory"}
        and all(of[name]["state"] == "closed" for name in ("planted.refuses", "planted.memory")),
        "the breaker of a kernel that always fails is open, and it is tried seldom": outcomes["planted.broken"]
        == {"failed_before_write"}
        and of["planted.broken"]["state"] != "closed"
        and broken["runs"] < run["calls"] / len(PLANTED) / 10,
        "the kernels that lied, and no others, were in quarantine": set(run["quarantined"]) == LIARS,
    }


def controls(options: argparse.Namespace) -> int:
    """Plants each fault of this script in a process of its own. Returns 0 if all were found."""
    found = {}
    for control in CONTROLS:
        arguments = ["--calls", str(options.calls), "--threads", str(options.threads), "--control", control]
        done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
        found[control] = json.loads(done.stdout) if done.stdout else {"found": False, "error": done.stderr[-2000:]}
    print(json.dumps({"controls": found, "ok": all(run["found"] for run in found.values())}, indent=1))
    return 0 if all(run["found"] for run in found.values()) else 1


# What is planted into this script -> what it has to find then.
CONTROLS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "unchecked": lambda run: run["results"]["wrong"] > 0,
    "leak": lambda run: run["memory_growth_mib"] >= GROWTH_MIB,
    "unreached": lambda run: not run["states_as_specified"]["every planted kernel was at fault"],
}
GROWTH_MIB = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=1800, help="after that a thread that still runs has hung")
    parser.add_argument("--limit", type=float, default=20, help="seconds that a kernel hangs before it is killed")
    parser.add_argument("--control", choices=("all", *CONTROLS), nargs="?", const="all", default="")
    options = parser.parse_args()
    if options.control == "all":
        return controls(options)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        lz.configure(cache_dir=folder, health={"failures": 3, "retry_s": 0.05, "error_budget": 10**9})
        over, killed = threading.Event(), dict[str, Any]()
        if not options.control and (error := isolate()):
            raise SystemExit(error)
        killer = threading.Thread(target=lambda: killed.update(workers(over, 4)))
        if not options.control:
            killer.start()
        try:
            run = load(options.calls, options.threads, options.seconds, options.control)
        finally:
            over.set()
        health = lz.health().to_dict()
        run["breakers"] = [
            {key: b[key] for key in ("kernel_id", "state", "outcomes", "failures_in_a_row")} for b in health["breakers"]
        ]
        run["shadow"] = health["shadow"]
        run["states_as_specified"] = states(run, run["breakers"])
        if options.control:
            run |= {"control": options.control, "found": CONTROLS[options.control](run)}
            print(json.dumps(run, indent=1))
            return 0 if run["found"] else 1
        run["write"] = writes_an_input()
        killer.join()
        run["workers"] = killed
    run["processes"] = processes(options.limit)
    typed = {name for name in run["results"] if isinstance(getattr(lz, name, None), type)}
    run["untyped_errors"] = sorted(set(run["results"]) - typed - {"right", "wrong"})
    run["ok"] = (
        run["results"]["wrong"] == 0
        and sum(run["results"].values()) == options.calls // options.threads * options.threads
        and not run["untyped_errors"]
        and run["hung"] == 0
        and run["memory_growth_mib"] < GROWTH_MIB
        and run["write"]["ok"]
        and run["workers"]["ok"]
        and all(run["states_as_specified"].values())
        and all(p["ok"] for p in run["processes"].values())
    )
    print(json.dumps(run, indent=1))
    return 0 if run["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
