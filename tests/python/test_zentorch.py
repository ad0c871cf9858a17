"""zentorch's rows: every case that they admit agrees with the FP64 references, in a process that has zentorch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.backends.report import report  # noqa: E402

NEIGHBOURS = Path(sys.prefix) / "neighbours"  # scripts/setup.sh puts it there: importing it takes seconds


def usable() -> bool:
    return (NEIGHBOURS / "zentorch").is_dir() and "avx512bw" in Path("/proc/cpuinfo").read_text()


def run(*command: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(map(str, (NEIGHBOURS, Path(lz.__file__).parents[1])))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )


@pytest.mark.skipif(not usable(), reason="needs requirements/neighbours.txt in .venv/neighbours and AVX-512")
def test_every_admitted_case_agrees_with_fp64():
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_conformance.py", "-k", "host_kernel and zentorch")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert "2 passed" in summary and "skipped" not in summary, summary


def test_its_linear_layers_are_not_among_them():
    """They give results of the old weights after a write in place."""
    lz.rms_norm(torch.ones(1, 8))
    kernels = json.loads(lz._layerzero.kernels(None, False))
    assert {k["kernel_id"] for k in kernels if k["source"] == "zentorch"} == {"zentorch.rms_norm", "zentorch.sdpa"}


@pytest.mark.skipif(importlib.util.find_spec("zentorch") is not None, reason="it is here")
def test_where_it_is_absent_it_says_how_to_install_it():
    (found,) = [backend for backend in report() if backend["name"] == "zentorch"]
    assert not found["usable"]
    assert any("pip install --no-deps" in missing["fix"] for missing in found["missing"])
    with pytest.raises(lz.NoKernelFoundError, match="zentorch"):
        lz.rms_norm(torch.ones(1, 8), torch.ones(8), kernel="zentorch.rms_norm")
