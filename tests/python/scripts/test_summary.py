"""The closing line of `make test` counts what ctest and pytest report, and is never green for no test."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CTEST = """<testsuite tests="3"><testcase name="a" status="run"/><testcase name="b" status="fail"><failure/></testcase>
<testcase name="c" status="notrun"><skipped/></testcase></testsuite>"""
PYTEST = (
    """<testsuites><testsuite><testcase name="a"/><testcase name="b"><error/></testcase></testsuite></testsuites>"""
)


def summary(tmp_path, *reports):
    paths = []
    for i, text in enumerate(reports):
        paths.append(tmp_path / f"{i}.xml")
        paths[-1].write_text(text)
    command = [sys.executable, str(ROOT / "scripts/test_summary.py"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()[-1]


def test_adds_up(tmp_path):
    assert summary(tmp_path, CTEST, PYTEST) == (1, "2 passed, 2 failed, 1 skipped")


def test_all_passed(tmp_path):
    assert summary(tmp_path, '<testsuite><testcase name="a"/></testsuite>') == (0, "1 passed, 0 failed, 0 skipped")


def test_no_test_is_a_failure(tmp_path):
    assert summary(tmp_path, "<testsuite/>") == (1, "0 passed, 0 failed, 0 skipped")
