"""Shared code of the checks in this folder: lists files, and prints findings."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

SKIPPED = {".git", ".venv", "build", "dist", "__pycache__", ".cache"}


@dataclass(frozen=True, order=True)
class Finding:
    file: str
    line: int
    rule: str
    message: str


def source_files(root: Path, folders: Iterable[str], suffixes: tuple[str, ...]) -> list[Path]:
    """Returns files below `folders` whose name ends in one of `suffixes`, sorted, without build folders."""
    found = []
    for folder in folders:
        for directory, names, files in os.walk(root / folder):
            names[:] = [n for n in names if n not in SKIPPED and not n.startswith(("build", ".venv"))]
            found += [Path(directory) / f for f in files if f.endswith(suffixes)]
    return sorted(found)


_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/"  # comments
    r'|R"([^\s()\\]{0,16})\(.*?\)\1"'  # raw strings
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def code_only(text: str) -> str:
    """Returns C++ text without comments and string contents; line numbers are kept."""
    return _TOKENS.sub(lambda m: re.sub(r"[^\n]+", " ", m.group()), text)


def includes(text: str) -> list[tuple[int, str]]:
    """Returns (line, path) of every #include that is not in a comment."""
    without_comments = _TOKENS.sub(
        lambda m: re.sub(r"[^\n]+", " ", m.group()) if m.group().startswith(("//", "/*")) else m.group(), text
    )
    return [(without_comments.count("\n", 0, m.start(1)) + 1, m.group(2)) for m in _INCLUDE.finditer(without_comments)]


def main(purpose: str, check: Callable[[Path], tuple[int, list[Finding]]]) -> int:
    """Runs `check(root) -> (number of files, findings)` as a command. Exit 0: clean, 1: findings, 2: no files."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="the repository")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    looked_at, findings = check(args.root.resolve())
    findings.sort()
    if args.json:
        print(json.dumps({"files": looked_at, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        for f in findings:
            print(f"{f.file}:{f.line}: {f.rule}: {f.message}")
        print(f"{Path(sys.argv[0]).name}: {looked_at} files, {len(findings)} findings")
    if looked_at == 0:
        print(f"no file to check below {args.root}", file=sys.stderr)
        return 2
    return 1 if findings else 0
