"""Kills writers of the performance database with SIGKILL, cycle by cycle; nothing acknowledged may be lost.

  python bench/perfdb_kill.py --cycles 10000 --resume --json bench/results/perfdb-kill.json     about 25 minutes on 2 cores

In each cycle 4 processes write pairs of records, each pair in one transaction, and note the pair in a file of their own once
the write has returned. After 20 to 100 ms all are killed. Then the database must be whole (it checks every row and the sum
of all), have both halves of every pair, and every pair that was noted. Process death only, no loss of power. Exit code 1: a
cycle was bad. SIGTERM ends the run after a cycle, with the result of those that were made; --resume adds to such a result.
On a busy machine fewer writes are made before each kill: "acknowledged" says how many there were. Shares of the cycles can run
at once, each with a --json of its own: `--cycles 0 --json all.json --add one.json two.json` adds them up, each file once: "added" has their names.

The journal is that of the SQLite that is found: LD_LIBRARY_PATH=<folder with another libsqlite3.so.0> tests another one.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable

from common import finish, record
from layerzero import _layerzero, perf_records

HALVES = ("a", "b")
MOST_ROWS = 4000


def half_of(writer: int, number: int, half: str) -> dict:
    return record(kernel_id=f"writer{writer}.{half}", axes={"...": number})


def write_pairs(writer: int, database: pathlib.Path, notes: pathlib.Path) -> None:
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        number = time.monotonic_ns()
        perf_records.write_database([half_of(writer, number, half) for half in HALVES], database)
        os.write(file, f"{number}\n".encode())


def noted(notes: pathlib.Path) -> set[int]:
    """Returns the numbers of whole lines."""
    text = notes.read_text() if notes.exists() else ""
    return {int(line) for line in text[: text.rfind("\n") + 1].split()}


def problem_of(folder: pathlib.Path, writers: int) -> tuple[str, int]:
    """Returns what is wrong ("": nothing) and the number of rows."""
    database = folder / "perfdb.sqlite"
    try:
        rows = perf_records.read_database(database)
    except Exception as error:
        return str(error), 0
    found: dict[str, set[int]] = {}
    for row in rows:
        found.setdefault(row["kernel_id"], set()).add(row["axes"]["..."])
    for writer in range(writers):
        first, second = (found.get(f"writer{writer}.{half}", set()) for half in HALVES)
        if first != second:
            return f"{len(first ^ second)} halves of transactions of writer {writer}", len(rows)
        if lost := noted(folder / f"noted.{writer}") - first:
            return f"{len(lost)} acknowledged writes of writer {writer} are lost", len(rows)
    return "", len(rows)


def acknowledged(folder: pathlib.Path, writers: int) -> int:
    return sum(len(noted(folder / f"noted.{writer}")) for writer in range(writers))


def cycle(folder: pathlib.Path, writers: int) -> None:
    children = []
    try:
        for writer in range(writers):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                try:
                    write_pairs(writer, folder / "perfdb.sqlite", folder / f"noted.{writer}")
                finally:
                    os._exit(1)
            children.append(child)
        time.sleep(random.uniform(0.02, 0.1))
    finally:  # if this program is interrupted too
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def run(folder: pathlib.Path, cycles: int, writers: int, after: Callable[[dict], None]) -> None:
    """Calls `after` with the counts after each cycle, until SIGTERM comes or a cycle is bad."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    start, rows, pairs = time.time(), 0, 0
    for done in range(1, cycles + 1):
        cycle(folder, writers)
        problem, count = problem_of(folder, writers)
        rows, now = max(rows, count), acknowledged(folder, writers)
        bad = [f"cycle {done}: {problem}"] if problem else []
        seconds = round(time.time() - start, 1)
        counts = {"cycles": done, "kills": done * writers, "acknowledged": pairs + now, "most_rows": rows}
        after(counts | {"seconds": seconds, "bad": bad})
        if stopped or bad:
            return
        if count > MOST_ROWS:
            pairs += now
            for path in folder.iterdir():
                path.unlink()


def joined(before: dict, counts: dict) -> dict:
    """Returns the sums of two results."""
    names = ("cycles", "kills", "acknowledged", "seconds", "bad")
    sums = {name: before.get(name, type(counts[name])()) + counts[name] for name in names}
    return before | sums | {"most_rows": max(before.get("most_rows", 0), counts["most_rows"]), "ok": not sums["bad"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=10_000, help="with --resume: in all")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--folder", type=pathlib.Path, help="on the disk to be tested; default: a temporary folder")
    parser.add_argument("--json", type=pathlib.Path, help="write the result to this file, every 100 cycles")
    parser.add_argument("--resume", action="store_true", help="add to what the file of --json has")
    parser.add_argument("--add", type=pathlib.Path, nargs="+", default=[], help="add the results in these files too")
    given = parser.parse_args()
    facts = {"sqlite": perf_records.database_state()["sqlite"], "writers": given.writers}
    before: dict = {"builds": [], "added": []}
    resumed = [given.json] if given.resume and given.json is not None and given.json.exists() else []
    for path in resumed + given.add:
        found = json.loads(path.read_text())
        names = [*found.get("added", []), *([] if path in resumed else [path.name])]
        again = path in given.add and any(path.samefile(other) for other in resumed)
        if again or len({*before["added"], *names}) < len(before["added"]) + len(names):
            parser.error(f"{path}: it or a file of that name is counted already")
        if other := {name: found.get(name) for name in facts if found.get(name) != facts[name]}:
            parser.error(f"{path} is of {other}, this would be of {facts}")
        builds = list(dict.fromkeys([*before["builds"], *found["builds"]]))
        before = joined(before, found) | {"builds": builds, "added": before["added"] + names}
    if given.cycles > before.get("cycles", 0):
        before["builds"] = list(dict.fromkeys([*before["builds"], _layerzero.build_id()[1]]))
    before = facts | before
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lz-perfdb-", dir=given.folder))
    result = before | {"ok": not before.get("bad")}

    def after(counts: dict) -> None:
        nonlocal result
        result = joined(before, counts)
        if given.json and counts["cycles"] % 100 == 0:
            given.json.write_text(json.dumps(result, indent=2) + "\n")
            print(f"{result['cycles']} cycles, {result['seconds']:.0f} s", file=sys.stderr)

    run(folder, given.cycles - before.get("cycles", 0), given.writers, after)
    if result["ok"]:
        shutil.rmtree(folder)
    return finish(result, given.json)


if __name__ == "__main__":
    sys.exit(main())
