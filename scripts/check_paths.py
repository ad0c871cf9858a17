"""Checks that the files and names in backticks of docs/design and ARCHITECTURE.md are in the tree."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from findings import Finding, main, source_files

PAGES = ("docs/design", "docs/guide")
SINGLE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/glossary.md")
CODE = (
    "src",
    "include",
    "ops",
    "kernels",
    "bindings",
    "python",
    "scripts",
    "bench",
    "tests",
    "cmake",
    "schemas",
    "policies",
)
SUFFIXES = (".h", ".cpp", ".cu", ".py", ".pyi", ".sh", ".cmake", ".txt", ".json", ".yaml", ".in", ".cases", ".toml")
SPAN = re.compile(r"`([^`\n]+)`")
# Names of other projects; files of a user, and patterns of names.
ELSEWHERE = frozenset(
    (
        "DIFFUSERS_ATTN_BACKEND",
        "SGLANG_PLUGINS",
        "VLLM_PLUGINS",
        "append_paged_kv_cache",
        "bli_sgemm",
        "blis",
        "cudaErrorStreamCaptureInvalidated",
        "cutlass_scaled_mm",
        "fp8_scaled_mm",
        "gelu_fast",
        "gelu_new",
        "gelu_quick",
        "get_local_kernel",
        "madvise",
        "moe_fused_gate",
        "nondeterministic_seeded",
        "stack_size",
        "tie_break",
        "top_k_renorm",
        "top_p_renorm",
        "ubsan",
        "layerzero.yaml",
        "config.yaml",
        "prior.records.json",
        "kernels/norm/rms/mine.cpp",
        "*_full_test.cpp",
        ".ref.cpp",
        "_ref.py",
    )
)
FILE = re.compile(r"[\w*{},./-]*[\w*}]\.(?:h|cpp|cu|py|pyi|sh|md|json|yaml|cmake|cases)")
FOLDER = re.compile(
    r"(?:src|include|ops|kernels|bindings|python|scripts|bench|tests|docs|cmake|devices|policies|schemas)/[\w*{},./-]*"
)
NAME = re.compile(r"(?:\w+(?:\.|::))*\w+(?:\(\))?")


def check(root: Path) -> tuple[int, list[Finding]]:
    pages = source_files(root, PAGES, (".md",)) + [root / name for name in SINGLE if (root / name).is_file()]
    files = _files(root)
    words = _words(root)
    return len(pages), [f for page in pages for f in _in_page(page, page.relative_to(root).as_posix(), files, words)]


def _files(root: Path) -> set[str]:
    """Returns all paths and all of their ends: a page may name a file by its last folders."""
    found = set()
    for path in source_files(root, (".",), ("",)):
        parts = path.relative_to(root).as_posix().split("/")
        found |= {"/".join(parts[first:end]) for end in range(1, len(parts) + 1) for first in range(end)}
    return found


def _words(root: Path) -> set[str]:
    return {word for path in source_files(root, CODE, SUFFIXES) for word in re.findall(r"\w+", path.read_text())}


def _in_page(page: Path, name: str, files: set[str], words: set[str]) -> Iterator[Finding]:
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.startswith("```")
        for text in () if fenced else SPAN.findall(line):
            if text in ELSEWHERE:
                continue
            if FILE.fullmatch(text) or FOLDER.fullmatch(text):
                if not all(_exists(one.rstrip("/"), files) for one in _alternatives(text)):
                    yield Finding(name, number, "paths", f"`{text}`: there is no such file")
            elif NAME.fullmatch(text):
                for word in re.findall(r"\w+", text):
                    if len(word) > 2 and word not in words and word not in ELSEWHERE:
                        yield Finding(name, number, "names", f"`{text}`: no source has {word}")


def _alternatives(text: str) -> list[str]:
    """Expands the braces of a path."""
    found = re.search(r"\{([^{}]*)\}", text)
    if not found:
        return [text]
    return [
        a
        for one in found[1].split(",")
        for a in _alternatives(text[: found.start()] + one.strip() + text[found.end() :])
    ]


def _exists(path: str, files: set[str]) -> bool:
    if "*" not in path:
        return path in files
    pattern = re.compile(re.escape(path).replace(r"\*\*", ".*").replace(r"\*", "[^/]*"))
    return any(map(pattern.fullmatch, files))


if __name__ == "__main__":
    sys.exit(main(__doc__, check))
