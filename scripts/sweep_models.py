"""Every model class of Transformers that can be built small, kernelized and held against itself as it was.

python scripts/sweep_models.py                    all classes, with SDPA and with eager attention
python scripts/sweep_models.py --fresh            the same from the beginning
python scripts/sweep_models.py BertModel T5Model  these alone, again
python scripts/sweep_models.py --wrong            those again that were wrong or crashed

Each class runs in a process of its own, with limits of time and memory. Rows are kept in build/sweep-models-<version>.jsonl,
so that an interrupted run goes on; the result is bench/results/sweep-models-<version>-<machine>.json. Ends with 1 where a
class is wrong. What a row holds: `judge`.
"""

import argparse
import copy
import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from stamp_result import measured_on

ROOT = Path(__file__).resolve().parent.parent
SECONDS, MEMORY = 120, 12 << 30
ATTENTIONS = ("sdpa", "eager")
BAD = ("wrong", "crashed")
# What has the most of a family's code in it comes first.
FIRST = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "Model", "")
Rows = dict[str, dict[str, Any]]  # attention -> the row of a class


def judge(kind: Any, attention: str) -> dict[str, Any]:
    """verdict: "right", "wrong" with {call: what differs}, "not built" with the reason, "nothing compared" where the model
    itself refuses every call or gives something else each time. error: the largest relative error of any tensor of any call.
    """
    import compare_models
    import small_classes
    from layerzero.integrations.transformers import kernelize

    try:
        model, given, _ = small_classes.build(kind, attention)
    except small_classes.NotBuilt as why:
        return {"verdict": "not built", "why": str(why)[:300]}
    original = copy.deepcopy(model)
    report = kernelize(model)
    outcome = compare_models.held_against(original, model, given)
    if outcome.wrong:  # of calls that differ from themselves nothing can be said
        outcome = outcome.without(compare_models.held_against(original, copy.deepcopy(original), given).wrong)
    return {
        "verdict": "wrong" if outcome.wrong else "right" if outcome.errors else "nothing compared",
        "error": outcome.error,
        "calls": len(outcome.errors),
        "refused": len(outcome.refused),
        "wrong": outcome.wrong,
        "replaced": {part: f"{e['count']} through {e['operation']}" for part, e in report.replaced.items()},
        "left": _each_once(report.left),
    }


def _each_once(left: dict[str, str]) -> dict[str, str]:
    """The first reasons, each with the first part that has it."""
    once: dict[str, str] = {}
    for part, reason in left.items():
        once.setdefault(reason, part)
    return {part: reason[:160] for reason, part in [*once.items()][:6]}


# ---- processes


