"""The wheel, made with the compiler and flags of the build and installed in an environment of its own, serves both bindings."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = {"liblayerzero.so", "_layerzero.abi3.so", "liblayerzero_torch.so"}


def run(*command):
    done = subprocess.run([str(c) for c in command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel():
    run("scripts/wheel.sh", "--local")
    (made,) = (ROOT / "build/wheel-local/dist").glob("*.whl")
    return made


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    files = {n.removeprefix("layerzero/") for n in zipfile.ZipFile(wheel).namelist() if n.startswith("layerzero/")}
    assert files >= LIBRARIES | {"py.typed", "_layerzero.pyi", "schemas/capabilities.schema.json"}
    sources = {p.relative_to(ROOT / "python/layerzero").as_posix() for p in (ROOT / "python/layerzero").rglob("*.py")}
    references = {f"_reference/{p.relative_to(ROOT / 'ops').as_posix()}" for p in (ROOT / "ops").rglob("*.py")}
    assert {n for n in files if n.endswith(".py")} == sources | references
    assert not [n for n in files if n.endswith((".a", ".cpp", ".cu", ".h"))]
    assert wheel.name.split("-")[2:4] == ["cp310", "abi3"]  # one for every Python from 3.10


def test_the_doors_tests_pass_with_the_installed_wheel(wheel):
    """The Python and torch of this environment; scripts/check_matrix.py runs the same on the other four."""
    said = run(sys.executable, ROOT / "scripts/check_matrix.py", "--here", "--wheel", wheel)
    row = json.loads((ROOT / "build/matrix/here.json").read_text())["row"]
    assert row["passed"] > 300 and not row["failed"] and not row["skipped"], said
