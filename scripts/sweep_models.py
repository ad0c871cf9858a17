"""Builds every model class of Transformers small, kernelizes it and compares it with the original.

python scripts/sweep_models.py                    all classes, with SDPA and with eager attention
python scripts/sweep_models.py --fresh            discards earlier rows
python scripts/sweep_models.py BertModel T5Model  only these, again
python scripts/sweep_models.py --again "not built"  repeats classes with this verdict

Each class runs in a separate process with one thread and limits of CPU time and memory. Rows are stored in
build/sweep-models-<version>.jsonl, so that an interrupted run resumes; the result is
bench/results/sweep-models-<version>-<machine>.json. Returns 1 if a class is wrong. `judge` documents the rows.
"""

import argparse
import atexit
import contextlib
import copy
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from stamp_result import measured_on

ROOT = Path(__file__).resolve().parent.parent
MEMORY = 12 << 30
PATIENCE = 20  # wall-clock seconds per second of CPU time, because others use the machine too
ATTENTIONS = ("sdpa", "eager")
BAD = ("wrong", "crashed")
# The classes with most of a family's code come first.
FIRST = ("ForConditionalGeneration", "ForCausalLM", "LMHeadModel", "Model", "")
Rows = dict[str, dict[str, Any]]  # attention -> the row of a class


def judge(kind: Any, attention: str) -> dict[str, Any]:
    """Returns a row. verdict: "right", "wrong" with {call: what differs}, "not built" with the reason, "no such
    attention" if the class does not support it, "nothing compared" if the model itself refuses every call or is not
    deterministic. error: the largest relative error of any tensor of any call. Verdicts without a row: "too slow", "too
    large", "crashed".
    """
    import compare_models
    import small_classes
    from layerzero.integrations.transformers import kernelize

    try:
        model, given, _ = small_classes.build(kind, attention)
    except small_classes.NoSuchAttention:
        return {"verdict": "no such attention"}
    except small_classes.NotBuilt as why:
        return {"verdict": "not built", "why": str(why)[:600]}
    original = copy.deepcopy(model)
    report = kernelize(model)
    outcome = compare_models.held_against(original, model, given)
    if outcome.wrong:  # calls that are not deterministic, or that differ by rounding of the weights, prove nothing
        for other in (copy.deepcopy(original), compare_models.rounded(original)):
            outcome = outcome.without(compare_models.held_against(original, other, given).wrong)
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
    """Returns the first reasons, each with the first part that has it."""
    once: dict[str, str] = {}
    for part, reason in left.items():
        once.setdefault(reason, part)
    return {part: reason[:160] for reason, part in [*once.items()][:6]}


# ---- processes


