"""Writes src/tokenize/unicode_tables.inc: the properties of code points that pre-tokenizers and normalizers compare.

Usage: python scripts/unicode_tables.py [--check]

The tables are Unicode 16.0, the version of the regular expressions in tokenizers 0.23 and tiktoken 0.14. Python 3.14
ships that version as unicodedata; the package unicodedata2 of release 16.0.0 has it for others.
tests/python/test_own_tokenizer.py compares the tables with both libraries.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

VERSION = "16.0.0"
TARGET = Path(__file__).resolve().parents[1] / "src/tokenize/unicode_tables.inc"

# As in src/tokenize/unicode.h.
LETTER, NUMBER, SPACE, MARK, UPPER, LOWER, ASSIGNED = 1, 2, 4, 8, 16, 32, 64
NORMALIZED = {"NFC": 128, "NFKC": 256, "NFD": 512, "NFKD": 1024}
UNCASED = 2048
WHITE_SPACE = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def data() -> Any:
    for name in ("unicodedata", "unicodedata2"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if module.unidata_version == VERSION:
            return module
    raise SystemExit(f"wanted Unicode {VERSION}: run it with Python 3.14, or `pip install unicodedata2=={VERSION}`")


def composed_seconds(unicode: Any) -> set[int]:
    """Returns the code points that a character before them may absorb under composition."""
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # vowels and finals of Hangul
    for code in range(0x110000):
        parts = unicode.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<") and unicode.normalize("NFC", chr(code)) == chr(code):
            found.add(int(parts[1], 16))
    return found


def bits(unicode: Any, code: int, seconds: set[int]) -> int:
    text, category = chr(code), unicode.category(chr(code))
    value = {"L": LETTER, "N": NUMBER, "M": MARK}.get(category[0], 0)
    value |= UPPER if category in ("Lu", "Lt") else LOWER if category == "Ll" else 0
    value |= SPACE if code in WHITE_SPACE else 0
    if category in ("Cn", "Cs"):
        return value
    value |= ASSIGNED
    for form, bit in NORMALIZED.items():
        stays = unicode.normalize(form, text) == text and unicode.combining(text) == 0
        if stays and (not form.endswith("C") or code not in seconds):
            value |= bit
    return value | (UNCASED if text.lower() == text and category not in ("Lu", "Lt") else 0)


def table() -> str:
    unicode = data()
    seconds = composed_seconds(unicode)
    runs: list[tuple[int, int]] = []
    for code in range(0x110000):
        value = bits(unicode, code, seconds)
        if not runs or runs[-1][1] != value:
            runs.append((code, value))
    cells = [f"{{0x{code:X}, {value}}}," for code, value in runs]
    lines = [" ".join(cells[i : i + 7]) for i in range(0, len(cells), 7)]
    head = (
        f"// Made by scripts/unicode_tables.py of Unicode {VERSION}. Do not edit. {{first code point of a run, bits}}"
    )
    return "\n".join([head, *lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the file instead of writing it")
    text = table()
    if not parser.parse_args().check:
        TARGET.write_text(text)
        return 0
    same = TARGET.read_text() == text
    print(f"{TARGET.name}: {'as made' if same else 'differs; run scripts/unicode_tables.py'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
