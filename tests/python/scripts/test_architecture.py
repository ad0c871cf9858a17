"""ARCHITECTURE.md: its walk of a call names each file once and functions of that file; its folders have no circles."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import architecture  # noqa: E402

ROW = re.compile(r"^\| \d+ \| `([^`]+)` \| ([^|]+) \|")


def walk(page):
    """Returns (file, functions) of each row of the walk."""
    rows = filter(None, map(ROW.match, page.splitlines()))
    return [(row[1], re.findall(r"`(\w+)`", row[2])) for row in rows]


def faults(page):
    files = [file for file, _ in walk(page)]
    found = [f"{file}: twice" for file in {file for file in files if files.count(file) > 1}]
    for file, functions in walk(page):
        text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        found += [f"{file}: no {name}" for name in functions if not re.search(rf"\b{name}\b", text)]
    return found


def test_the_walk_names_each_file_once_and_its_functions():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(walk(page)) > 15 and faults(page) == []


@pytest.mark.parametrize(
    "row", ["| 1 | `src/engine/call.h` | `RunGone` | x |", "| 1 | `src/engine/gone.h` | `RunCall` | x |"]
)
def test_a_planted_row_is_found(row):
    assert faults(row)
    twice = "| 1 | `src/engine/call.h` | `RunCall` | x |"
    assert faults(f"{twice}\n{twice}") == ["src/engine/call.h: twice"]


def test_folders_and_parts_have_no_circles():
    for uses in (architecture.engine_uses(ROOT), architecture.python_uses(ROOT)):
        order = architecture.in_order(uses)
        assert len(order) > 10
        for name in order:
            later = [other for other in uses[name] if order.index(other) > order.index(name)]
            assert not later, f"{name} depends on {later}, which depends on it"


def test_a_circle_is_found():
    assert architecture.in_order({"a": {"b"}, "b": {"a"}}) == ["a", "b"]  # a depends on a later one
