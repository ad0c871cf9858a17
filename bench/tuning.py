"""Whether tuning decides the same again: independent tunings of the same cases, and planted twins that must not be chosen.

  python bench/tuning.py --tunings 5 --every 8 --json bench/results/tuning-agreement-<machine>.json

Each tuning has a database of its own. It agrees with the others on a call if its winner is the one that most of them have, or
if that kernel's interval of the median overlaps its winner's: a tie. The twins are kernels of norm.rms, one as slow as the
default and one 3 % slower, tuned --twins times. A warm start is what a process does that finds the database: it reads the records
of the machine and those that the library carries, and selects for each of the calls once. Most of it is the reading, which does not
grow with the calls; so the ratio does. Shares of the tunings can run at once, each on cores of its own and with --save; then
`--tunings 0 --add one.json two.json` judges them together. Exit code 1: the tunings agree on less than 99 % of the calls, a twin was chosen, or a warm
start is not 1,000 times faster.
"""

import argparse
import collections
import json
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/python/support"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))

import layerzero as lz  # noqa: E402
import planted_kernels  # noqa: E402
import torch  # noqa: E402
from common import finish
from layerzero import _layerzero  # noqa: E402
from layerzero.bench.operations import all_cases  # noqa: E402
from layerzero.tuning.draw import arguments_on  # noqa: E402
from layerzero.tuning.workload import Entry, Workload  # noqa: E402

BAR, WARM_BAR = 0.99, 1000
PLANTED = ("slow", "twin", "slower")


def tuned(what: object, *args: object, **how: object) -> tuple[list[dict], dict]:
    """Tunes with an empty database. Returns the results of calls that have several kernels, and what a warm start costs then."""
    with tempfile.TemporaryDirectory(prefix="lz-tuning-") as folder:
        lz.configure(cache_dir=folder)
        _layerzero.use_prior()
        report = lz.tune(what, *args, ignore_environment=True, **how).to_dict()
        warm = min((warm_start(report["results"]) for _ in range(3)), key=lambda one: one["warm_s"])
    seconds = {"tuning_s": report["seconds"], **warm, "times_faster": report["seconds"] / warm["warm_s"]}
    return [r for r in report["results"] if len(r["kernels"]) > 1], seconds


def warm_start(results: list[dict]) -> dict:
    """Returns the seconds to read the records, and to select for each call that was tuned."""
    winners = {(r["name"], r["line"]): r["winner"] for r in results if r["winner"]}
    calls = [(_layerzero.ops[name], arguments_on("cpu", name, line)) for name, line in winners]
    start = time.perf_counter()
    _layerzero.use_prior()
    read = time.perf_counter()
    chosen = [_layerzero.which(operation, (), arguments)[0] for operation, arguments in calls]
    end = time.perf_counter()
    as_tuned = sum(a == b for a, b in zip(chosen, winners.values(), strict=True))
    seconds = {"read_s": read - start, "select_s": end - read, "warm_s": end - start}
    return {"calls": len(calls), "chosen_as_tuned": as_tuned, **seconds}


def ties(result: dict, other: str) -> bool:
    """True if a kernel's interval overlaps that of the winner."""
    rows = {row["kernel_id"]: row for row in result["kernels"]}
    mine, its = rows[result["winner"]], rows.get(other)
    return its is not None and its["low_us"] <= mine["high_us"] and mine["low_us"] <= its["high_us"]


def agreement(runs: list[list[dict]]) -> dict:
    """Returns how many decisions of all tunings are the most frequent one of their call, or a tie with it."""
    by_call = collections.defaultdict(list)
    for results in runs:
        for r in results:
            by_call[r["name"], r["line"], r["execution"], r["cache_state"]].append(r)
    same = tied = total = 0
    apart = []
    for call, results in by_call.items():
        most = collections.Counter(r["winner"] for r in results).most_common(1)[0][0]
        for r in results:
            total += 1
            same += r["winner"] == most
            tied += r["winner"] != most and ties(r, most)
            if r["winner"] != most and not ties(r, most):
                apart.append({"call": " ".join(map(str, call)), "winner": r["winner"], "others": most})
    share = (same + tied) / total if total else 0.0
    return {"calls": len(by_call), "decisions": total, "same": same, "ties": tied, "share": share, "apart": apart}


def twins(count: int, samples: int) -> dict:
    """Returns what was chosen of three kernels of norm.rms: the default, its twin, and one that is 3 % slower."""
    call = {"input": torch.ones(4, 64), "weight": torch.ones(64)}
    planted_kernels.plant(*PLANTED)
    os.environ["PLANT"] = ",".join(PLANTED)  # for the process that measures
    lz.configure(allow_sources=["planted"])
    how = {"imports": ["planted_kernels"], "caches": ["warm"], "samples": samples}
    try:
        winners = [r["winner"] for _ in range(count) for r in tuned("rms_norm", **call, **how)[0]]
    finally:
        lz.configure(allow_sources=[])
        planted_kernels.unplant(*PLANTED)
    chosen = dict(collections.Counter(winners))
    return {"tunings": count, "winners": chosen, "ok": len(winners) == count and set(chosen) == {"planted.slow"}}


def fastest(*warm: dict | None) -> dict:
    """Returns the warm start that took the least time."""
    return min(filter(None, warm), key=lambda one: one["warm_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=20)
    parser.add_argument("--twins", type=int, default=20)
    parser.add_argument("--samples", type=int, default=20, help="rounds of the finals")
    parser.add_argument("--every", type=int, default=1, help="each N-th shipped case alone")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file")
    parser.add_argument(
        "--save", type=pathlib.Path, help="write the tunings to this file, after each, and judge nothing"
    )
    parser.add_argument("--add", type=pathlib.Path, nargs="+", default=[], help="judge the tunings in these files too")
    given = parser.parse_args()
    start = time.monotonic()
    cases = all_cases()[:: given.every]
    calls = Workload([Entry(c.operation, c.line, drawn=True) for c in cases])
    facts = {
        "device_id": _layerzero.device_id("cpu"),
        "layerzero": _layerzero.build_id()[1],
        "torch": torch.__version__,
        "samples": given.samples,
    }
    runs, warm = [], None
    if len({path.resolve() for path in given.add}) < len(given.add):
        parser.error("--add: a file is named twice")
    for path in given.add:
        share = json.loads(path.read_text())
        if other := {name: share.get(name) for name in facts if share.get(name) != facts[name]}:
            parser.error(f"{path} is of {other}, this would be of {facts}")
        runs += share["runs"]
        warm = fastest(warm, share["warm_start"])
    for number in range(given.tunings):
        results, own = tuned(calls, samples=given.samples, caches=["warm"])
        runs, warm = [*runs, results], fastest(warm, own)
        print(f"tuning {number + 1}, {time.monotonic() - start:.0f} s", file=sys.stderr)
        if given.save:
            given.save.write_text(json.dumps(facts | {"runs": runs, "warm_start": warm}))
    if given.save:
        return 0
    if not runs:
        parser.error("no tunings: neither --tunings nor --add")
    result = {
        **facts,
        "tunings": len(runs),
        "load_average": os.getloadavg(),
        **agreement(runs),
        "warm_start": warm,
        "twins": twins(given.twins, given.samples),
        "seconds": round(time.monotonic() - start, 1),
    }
    result["ok"] = result["share"] >= BAR and result["twins"]["ok"] and warm["times_faster"] >= WARM_BAR
    return finish(result, given.json)


if __name__ == "__main__":
    sys.exit(main())