def _child(kind: Any, pipe: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for attention in ATTENTIONS:
        signal.alarm(SECONDS)
        try:
            row = judge(kind, attention)
        except MemoryError:
            row = {"verdict": "not built", "why": "out of memory"}
        except Exception as error:  # of kernelize itself
            why = f"{type(error).__name__}: {str(error)[:300]}"
            row = {"verdict": "crashed", "why": why, "trace": traceback.format_exc()[-1500:]}
        os.write(pipe, (json.dumps({attention: row}, default=str) + "\n").encode())


def _start(kind: Any) -> tuple[int, int]:
    """(process, pipe) of one class. Forked: a process that imports all again would take longer than the class."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(read)
            _child(kind, write)
        finally:
            os._exit(0)
    os.close(write)
    return process, read


def _finish(process: int, read: int, data: bytes) -> Rows:
    os.close(read)
    _, status = os.waitpid(process, 0)
    rows: Rows = {}
    for line in data.decode().splitlines():
        rows |= json.loads(line)
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    missing = {"verdict": "not built", "why": f"took more than {SECONDS} s"} if late else {"verdict": "crashed"}
    for attention in [attention for attention in ATTENTIONS if attention not in rows][:1]:
        rows[attention] = {"why": f"its process ended with {status}"} | missing
    return rows


def run(kinds: dict[str, Any], done: dict[str, Rows], keep: Any, jobs: int, seconds: float) -> None:
    """Adds the rows of all that is not `done`, and writes them to `keep` as they come; begins none after so many seconds."""
    waiting = [name for name in kinds if name not in done]
    running: dict[int, tuple[str, int, list[bytes]]] = {}
    selector, began = selectors.DefaultSelector(), time.monotonic()
    while waiting or running:
        if time.monotonic() - began > seconds:
            waiting.clear()
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            process, read = _start(kinds[name])
            running[read] = name, process, []
            selector.register(read, selectors.EVENT_READ)
        for read in [key.fd for key, _ in selector.select()] if running else ():
            name, process, parts = running[read]
            part = os.read(read, 65536)
            if part:
                parts.append(part)
                continue
            selector.unregister(read)
            del running[read]
            done[name] = _finish(process, read, b"".join(parts))
            keep.write(json.dumps({name: done[name]}) + "\n")
            keep.flush()
            _tell(name, done, len(kinds), time.monotonic() - began)


def _tell(name: str, done: dict[str, Rows], total: int, seconds: float) -> None:
    verdicts = "/".join(row["verdict"] for row in done[name].values())
    line = f"{len(done)} of {total}, {seconds:.0f} s: {name} {verdicts}"
    if sys.stderr.isatty():
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
    elif any(bad in verdicts for bad in BAD) or len(done) % 50 == 0:
        print(line, flush=True)


# ---- results


def result_of(done: dict[str, Rows], classes: int) -> dict[str, Any]:
    counts = Counter(row["verdict"] for rows in done.values() for row in rows.values())
    errors = [row["error"] for rows in done.values() for row in rows.values() if row["verdict"] == "right"]
    totals = {"classes": len(done), "not_run": classes - len(done), **dict(sorted(counts.items()))}
    totals["largest_error"] = max(errors, default=0.0)
    return {"measured_on": measured_on(), "totals": totals, "classes": dict(sorted(done.items()))}


def _a_line_each(result: dict[str, Any]) -> str:
    """JSON with a line for each class."""
    lines = [f'  "{name}": {json.dumps(rows)}' for name, rows in result["classes"].items()]
    head = json.dumps({name: value for name, value in result.items() if name != "classes"}, indent=1)[:-2]
    return head + ',\n "classes": {\n' + ",\n".join(lines) + "\n }\n}\n"


def _prepared() -> tuple[dict[str, Any], str]:
    """(classes, version of Transformers), in a process that children can be forked from: with one thread."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    sys.path.insert(0, str(ROOT / "tests/python/support"))
    import warnings

    import compare_models  # noqa: F401
    import small_classes
    import torch
    import transformers
    from layerzero.integrations.transformers import kernelize  # noqa: F401

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    return _one_of_each_family_first(small_classes.classes()), transformers.__version__


def _one_of_each_family_first(kinds: dict[str, Any]) -> dict[str, Any]:
    families: dict[str, list[str]] = {}
    for name in sorted(kinds, key=lambda name: (next(i for i, end in enumerate(FIRST) if name.endswith(end)), name)):
        families.setdefault(kinds[name].__module__, []).append(name)
    turns = {name: turn for names in families.values() for turn, name in enumerate(names)}
    return {name: kinds[name] for name in sorted(kinds, key=lambda name: (turns[name], name))}


def _kept(path: Path) -> dict[str, Rows]:
    done: dict[str, Rows] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        done |= json.loads(line)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="another file for the rows; then no result is written")
    parser.add_argument(
        "--minutes", type=float, help="begin no further class after so long; the result says what was not run"
    )
    options = parser.parse_args()
    kinds, version = _prepared()
    path = options.keep or ROOT / f"build/sweep-models-{version}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        path.unlink(missing_ok=True)
    done = {name: rows for name, rows in _kept(path).items() if name in kinds}
    bad = [name for name, rows in done.items() if any(row["verdict"] in BAD for row in rows.values())]
    again = options.names or (bad if options.wrong else [])
    asked = {name: kinds[name] for name in again} if options.names or options.wrong else kinds
    done = {name: rows for name, rows in done.items() if name not in again}
    with path.open("a") as keep:
        found = {name: rows for name, rows in done.items() if name in asked}
        run(asked, found, keep, options.jobs, 60 * (options.minutes or float("inf")))
    done |= found
    if not options.keep:
        result = result_of(done, len(kinds))
        target = ROOT / f"bench/results/sweep-models-{version}-{result['measured_on']['machine']}.json"
        target.write_text(_a_line_each(result))
        print(f"written: {target.relative_to(ROOT)}")
    wrong = [(n, a, row) for n, rows in found.items() for a, row in rows.items() if row["verdict"] in BAD]
    for name, attention, row in wrong:
        print(name, attention, row.get("wrong") or row.get("why"))
    print(dict(Counter(row["verdict"] for rows in found.values() for row in rows.values())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
