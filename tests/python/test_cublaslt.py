"""cuBLASLt is found where torch's wheels have it and is opened neither by an import nor by an answer."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

PACKAGE = Path(lz.__file__).parent.parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
DESCRIBED = ("MatmulDesc", "MatrixLayout", "MatmulPreference")
FUNCTIONS = ["Create", "MatmulAlgoGetHeuristic", "Matmul"]
FUNCTIONS += [f"{what}{how}" for what in DESCRIBED for how in ("Create", "SetAttribute", "Destroy")]
ASK = """
import ctypes, json, sys
if sys.argv[1:]:
    ctypes.CDLL(sys.argv[1])
import layerzero as lz
from layerzero.backends import report
kernel = next(k for k in lz.list_kernels("linear") if k.kernel_id == "cublaslt.mlp.linear")
(backend,) = [b for b in report.report(imports=False) if b["name"] == "cublaslt"]
print(json.dumps({"installed": kernel.installed, "detail": kernel.detail, "version": kernel.library_version,
                  "platform": backend["platform"], "fixes": [m["fix"] for m in backend["missing"]],
                  "open": "libcublasLt" in open("/proc/self/maps").read()}))
"""
PLACES = [
    "nvidia/cu13/lib/libcublasLt.so.13",  # nvidia-cublas, of torch for CUDA 13
    "nvidia/cublas/lib/libcublasLt.so.12",  # nvidia-cublas-cu12, of torch for CUDA 12
    "torch/lib/libcublasLt.so.12",
]


def library(path, version=130100, without=()):
    """A stand-in with the functions that LayerZero needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"unsigned long cublasLtGetVersion(void) {{ return {version}; }}"
    text += "".join(f"int cublasLt{name}(void) {{ return 1; }}" for name in FUNCTIONS if name not in without)
    soname = "libcublasLt.so.13" if path.name.endswith("so") else path.name
    command = [COMPILER, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", path, f"-Wl,-soname,{soname}"]
    subprocess.run(command, input=text, text=True, check=True)
    return path


def ask(*arguments, first="", cwd=None, **variables):
    clean = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")}
    paths = os.pathsep.join(filter(None, [str(first), str(PACKAGE)]))
    env = clean | {"PYTHONPATH": paths, "LAYERZERO_LIBRARIES": ""} | variables
    command = [sys.executable, "-c", ASK, *map(str, arguments)]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module", autouse=True)
def nothing_else_has_it():
    if ask()["installed"]:
        pytest.skip("this machine has cuBLASLt")


def test_without_the_library_its_kernels_say_what_brings_it():
    found = ask()
    assert not found["installed"] and found["platform"] == "cuda" and found["version"] is None
    assert "libcublasLt.so.13" in found["detail"] and "LAYERZERO_LIBRARIES=cublaslt=" in found["detail"]
    assert "pip install nvidia-cublas" in found["fixes"]


@pytest.mark.parametrize("place", PLACES)
def test_it_is_found_in_the_packages_and_not_opened(tmp_path, place):
    path = library(tmp_path / place)
    found = ask(first=tmp_path)
    assert found["installed"] and not found["open"]
    assert found["version"] == f"{path.name} of {path.stat().st_size} bytes"
    assert "pip install nvidia-cublas" not in found["fixes"]


def test_the_one_of_cuda_13_is_taken_first(tmp_path):
    for place in PLACES:
        library(tmp_path / place)
    assert ask(first=tmp_path)["version"].startswith("libcublasLt.so.13 ")


@pytest.mark.parametrize("variable", ["CUDA_HOME", "LD_LIBRARY_PATH"])
def test_it_is_found_by_the_variables_of_the_system(tmp_path, variable):
    library(tmp_path / "lib64/libcublasLt.so.12")
    value = tmp_path / "lib64" if variable == "LD_LIBRARY_PATH" else tmp_path
    found = ask(**{variable: str(value)})
    assert found["installed"] and not found["open"]


def test_what_the_current_folder_has_is_not_taken(tmp_path):
    library(tmp_path / PLACES[0])
    assert not ask(cwd=tmp_path)["installed"]


def test_the_one_of_the_process_is_used(tmp_path):
    found = ask(library(tmp_path / "torchs/libcublasLt.so.13"))
    assert found["installed"] and found["open"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"version": 111103}, "cuBLASLt 12 or 13 is wanted, this is 11.11"),
        ({"without": ["Matmul"]}, "no cublasLtMatmul"),
    ],
)
def test_one_that_cannot_be_used_says_why(tmp_path, fault, reason):
    path = library(tmp_path / "libcublasLt.so", **fault)
    of_process = ask(path)
    assert not of_process["installed"] and reason in of_process["detail"]
    named = ask(LAYERZERO_LIBRARIES=f"cublaslt={path}")
    assert not named["installed"] and reason in named["detail"]
    assert "pip install nvidia-cublas; export LAYERZERO_LIBRARIES=''" in named["fixes"]


def test_a_named_file_that_is_not_there_is_a_reason():
    found = ask(LAYERZERO_LIBRARIES="cublaslt=/nowhere/libcublasLt.so.13")
    assert not found["installed"] and "/nowhere/libcublasLt.so.13" in found["detail"]