def _child(kind: Any, pipe: int, seconds: int) -> None:
    """Writes a line for each attention. The limit is CPU time, so that other processes do not make a class fail."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    for attention in ATTENTIONS:
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            row = judge(kind, attention)
        except Exception as error:  # raised by kernelize itself, or by torch without memory
            why = f"{type(error).__name__}: {str(error)[:300]}"
            large = isinstance(error, MemoryError) or "can't allocate memory" in why
            row = {"verdict": "too large" if large else "crashed", "why": why, "trace": traceback.format_exc()[-1500:]}
        os.write(pipe, (json.dumps({attention: row}, default=str) + "\n").encode())


class Running:
    """The process of one class. It is forked, because importing everything again would take longer than the class."""

    def __init__(self, name: str, kind: Any, seconds: int) -> None:
        self.name, self.data, self.began = name, b"", time.monotonic()
        self.seconds, self.most = seconds, len(ATTENTIONS) * PATIENCE * seconds
        self.pipe, write = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            try:
                os.setsid()  # its children end with it
                os.close(self.pipe)
                _child(kind, write, seconds)
            finally:
                os._exit(0)
        os.close(write)
        os.set_blocking(self.pipe, False)

    def finished(self) -> Rows | None:
        """Returns its rows once it has ended, None before. A child of it may keep the pipe open for longer."""
        late = time.monotonic() - self.began > self.most
        if late:
            self._kill()
        ended, status = os.waitpid(self.process, 0 if late else os.WNOHANG)
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self.pipe, 65536):
                self.data += part
        if not ended:
            return None
        self._kill()
        os.close(self.pipe)
        return self._rows(status, late)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process, signal.SIGKILL)

    def _rows(self, status: int, late: bool) -> Rows:
        rows: Rows = {}
        for line in self.data.decode().splitlines():
            rows |= json.loads(line)
        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        missing = {"verdict": "crashed", "why": f"its process ended with {status}"}
        if by == signal.SIGXCPU:
            missing = {"verdict": "too slow", "why": f"took more than {self.seconds} s of CPU time"}
        elif late:
            missing = {"verdict": "too slow", "why": f"took more than {self.most} s"}
        for attention in [attention for attention in ATTENTIONS if attention not in rows]:
            rows[attention] = missing
        return rows


def run(kinds: dict[str, Any], done: dict[str, Rows], keep: Any, options: argparse.Namespace) -> None:
    """Adds the rows of all classes that are not `done`, and writes them to `keep` as they finish."""
    most = 60 * (options.minutes or float("inf"))
    waiting = [name for name in kinds if name not in done]
    running: dict[int, Running] = {}
    began, before = time.monotonic(), len(done)
    while waiting or running:
        if time.monotonic() - began > most:
            waiting.clear()
        while waiting and len(running) < options.jobs:
            name = waiting.pop(0)
            started = Running(name, kinds[name], options.seconds)
            running[started.pipe] = started
        select.select([*running], [], [], 0.2)
        for pipe, each in [*running.items()]:
            rows = each.finished()
            if rows is None:
                continue
            del running[pipe]
            done[each.name] = rows
            keep.write(json.dumps({each.name: rows}) + "\n")
            keep.flush()
            _show_progress(each.name, done, len(kinds), before, time.monotonic() - began)


def _show_progress(name: str, done: dict[str, Rows], total: int, before: int, seconds: float) -> None:
    """Shows a bar in a terminal; elsewhere a line for each fault and for every 50 classes."""
    verdicts = "/".join(row["verdict"] for row in done[name].values())
    left = seconds / (len(done) - before) * (total - len(done))
    line = f"{len(done)} of {total}, {seconds:.0f} s, about {left:.0f} s left: {name} {verdicts}"
    if sys.stderr.isatty():
        bar = "#" * (30 * len(done) // total)
        print(f"\r[{bar:30}] {line}\033[K", end="" if len(done) < total else "\n", file=sys.stderr, flush=True)
    elif any(bad in verdicts for bad in BAD) or len(done) % 50 == 0:
        print(line, flush=True)


# ---- results


def result_of(done: dict[str, Rows], classes: int) -> dict[str, Any]:
    counts = Counter(row["verdict"] for rows in done.values() for row in rows.values())
    errors = [row["error"] for rows in done.values() for row in rows.values() if row["verdict"] == "right"]
    totals = {"classes": len(done), "not_run": classes - len(done), **dict(sorted(counts.items()))}
    totals["classes_compared"] = sum(any(row["verdict"] == "right" for row in rows.values()) for rows in done.values())
    totals["largest_error"] = max(errors, default=0.0)
    reasons = {f"why {verdict}": _reasons(done, verdict) for verdict in ("not built", "too slow", "too large")}
    return {"measured_on": measured_on(), "totals": totals, **reasons, "classes": dict(sorted(done.items()))}


def _reasons(done: dict[str, Rows], verdict: str) -> dict[str, int]:
    """Counts classes per reason without names and numbers, the most frequent first."""
    found: Counter[str] = Counter()
    for rows in done.values():
        whys = [row.get("why", "") for row in rows.values() if row["verdict"] == verdict]
        found.update({re.sub(r"'[^']*'|\d+", "_", whys[0])[:100] for _ in whys[:1]})
    return dict(found.most_common())


def _a_line_each(result: dict[str, Any]) -> str:
    """Returns JSON with a line for each class."""
    lines = [f'  "{name}": {json.dumps(rows)}' for name, rows in result["classes"].items()]
    head = json.dumps({name: value for name, value in result.items() if name != "classes"}, indent=1)[:-2]
    return head + ',\n "classes": {\n' + ",\n".join(lines) + "\n }\n}\n"


def _prepared() -> tuple[dict[str, Any], str]:
    """Returns (classes, version of Transformers), with one thread, so that children can be forked."""
    # OpenMP threads that spin while waiting stalled a run when other processes used the cores.
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    os.environ["LAYERZERO_CACHE_DIR"] = tempfile.mkdtemp()  # no findings are cached
    atexit.register(shutil.rmtree, os.environ["LAYERZERO_CACHE_DIR"], ignore_errors=True)
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


def _with_verdict(done: dict[str, Rows], *verdicts: str) -> list[str]:
    return [name for name, rows in done.items() if any(row["verdict"] in verdicts for row in rows.values())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--again", nargs="+", metavar="VERDICT")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=120, help="CPU time for a class with one attention")
    parser.add_argument("--keep", type=Path, help="another file for the rows; no result is written then")
    parser.add_argument("--minutes", type=float, help="start no class after this time; the result lists those not run")
    options = parser.parse_args()
    kinds, version = _prepared()
    path = options.keep or ROOT / f"build/sweep-models-{version}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        path.unlink(missing_ok=True)
    done = {name: rows for name, rows in _kept(path).items() if name in kinds}
    again = options.names or (_with_verdict(done, *options.again) if options.again else [])
    asked = {name: kinds[name] for name in again} if options.names or options.again else kinds
    done = {name: rows for name, rows in done.items() if name not in again}
    found = {name: rows for name, rows in done.items() if name in asked}
    with path.open("a") as keep:
        run(asked, found, keep, options)
    done |= found
    result = result_of(done, len(kinds))
    if not options.keep:
        target = ROOT / f"bench/results/sweep-models-{version}-{result['measured_on']['machine']}.json"
        target.write_text(_a_line_each(result))
        print(f"written: {target.relative_to(ROOT)}")
    wrong = [(n, a, row) for n, rows in found.items() for a, row in rows.items() if row["verdict"] in BAD]
    for name, attention, row in wrong:
        print(name, attention, row.get("wrong") or row.get("why"))
    print(", ".join(f"{name}: {value}" for name, value in result["totals"].items()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
