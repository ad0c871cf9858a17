"""Every model class of Transformers that can be built small, kernelized and held against itself as it was.

python scripts/sweep_models.py                  all classes, with eager and sdpa attention
python scripts/sweep_models.py BertModel T5Model    these alone, no result is written
python scripts/sweep_models.py --wrong          those that were wrong in the run before

Each class runs in a process of its own, with limits of time and memory. What is done is kept in build/sweep-models.jsonl, so
that an interrupted run goes on; the result is bench/results/sweep-models-<machine>.json. Ends with 1 where a class is wrong.
"""

import argparse
import json
import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS, MEMORY = 120, 12 << 30
ATTENTIONS = ("sdpa", "eager")
# These share their layers with another class: they come last.
HEADS = re.compile(r"(Classification|QuestionAnswering|MultipleChoice|MaskedLM|PreTraining|NextSentencePrediction|CTC|XVector|Backbone|Detection|Segmentation)$")


def judge(kind, attention):
    """The row of one class: verdict "right", "wrong", "not built" or "nothing compared"."""
    import compare_models
    import copy

    import small_classes
    from layerzero.integrations.transformers import kernelize

    try:
        model, given, level = small_classes.build(kind, attention)
    except small_classes.NotBuilt as why:
        return {"verdict": "not built", "why": str(why)[:1500]}
    original = copy.deepcopy(model)
    started = time.monotonic()
    report = kernelize(model)
    seconds = time.monotonic() - started
    outcome = compare_models.held_against(original, model, given)
    ignored = []
    if outcome.wrong:  # of calls that differ from themselves nothing can be said
        ignored = [*compare_models.held_against(original, copy.deepcopy(original), given).wrong]
        outcome.wrong = {name: why for name, why in outcome.wrong.items() if name not in ignored}
    verdict = "wrong" if outcome.wrong else "right" if outcome.errors.keys() - {*ignored} else "nothing compared"
    errors = {name: error for name, error in outcome.errors.items() if name not in ignored}
    return {
        "verdict": verdict,
        "level": level,
        "given": sorted(given),
        "error": max(errors.values(), default=0.0),
        "calls": len(errors),
        "ignored": ignored,
        "refused": outcome.refused,
        "wrong": outcome.wrong,
        "replaced": {part: f"{e['operation']} x{e['count']}, {e['calls']} calls" for part, e in report.replaced.items()},
        "left": short(report.left),
        "kernelize_s": round(seconds, 2),
    }


def short(left):
    """Each reason once, with the first part that has it."""
    once = {}
    for part, reason in left.items():
        once.setdefault(reason, part)
    return {part: reason[:300] for reason, part in once.items()}


def child(kind, attentions, pipe):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for attention in attentions:
        signal.alarm(SECONDS)
        try:
            row = judge(kind, attention)
        except MemoryError:
            row = {"verdict": "not built", "why": "out of memory"}
        except BaseException as error:
            import traceback

            row = {"verdict": "wrong", "wrong": {"kernelize": f"{type(error).__name__}: {str(error)[:300]}"},
                   "trace": traceback.format_exc()[-1500:]}
        os.write(pipe, (json.dumps({attention: row}, default=str) + "\n").encode())


def start(kind, attentions):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        try:
            child(kind, attentions, write)
        finally:
            os._exit(0)
    os.close(write)
    return pid, read


def finish(read, pid):
    data = b""
    while chunk := os.read(read, 65536):
        data += chunk
    os.close(read)
    _, status = os.waitpid(pid, 0)
    rows = {}
    for line in data.decode().splitlines():
        rows |= json.loads(line)
    for attention in ATTENTIONS:
        if attention not in rows:
            why = f"took more than {SECONDS} s" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else f"its process ended with {status}"
            rows[attention] = {"verdict": "not built" if "took" in why else "crashed", "why": why}
            break
    return rows


def run(kinds, done, keep, jobs):
    waiting = [name for name in kinds if name not in done]
    running = {}
    import selectors

    selector = selectors.DefaultSelector()
    total, began = len(kinds), time.monotonic()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            pid, read = start(kinds[name], ATTENTIONS)
            running[read] = (name, pid)
            selector.register(read, selectors.EVENT_READ)
        ready = [key.fd for key, _ in selector.select()]
        for read in ready:
            name, pid = running.pop(read)
            selector.unregister(read)
            done[name] = finish(read, pid)  # waits for its end: the first attention is done
            keep.write(json.dumps({name: done[name]}) + "\n")
            keep.flush()
            verdicts = "/".join(row["verdict"] for row in done[name].values())
            if sys.stderr.isatty():
                print(f"\r{len(done)} of {total}, {time.monotonic() - began:.0f} s: {name} {verdicts}\033[K", end="", file=sys.stderr)
            elif "wrong" in verdicts or "crashed" in verdicts or len(done) % 50 == 0:
                print(f"{len(done)} of {total}: {name} {verdicts}", flush=True)
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--keep", type=Path, default=ROOT / "build/sweep-models.jsonl")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    sys.path.insert(0, str(ROOT / "tests/python/support"))
    import torch

    torch.set_num_threads(1)
    import warnings

    warnings.filterwarnings("ignore")
    import compare_models  # noqa: F401
    import small_classes
    import transformers
    from layerzero.integrations.transformers import kernelize  # noqa: F401

    transformers.logging.set_verbosity_error()
    kinds = dict(sorted(small_classes.classes().items(), key=lambda item: (bool(HEADS.search(item[0])), item[0])))
    done = {}
    if options.keep.exists():
        for line in options.keep.read_text().splitlines():
            done |= json.loads(line)
    if options.wrong:
        options.names = [n for n, rows in done.items() if any(r["verdict"] in ("wrong", "crashed") for r in rows.values())]
        print(len(options.names), "again")
    if options.names:
        done = {}
        kinds = {name: kinds[name] for name in options.names}
    kinds = dict([*kinds.items()][:: options.every])
    done = {n: r for n, r in done.items() if n in kinds}
    options.keep.parent.mkdir(parents=True, exist_ok=True)
    with options.keep.open("a") as keep:
        run(kinds, done, keep, options.jobs)
    counts = Counter(row["verdict"] for rows in done.values() for row in rows.values())
    print(dict(counts))
    for name, rows in done.items():
        for attention, row in rows.items():
            if row["verdict"] in ("wrong", "crashed"):
                print(name, attention, row.get("wrong") or row.get("why"))
    return 1 if counts["wrong"] + counts["crashed"] else 0


if __name__ == "__main__":
    sys.exit(main())
