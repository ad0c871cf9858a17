"""The wheel, made with the compiler and flags of the build and installed in an environment of its own, serves both bindings."""

import json
import os
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


def metadata_of(wheel):
    files = zipfile.ZipFile(wheel)
    (name,) = [n for n in files.namelist() if n.endswith(".dist-info/METADATA")]
    return files.read(name)


def test_the_metadata_is_what_an_index_accepts(wheel):
    metadata = pytest.importorskip("packaging.metadata")
    found = metadata.Metadata.from_email(metadata_of(wheel), validate=True)  # raises for whatever PyPI refuses
    assert found.name == "layerzero-kernels" and found.license_expression == "Apache-2.0"
    assert found.description_content_type == "text/markdown" and found.description.startswith("# LayerZero")
    assert set(found.provides_extra) >= {"torch", "transformers", "vllm", "sglang", "diffusers", "tokenizers", "hub"}
    assert not [c for c in found.classifiers if c.startswith("License ::")]  # an expression excludes them
    trove = pytest.importorskip("trove_classifiers", reason="needs trove-classifiers to know PyPI's names")
    assert set(found.classifiers) <= trove.classifiers


def test_twine_finds_nothing(wheel):
    pytest.importorskip("twine", reason="needs twine: pip install twine")
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel)


def test_a_bare_environment_imports_it(wheel, tmp_path):
    """An interpreter without any package: neither torch nor NumPy, and not what the command line needs."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    python = tmp_path / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    said = run(python, "-I", "-c", "import layerzero as lz; print(lz.__file__, len(lz.list_kernels()) > 50)")
    assert said.startswith(str(tmp_path)) and said.split()[-1] == "True"
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([tmp_path / "bin/layerzero", "list"], env=bare, capture_output=True, text=True)
    assert done.returncode and "pip install" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_the_doors_tests_pass_with_the_installed_wheel(wheel):
    """The Python and torch of this environment; scripts/check_matrix.py runs the same on the other four."""
    said = run(sys.executable, ROOT / "scripts/check_matrix.py", "--here", "--wheel", wheel)
    row = json.loads((ROOT / "build/matrix/here.json").read_text())["row"]
    assert row["passed"] > 300 and not row["failed"] and not row["skipped"], said
