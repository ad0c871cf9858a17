"""No test is skipped for want of a package: whatever a test may skip on is pinned in requirements/ and installed."""

import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDS_A_GPU = {"cupy"}
PINS = dict(
    line.split("==")
    for file in ("dev.txt", "models.txt")
    for line in (ROOT / "requirements" / file).read_text().splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.parametrize("package", sorted(PINS))
def test_a_pinned_package_is_installed(package):
    assert importlib.metadata.version(package).partition("+")[0] == PINS[package], "type: make setup"


def test_what_tests_skip_without_is_pinned():
    """`pytest.importorskip` serves those who run a part of the tests with less installed; here it must not act."""
    sources = [p.read_text() for p in (ROOT / "tests/python").rglob("*.py") if p != Path(__file__)]
    wanted = {name for text in sources for name in re.findall(r"importorskip\(\"(\w+)", text)}
    assert len(wanted) > 10
    distributions = importlib.metadata.packages_distributions()
    pinned = {module for module, of in distributions.items() if PINS.keys() & set(of)}
    assert wanted - pinned - NEEDS_A_GPU == set()
