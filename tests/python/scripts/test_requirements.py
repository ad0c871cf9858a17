"""No test is skipped for want of a package: whatever a test may skip on is pinned in requirements/ and installed."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
NEEDS_A_GPU = {"cupy"}
STANDARD = {*sys.stdlib_module_names, "tomllib"}  # Python 3.10 has no tomllib; Windows has no readline
ON_REQUEST = {"peers"}  # `make peers`: minutes of compiling for a benchmark
VENV = Path(sys.prefix)
# Where scripts/setup.sh puts what a file of requirements/ pins: .venv, or a folder beside its packages.
FOLDERS = {
    "dev": None,
    "models": None,
    "neighbours": VENV / "neighbours",
    "docs": VENV / "docs",
    "diffusers": VENV / "diffusers",
    "sglang": VENV / "sglang",
    "triton": VENV / "triton",
    "transformers-5.17": VENV / "transformers-5.17",
    "transformers-5.23": VENV / "transformers-5.23",
}
WANTED = [
    (file, Requirement(line))
    for file in FOLDERS
    for line in (ROOT / f"requirements/{file}.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
PINS = [
    (file, wanted.name, str(wanted.specifier).removeprefix("=="))
    for file, wanted in WANTED
    if wanted.marker is None or wanted.marker.evaluate()
]


def test_every_file_of_requirements_is_looked_at():
    assert {path.stem for path in (ROOT / "requirements").iterdir()} == set(FOLDERS) | ON_REQUEST


@pytest.mark.parametrize("file, package, version", PINS)
def test_a_pinned_package_is_installed(file, package, version):
    path = [str(FOLDERS[file])] if FOLDERS[file] else sys.path
    found = next(iter(importlib.metadata.distributions(name=package, path=path)), None)
    assert found and found.version.partition("+")[0] == version, "type: make setup"


def test_what_tests_skip_without_is_pinned():
    """`pytest.importorskip` serves those who run a part of the tests with less installed; here it must not act."""
    sources = [p.read_text() for p in (ROOT / "tests/python").rglob("*.py") if p != Path(__file__)]
    wanted = {name for text in sources for name in re.findall(r"importorskip\(\"(\w+)", text)}
    assert len(wanted) > 10
    distributions = importlib.metadata.packages_distributions()
    names = {package for _, package, _ in PINS}
    pinned = {module for module, of in distributions.items() if names & set(of)}
    for beside in importlib.metadata.distributions(path=[str(FOLDERS[name]) for name in ("neighbours", "diffusers")]):
        if beside.name in names:
            pinned |= {file.parts[0] for file in beside.files or ()}
    assert wanted - pinned - NEEDS_A_GPU - STANDARD == set()
