"""No test is skipped for want of a package: whatever a test may skip on is pinned in requirements/ and installed."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDS_A_GPU = {"cupy"}
NEIGHBOURS = [str(Path(sys.prefix) / "neighbours")]  # beside the environment, see requirements/neighbours.txt
PINS = dict(
    line.split("==")
    for file in ("dev.txt", "models.txt", "neighbours.txt")
    for line in (ROOT / "requirements" / file).read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.parametrize("package", sorted(PINS))
def test_a_pinned_package_is_installed(package):
    found = next(iter(importlib.metadata.distributions(name=package, path=[*sys.path, *NEIGHBOURS])), None)
    assert found and found.version.partition("+")[0] == PINS[package], "type: make setup"


def test_what_tests_skip_without_is_pinned():
    """`pytest.importorskip` serves those who run a part of the tests with less installed; here it must not act."""
    sources = [p.read_text() for p in (ROOT / "tests/python").rglob("*.py") if p != Path(__file__)]
    wanted = {name for text in sources for name in re.findall(r"importorskip\(\"(\w+)", text)}
    assert len(wanted) > 10
    distributions = importlib.metadata.packages_distributions()
    pinned = {module for module, of in distributions.items() if PINS.keys() & set(of)}
    for beside in importlib.metadata.distributions(path=NEIGHBOURS):
        if beside.name in PINS:
            pinned |= {file.parts[0] for file in beside.files or ()}
    assert wanted - pinned - NEEDS_A_GPU == set()
