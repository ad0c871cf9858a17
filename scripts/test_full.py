"""Runs every tier by stages. A stage that passed on the same files is not run again, so an interrupted run resumes.

  make test-full                       all stages
  make test-full STAGES="asan tsan"    some of them
Each stage's outcome is written to bench/results/test-full-<machine>.json as soon as it ends, with its commit and the
tree of the files that it depends on; the next run resumes from that record, in another clone too. `not_run` lists the
stages that have not run on the current files here, `passed_elsewhere` the types of machine on which one of them passed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/test-full"


@dataclass(frozen=True)
class Stage:
    command: str
    ignores: tuple[str, ...] = ()  # pathspecs of files that do not affect it


def built(preset: str, tier: str = "all") -> str:
    return f"scripts/build.sh {preset} && TIER={tier} PRESET={preset} scripts/test.sh"


def without_python(command: str) -> Stage:
    """A stage that depends only on C++ files. Pages that a C++ test compares are compared in `release` too."""
    return Stage(command, ("*.py", "*.md", "bindings", "tests/python", "bench"))


# In order: stages that fail fast come first. `release` is what users get, with all slow tests; `dev` has assertions;
# `asan` includes UBSan.
STAGES = {
    "format": Stage("scripts/format.sh --check"),
    "release": Stage(built("release")),
    "lint": Stage("scripts/lint.sh --all"),
    "dev": Stage(built("dev", tier="ci")),
    "asan": without_python(built("asan")),
    "fuzz": without_python("scripts/build.sh asan && scripts/fuzz.sh asan"),
    "tsan": without_python(built("tsan")),
    "aarch64": without_python("scripts/aarch64.sh"),
    "wheel": Stage("scripts/wheel.sh", ("tests", "docs")),
    "matrix": Stage(".venv/bin/python scripts/check_matrix.py"),
}
COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)


def git(*args: str, **env: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=ROOT, env={**os.environ, **env}, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def tree_id(ignored: tuple[str, ...] = ()) -> str:
    """Identifies the contents of the working tree, without results of measurements and `ignored` files."""
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder) / "index")
        git("add", "--all", GIT_INDEX_FILE=index)
        git("rm", "-r", "-q", "--cached", "--ignore-unmatch", "bench/results", *ignored, GIT_INDEX_FILE=index)
        return git("write-tree", GIT_INDEX_FILE=index)


def record() -> Path:
    return ROOT / f"bench/results/test-full-{machine()}.json"


def last_runs(of: Path | None = None) -> dict[str, dict]:
    """Returns the newest outcome of every stage in a record, by default this machine's, on any files."""
    path = of or record()
    known = json.loads(path.read_text())["stages"] if path.exists() else []
    return {run["stage"]: run for run in known if "tree" in run}


def is_current(name: str, run: dict) -> bool:
    """True if the stage would do the same again."""
    stage = STAGES[name]
    return run.get("command") == stage.command and run["tree"] == tree_id(stage.ignores)


def passed_elsewhere(name: str) -> list[str]:
    """Returns other types of machine whose records say that the stage passed on the same files."""
    prefix, found = "test-full-", []
    for path in sorted(record().parent.glob(prefix + "*.json")):
        run = last_runs(path).get(name)
        if path != record() and run and run["passed"] and is_current(name, run):
            found.append(path.stem.removeprefix(prefix))
    return found


def write_record(runs: dict[str, dict]) -> None:
    current = {name for name in STAGES if name in runs and is_current(name, runs[name])}
    not_run = [name for name in STAGES if name not in current]
    summary = {
        "tree": tree_id(),
        "passed": all(name in current and runs[name]["passed"] for name in STAGES),
        "not_run": not_run,
        "passed_elsewhere": {name: there for name in not_run if (there := passed_elsewhere(name))},
        "stages": [runs[name] for name in STAGES if name in runs],
    }
    record().parent.mkdir(parents=True, exist_ok=True)
    part = record().with_suffix(".part")  # a run may be killed at any time
    part.write_text(json.dumps(summary, indent=2) + "\n")
    part.replace(record())


def run_stage(name: str) -> dict:
    stage = STAGES[name]
    tree, before = tree_id(stage.ignores), last_runs().get(name)
    if before and is_current(name, before) and before["passed"]:
        print(f"== {name}: passed before on these files ({before['seconds']} s)")
        return before
    print(f"== {name}: {stage.command}", flush=True)
    commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".", ":!bench/results")
    log = LOGS / f"{name}.log"
    start = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", stage.command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            print(line, end="", flush=True)
    passed = process.wait() == 0
    result: dict[str, Any] = {
        "stage": name,
        "command": stage.command,
        "commit": commit,
        "working_tree": "changed since the commit" if changed else "clean",
        "tree": tree,
        "passed": passed and tree_id(stage.ignores) == tree,
        "seconds": round(time.monotonic() - start),
    }
    counts = COUNTS.findall(log.read_text())
    if counts:
        result["tests"] = dict(zip(("passed", "failed", "skipped"), map(int, counts[-1]), strict=True))
    if passed and not result["passed"]:
        result["why"] = "files changed while the stage ran"
        print(f"== {name}: {result['why']}; it has to run again")
    write_record({**last_runs(), name: result})
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--tree", action="store_true", help="print the id of the files that a stage depends on")
    options = parser.parse_args()
    wanted = options.stages or list(STAGES)
    unknown = [s for s in wanted if s not in STAGES]
    if unknown:
        parser.error(f"no stage named {unknown[0]}; stages: {', '.join(STAGES)}")
    if options.tree:
        print(tree_id(STAGES[wanted[0]].ignores))
        return 0
    LOGS.mkdir(parents=True, exist_ok=True)
    results = [run_stage(name) for name in wanted]

    write_record(last_runs())
    print(f"written: {record().relative_to(ROOT)}")
    failed = [r["stage"] for r in results if not r["passed"]]
    for r in results:
        print(f"{r['stage']:8} {'passed' if r['passed'] else 'FAILED'} {r['seconds']:5} s  {r.get('tests', '')}")
    counted = [r["tests"] for r in results if "tests" in r]
    passed, bad, skipped = (sum(c[k] for c in counted) for k in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {max(bad, len(failed))} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
