"""Plain English: no phrase of the last table of docs/glossary.md, and no comment line of one word."""

import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from findings import Finding, main, source_files

FOLDERS = ("include", "src", "ops", "kernels", "bindings", "python", "scripts", "bench", "docs")
SUFFIXES = (".h", ".cpp", ".cu", ".py", ".sh", ".md")
LEFT_OUT = ("docs/glossary.md", "scripts/check_words.py")  # the table of phrases itself
PHRASES = {
    r"beside": "with, next to, as well as",
    r"lies?|lie in memory": "is, is stored",
    r"gives": "returns, produces",
    r"behind": "after, past the end",
    r"(?<!step )(?<!steps )(?<!stepped )(?<!stepping )aside": "excluded, skipped",
    r"anew": "again",
    r"so many": "a number with a name",
    r"for ever": "for the life of the process",
    r"comes? about": "is created",
    r"stands?": "represents, is",
    r"told": "identified by, says",
}
PATTERN = re.compile(
    r"\b(?:" + "|".join(f"(?P<p{i}>{phrase})" for i, phrase in enumerate(PHRASES)) + r")\b", re.IGNORECASE
)
COMMENT = re.compile(r"^\s*(?://|#)(?!include|if|pragma|define|undef|endif|else|error|!)\s*(.*)$")
ONE_WORD = re.compile(r"^[\w'`.,;:]+$")


def check(root: Path) -> tuple[int, list[Finding]]:
    files = [path for path in source_files(root, FOLDERS, SUFFIXES) if not _left_out(path.relative_to(root).as_posix())]
    findings = [finding for path in files for finding in _in_file(path, path.relative_to(root).as_posix())]
    return len(files), findings


def _left_out(name: str) -> bool:
    return name.startswith(LEFT_OUT)


def _in_file(path: Path, name: str) -> Iterator[Finding]:
    before = ""
    lines = path.read_text().splitlines()
    prose = _of_python(lines) if path.suffix == ".py" else [_prose(line, path.suffix) for line in lines]
    for number, (line, text) in enumerate(zip(lines, prose, strict=True), 1):
        for found in PATTERN.finditer(text):
            better = list(PHRASES.values())[int(str(found.lastgroup)[1:])]
            yield Finding(name, number, "words", f'"{found.group()}": say {better}')
        comment = COMMENT.match(line) if path.suffix != ".md" else None
        words = comment.group(1) if comment else ""
        if words and before and ONE_WORD.match(words) and not before.endswith((":", ".")) and before.count(" ") > 3:
            yield Finding(name, number, "words", f'"{words}" alone on a comment line: rewrap the comment')
        before = words


def _prose(line: str, suffix: str) -> str:
    """Returns the prose of a line: all of it but code spans of Markdown."""
    return re.sub(r"`[^`]*`", "", line) if suffix == ".md" else line


def _of_python(lines: list[str]) -> list[str]:
    """Returns the comments and strings of each line, without code spans and strings of one word, which are names."""
    prose = [""] * len(lines)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(iter([f"{line}\n" for line in lines]).__next__):
        if token.type not in kinds or re.fullmatch(r"""["'][\w.]*["']""", token.string):
            continue
        for offset, text in enumerate(re.sub(r"`[^`\n]*`", "", token.string).split("\n")):
            prose[token.start[0] - 1 + offset] += f" {text}"
    return prose


if __name__ == "__main__":
    sys.exit(main(__doc__, check))
