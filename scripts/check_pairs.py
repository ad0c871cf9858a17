"""Checks pairs: a kernel has a test; an operation has its contract, both references and cases."""

import sys
from pathlib import Path

from findings import Finding, main, source_files


def kernel_tests(root: Path) -> tuple[int, list[Finding]]:
    """kernels/<op>/<name>.{cpp,cu} needs tests/kernels/<op>/<name>_test.cpp, and vice versa."""
    kernels = source_files(root, ["kernels"], (".cpp", ".cu"))
    tests = source_files(root, ["tests/kernels"], ("_test.cpp",))
    wanted = {}
    for kernel in kernels:
        if kernel.parent.name == "parts":  # part of a kernel that has a test
            continue
        stem = kernel.relative_to(root / "kernels").with_suffix("").as_posix()
        wanted[root / "tests/kernels" / f"{stem}_test.cpp"] = kernel.relative_to(root).as_posix()
    findings = [
        Finding(kernel, 1, "kernel-test", f"has no test; write {test.relative_to(root).as_posix()}")
        for test, kernel in wanted.items()
        if not test.is_file()
    ]
    for test in tests:
        # hwy_full_test.cpp is a second test of hwy.cpp; simd_test.cpp tests the shared header simd.h.
        first = test.with_name(test.name.replace("_full_test", "_test"))
        name = test.relative_to(root).as_posix()
        header = root / name.removeprefix("tests/").replace("_test.cpp", ".h")
        if first not in wanted and not header.is_file():
            findings.append(Finding(name, 1, "stray-test", "tests no kernel of that path; rename or remove it"))
    return len(kernels) + len(tests), findings


def operation_parts(root: Path) -> tuple[int, list[Finding]]:
    """ops/<path>.h needs <path>.ref.cpp and <path>_ref.py next to it and tests/ops/<path>.cases, and vice versa."""
    parts = {
        "contract": (root / "ops", ".h"),
        "C++ reference": (root / "ops", ".ref.cpp"),
        "torch reference": (root / "ops", "_ref.py"),
        "conformance cases": (root / "tests/ops", ".cases"),
    }
    found: dict[str, set[str]] = {}
    for folder, suffix in parts.values():
        for path in source_files(root, [folder.relative_to(root).as_posix()], (suffix,)):
            stem = path.relative_to(folder).as_posix().removesuffix(suffix)
            if not stem.startswith("common/"):
                found.setdefault(stem, set()).add(suffix)
    findings = []
    for stem, suffixes in found.items():
        there = next((d / f"{stem}{s}" for d, s in parts.values() if s in suffixes)).relative_to(root).as_posix()
        for what, (folder, suffix) in parts.items():
            if suffix not in suffixes:
                missing = (folder / f"{stem}{suffix}").relative_to(root).as_posix()
                findings.append(Finding(there, 1, "operation-parts", f"the operation has no {what}; write {missing}"))
    return sum(len(s) for s in found.values()), findings


def check(root: Path) -> tuple[int, list[Finding]]:
    kernels, operations = kernel_tests(root), operation_parts(root)
    return kernels[0] + operations[0], kernels[1] + operations[1]


if __name__ == "__main__":
    sys.exit(main(__doc__, check))
