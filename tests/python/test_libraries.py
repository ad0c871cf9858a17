"""C libraries that the user names: used when named, absent with a reason otherwise, never opened unasked."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ONEDNN = Path(sys.prefix) / "lib/libdnnl.so.3"
LIBXSMM = Path(sys.prefix) / "lib/libxsmm.so"
LIBRARIES = {"openblas": "libopenblas.so.0", "onednn": str(ONEDNN), "libxsmm": str(LIBXSMM)}
LINEAR = """
import json, os
import layerzero as lz, torch
x, w, b = torch.randn(7, 33), torch.randn(33, 65).t(), torch.randn(65)
if "libxsmm" not in os.environ["LAYERZERO_LIBRARIES"]:  # it reads weights by columns alone
    w = w.contiguous()
error = (lz.linear(x, w, b) - torch.nn.functional.linear(x, w, b)).abs().max().item()
report = lz.explain("linear", input=x, weight=w, bias=b).to_dict()
mapped = [name for name in ("libopenblas", "libdnnl", "libxsmm") if name in open("/proc/self/maps").read()]
print(json.dumps({"error": error, "which": lz.which("linear", input=x, weight=w)["kernel_id"], "report": report, "mapped": mapped}))
"""


def there(name: str) -> bool:
    try:
        ctypes.CDLL(LIBRARIES[name])
    except OSError:
        return False
    return True


def run(code: list[str], **variables: str) -> subprocess.CompletedProcess:
    environment = os.environ | variables
    return subprocess.run([sys.executable, *code], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_named_library_serves_what_is_locked_to_it(name):
    if not there(name):
        pytest.skip(f"{LIBRARIES[name]} is not installed")
    kernel = f"{name}.mlp.linear"
    done = run(["-c", LINEAR], LAYERZERO_LIBRARIES=f"{name}={LIBRARIES[name]}", LAYERZERO_LOCK_MLP_LINEAR=kernel)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["which"] == kernel
    assert found["error"] < 1e-4


def test_the_command_that_backends_prints_makes_a_library_of_debians_archives(tmp_path):
    if not Path("/usr/lib/libxsmm.a").exists():
        pytest.skip("libxsmm-dev is not installed")
    done = run(["-m", "layerzero", "backends", "--json"], LAYERZERO_LIBRARIES="")
    (libxsmm,) = [b for b in json.loads(done.stdout)["backends"] if b["name"] == "libxsmm"]
    command = next(c for c in libxsmm["missing"][0]["fix"].split("; ") if c.startswith("gcc "))
    path = str(tmp_path / "libxsmm.so")
    subprocess.run(command.replace(str(LIBXSMM), path).split(), check=True)
    done = run(["-c", LINEAR], LAYERZERO_LIBRARIES=f"libxsmm={path}", LAYERZERO_LOCK_MLP_LINEAR="libxsmm.mlp.linear")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["error"] < 1e-4


def test_one_that_is_not_named_is_not_opened_and_says_how_to_name_it():
    done = run(["-c", LINEAR], LAYERZERO_LIBRARIES="")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["mapped"] == []
    reasons = {c["kernel_id"]: c["reasons"] for c in found["report"]["candidates"]}
    for name in LIBRARIES:
        (reason,) = [r for r in reasons[f"{name}.mlp.linear"] if r["code"] == "NOT_INSTALLED"]
        assert f"LAYERZERO_LIBRARIES={name}=" in reason["message"]


def test_a_library_that_does_not_load_is_a_reason_not_an_error():
    done = run(["-c", LINEAR], LAYERZERO_LIBRARIES="openblas=/nowhere/libopenblas.so")
    assert done.returncode == 0, done.stderr
    reasons = {c["kernel_id"]: c["reasons"] for c in json.loads(done.stdout)["report"]["candidates"]}
    assert any("/nowhere/libopenblas.so" in r["message"] for r in reasons["openblas.mlp.linear"])


def test_backends_tells_each_with_the_command():
    done = run(["-m", "layerzero", "backends", "--json"], LAYERZERO_LIBRARIES="openblas=/nowhere/libopenblas.so")
    backends = {b["name"]: b for b in json.loads(done.stdout)["backends"]}
    for name in LIBRARIES:
        assert "mlp.linear" in backends[name]["operations"]
        assert not backends[name]["usable"]
        fix = backends[name]["missing"][0]["fix"]
        assert "export LAYERZERO_LIBRARIES=" in fix
        assert f"{name}=" in fix
    assert "/nowhere/libopenblas.so" in backends["openblas"]["missing"][0]["detail"]


def test_a_source_that_no_kernel_has_is_told():
    done = run(["-c", "import layerzero as lz"], LAYERZERO_LIBRARIES="opnblas=libopenblas.so.0")
    assert "LAYERZERO_LIBRARIES: wanted cublaslt, libxsmm, onednn, openblas, got 'opnblas'" in done.stderr
