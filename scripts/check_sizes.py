"""Checks sizes: a header has at most 250 lines, a source 500; no file has more than 800."""

import sys
from pathlib import Path

from findings import Finding, main, source_files

LIMITS = {".h": 250, ".cpp": 500, ".cu": 500, ".py": 500, ".cmake": 150, ".sh": 200}
HARD_STOP = 800
FOLDERS = ("include", "src", "ops", "kernels", "bindings", "python", "scripts", "cmake", "tests", "bench", "examples")

# Files that exceed the soft limit for a reason; the hard limit applies to them too.
REASONS: dict[str, str] = {}


def check(root: Path) -> tuple[int, list[Finding]]:
    files = source_files(root, FOLDERS, tuple(LIMITS))
    findings = []
    for path in files:
        name = path.relative_to(root).as_posix()
        lines = path.read_text().count("\n")
        limit = HARD_STOP if name in REASONS else LIMITS[path.suffix]
        if lines > limit:
            findings.append(Finding(name, lines, "size", f"{lines} lines, at most {limit}; split it by subject"))
    return len(files), findings


if __name__ == "__main__":
    sys.exit(main(__doc__, check))
