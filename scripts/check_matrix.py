"""One build on several interpreters and torch versions: runs the tests of the Python doors with each, the same libraries every time.

    python scripts/check_matrix.py --preset release --out bench/results/matrix.json python3.12 /path/to/venv/bin/python

Every interpreter needs torch, numpy and pytest. Exit status 1 when a test fails somewhere.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("liblayerzero.so", "_layerzero.abi3.so", "liblayerzero_torch.so")
TESTS = ("tests/python/test_door.py", "tests/python/test_torch_ops.py")
VERSIONS = "import json, platform, torch; print(json.dumps([platform.python_version(), torch.__version__, torch.cuda.is_available()]))"


def run(interpreter: str, package: Path, tests: list[str]) -> dict:
    env = os.environ | {"PYTHONPATH": str(package)}
    asked = subprocess.run([interpreter, "-c", VERSIONS], capture_output=True, text=True, check=True, env=env)
    python, torch, cuda = json.loads(asked.stdout.splitlines()[-1])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            interpreter,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not full",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
        ]
        done = subprocess.run([*command, *tests], capture_output=True, text=True, env=env, cwd=ROOT)
        if not report.exists():
            raise SystemExit(f"{interpreter}: pytest did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        outcome: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
        for case in cases:
            kinds = {child.tag for child in case}
            kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            outcome[kind].append(f"{case.get('classname')}::{case.get('name')}")
    row = {"python": python, "torch": torch, "cuda": cuda, "passed": len(outcome["passed"])}
    return row | {"skipped": sorted(outcome["skipped"]), "failed": sorted(outcome["failed"])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="release", help="whose build is tested")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    parser.add_argument("interpreters", nargs="*", default=[sys.executable])
    options = parser.parse_args()
    package = ROOT / "build" / options.preset / "python"
    built = {name: (package / "layerzero" / name).read_bytes() for name in LIBRARIES}
    rows = []
    for interpreter in options.interpreters:
        row = run(interpreter, package, options.tests)
        rows.append(row)
        print(
            f"Python {row['python']}, torch {row['torch']}: {row['passed']} passed, {len(row['skipped'])} skipped, "
            f"{len(row['failed'])} failed",
            *row["failed"],
            sep="\n  ",
            flush=True,
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        hashes = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in built.items()}
        options.out.write_text(json.dumps({"tests": options.tests, "libraries": hashes, "runs": rows}, indent=2) + "\n")
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
