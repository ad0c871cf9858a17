"""Tests one wheel on several Python and torch versions: runs the bindings' tests in fresh environments.

    make wheel && python scripts/check_matrix.py             the five cells, recorded in bench/results/matrix.json
    python scripts/check_matrix.py --cells 3.12:2.11.0       one of them; the record lists those not run
    python scripts/check_matrix.py --here                    this Python with its packages: no network

An environment is removed before the next one is created: torch with CUDA takes 5 GB. A cell that passed with the same
wheel and tests is not run again, so an interrupted run resumes. Exit status 1 if anything fails.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / "build/matrix"
CELLS = ("3.10:2.11.0", "3.11:2.13.0", "3.12:2.11.0", "3.13:2.13.0", "3.13:newest")
TESTS = ("tests/python/test_fast_path.py", "tests/python/test_torch_ops.py")
ABOUT = """
import json, platform, layerzero, torch
print(json.dumps([platform.python_version(), torch.__version__, layerzero._build, layerzero.__file__]))
"""


def interpreter(version: str) -> str:
    found = shutil.which(f"python{version}")
    pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    if not found and not pyenv:
        raise SystemExit(f"no Python {version} on this machine: install it, or leave the cell out with --cells")
    return str(pyenv[-1]) if pyenv else str(found)


def call(command: list, **options) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LZ_SOURCE_DIR")}
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env, **options)


def must(command: list) -> str:
    done = call(command)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return done.stdout


def make_environment(folder: Path, python: str, torch: str | None, wheel: Path) -> Path:
    """Creates an environment. `torch`: a version, "newest", or None for the packages of the running Python."""
    shutil.rmtree(folder, ignore_errors=True)
    must([python, "-m", "venv", folder])
    inside = folder / "bin/python"
    if torch:
        wanted = "torch" if torch == "newest" else f"torch=={torch}"
        pip = [inside, "-m", "pip", "install", "-q", "--no-cache-dir"]
        must([*pip, wanted])
        must([*pip, "numpy", "pytest", "hypothesis", wheel])
    else:  # a path in a .pth file: nested .pth files, such as the development build's, are not read
        site = Path(must([inside, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]).strip())
        (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        must([inside, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel])
    return inside


def run_tests(inside: Path, folder: Path, tests: list[str]) -> dict[str, list[str]]:
    report = folder / "report.xml"
    options = ["-q", "-m", "not full", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = call([inside, "-m", "pytest", *options, *tests], cwd=ROOT)
    if not report.exists():
        raise RuntimeError(f"pytest did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    outcome: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        said = next((str(child.get("message")) for child in case if child.tag in ("failure", "error")), "")
        outcome[kind].append(f"{case.get('classname')}::{case.get('name')}" + (f": {said[:500]}" if said else ""))
    return outcome


def run_cell(cell: str, python: str, torch: str | None, wheel: Path, tests: list[str]) -> dict:
    folder, start = STATE / cell.replace(":", "-"), time.monotonic()
    row: dict = {"cell": cell}
    try:
        inside = make_environment(folder, python, torch, wheel)
        version, torch_version, build, where = json.loads(must([inside, "-c", ABOUT]).splitlines()[-1])
        if not Path(where).is_relative_to(folder):
            raise RuntimeError(f"the tests would import {where}, not the wheel")
        row |= {"python": version, "torch": torch_version, "build": build}
        must([inside.parent / "layerzero", "doctor", "--json"])
        outcome = run_tests(inside, folder, tests)
        row |= {"passed": len(outcome["passed"]), "skipped": outcome["skipped"], "failed": outcome["failed"]}
    except RuntimeError as error:
        row["failed"] = [str(error)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return row | {"seconds": round(time.monotonic() - start)}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def state_of(cell: str) -> Path:
    return STATE / f"{cell.replace(':', '-')}.json"


def recall(cell: str, wheel: Path, tests: list[str]) -> dict | None:
    """Returns the row of a cell that ran with the same wheel and tests."""
    if not state_of(cell).exists():
        return None
    before = json.loads(state_of(cell).read_text())
    return before["row"] if before["inputs"] == inputs_of(wheel, tests) else None


def inputs_of(wheel: Path, tests: list[str]) -> str:
    return digest(b"".join(path.read_bytes() for path in (wheel, *(ROOT / test for test in tests))))


def run_or_recall(cell: str, python: str, torch: str | None, wheel: Path, tests: list[str]) -> dict:
    before = recall(cell, wheel, tests)
    if before and not before["failed"]:
        return before
    row = run_cell(cell, python, torch, wheel, tests)
    state_of(cell).write_text(json.dumps({"inputs": inputs_of(wheel, tests), "row": row}))
    return row


def write_record(wheel: Path, tests: list[str]) -> None:
    rows = {cell: recall(cell, wheel, tests) for cell in CELLS}
    result = describe(wheel) | {
        "tests": tests,
        "not_run": [cell for cell, row in rows.items() if not row],
        "runs": [row for row in rows.values() if row],
    }
    (ROOT / "bench/results/matrix.json").write_text(json.dumps(result, indent=2) + "\n")


def describe(wheel: Path) -> dict:
    with zipfile.ZipFile(wheel) as files:
        libraries = {Path(n).name: digest(files.read(n))[:16] for n in files.namelist() if n.endswith(".so")}
    return {"wheel": wheel.name, "sha256": digest(wheel.read_bytes()), "libraries": libraries}


def newest_wheel() -> Path:
    wheels = sorted((ROOT / "dist").glob("*-manylinux_*.whl"), key=lambda p: p.stat().st_mtime)
    if not wheels:
        raise SystemExit("no wheel in dist/. Type: make wheel")
    return wheels[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="default: the newest portable one in dist/")
    parser.add_argument("--cells", nargs="*", metavar="PYTHON:TORCH", help=" ".join(CELLS))
    parser.add_argument("--here", action="store_true", help="one cell: this Python and its packages")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    options = parser.parse_args()
    wheel = (options.wheel or newest_wheel()).resolve()
    cells = ["here"] if options.here else options.cells or list(CELLS)
    STATE.mkdir(parents=True, exist_ok=True)
    rows = []
    for cell in cells:
        version, _, torch = cell.partition(":")
        python = sys.executable if options.here else interpreter(version)
        row = run_or_recall(cell, python, torch or None, wheel, options.tests)
        rows.append(row)
        counts = f"{row.get('passed', 0)} passed, {len(row.get('skipped', []))} skipped, {len(row['failed'])} failed"
        print(f"{cell} (Python {row.get('python')}, torch {row.get('torch')}): {counts}", *row["failed"], sep="\n  ")
        sys.stdout.flush()
    if not options.here:
        write_record(wheel, options.tests)
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
