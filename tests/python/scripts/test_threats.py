"""Each line of SECURITY.md's table of threats names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CELL = re.compile(r"`(tests/[^`]+)`: `(\w+)`")


def missing(text):
    """Returns the lines whose test does not exist, and the number of lines."""
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| threat")]
    wrong = []
    for row in rows:
        found = CELL.search(row.split("|")[3])
        path = ROOT / found[1] if found else None
        if path is None or not path.is_file() or not re.search(rf"(def |, ){found[2]}\(?\W", path.read_text()):
            wrong.append(row)
    return wrong, len(rows)


def test_each_threat_has_its_test():
    wrong, count = missing((ROOT / "SECURITY.md").read_text())
    assert not wrong and count >= 15


def test_a_test_that_does_not_exist_is_found():
    text = (ROOT / "SECURITY.md").read_text()
    row = "| a | b | `tests/base/signature_test.cpp`: `NoSuchTest` |"
    assert missing(f"{text}\n{row}")[0] == [row]
    assert missing("| a | b | none |")[0]
