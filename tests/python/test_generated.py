"""What is made from the contracts is up to date, and says what the binding takes."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest
from layerzero.contracts import contracts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generate():
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("generate_api", ROOT / "scripts/generate_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "scripts"))
    return module


def test_files_are_up_to_date():
    # In a process of its own: other tests register kernels.
    environment = os.environ | {"PYTHONPATH": str(Path(lz.__file__).parent.parent)}
    command = [sys.executable, ROOT / "scripts/generate_api.py", "--check"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_stale_page_is_found(generate, tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    (tmp_path / "docs/operations").mkdir(parents=True)
    (tmp_path / "docs/operations/gone.md").write_text("")
    assert {"docs/operations/gone.md", generate.STUB} <= set(generate.outdated())


def test_stub_has_every_operation_with_its_parameters(generate):
    functions = [node for node in ast.parse(generate.stub()).body if isinstance(node, ast.FunctionDef)]
    assert {f.name for f in functions} == set(lz._operations)
    for function in functions:
        names = [a.arg for a in function.args.args + function.args.kwonlyargs]
        wanted = [p["name"] for p in contracts()[function.name]["params"]]
        assert names[: len(wanted)] == wanted and set(names[len(wanted) :]) <= {"layout", "generator", "kernel", "out"}
        assert ("generator" in names) == ("seed" in wanted)


def test_every_operation_is_a_c_function_of_the_module():
    for name in lz._operations:
        assert type(getattr(lz, name)).__name__ == "builtin_function_or_method"
        assert name in lz.__all__
