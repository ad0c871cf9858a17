"""LAYERZERO_DEBUG=1 on a device: each call waits for its kernel, and an error of the device names the kernel that made
it. In processes of their own, because such an error ends the device's context."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import layerzero as lz
import pytest

PACKAGE = Path(lz.__file__).parent.parent
HEAD = """
import torch, layerzero as lz
x, w = torch.ones(4, 64, device="cuda"), torch.ones(64, device="cuda")

@lz.register_kernel("norm.rms", "tests.debug", supported_dtypes=["float32"], platform="cuda", min_sm=70, priority=0)
def kernel(input, weight, eps):
    result = torch.nn.functional.rms_norm(input, (64,), weight, eps)
    if BROKEN:  # out of bounds: an assertion of the device, after the last call returned
        input.index_select(0, torch.tensor([1 << 20], device="cuda"))
    return result

"""


def run(code, broken=True, **variables):
    source = f"BROKEN = {broken}\n{HEAD}{code}"
    with tempfile.TemporaryDirectory() as cache:  # each without the quarantine of the one before
        env = os.environ | {"PYTHONPATH": str(PACKAGE), "LAYERZERO_CACHE_DIR": cache} | variables
        return subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, timeout=120)


FAULT = """
try:
    lz.rms_norm(x, w, kernel="tests.debug")
except lz.KernelExecutionError as error:
    print("named", error)
"""


def test_a_python_kernel_at_fault_is_named_by_its_own_call():
    done = run(FAULT, LAYERZERO_DEBUG="1")
    assert "named" in done.stdout and "kernel tests.debug" in done.stdout, done.stderr
    assert "cuStreamSynchronize" in done.stdout
    assert "named" not in run(FAULT).stdout  # without debug mode the call returns at once


def test_an_error_from_before_is_not_the_kernels():
    code = "x.index_select(0, torch.tensor([1 << 20], device='cuda'))\n" + FAULT
    done = run(code, broken=False, LAYERZERO_DEBUG="1")
    assert "named" in done.stdout and "without errors before it" in done.stdout, done.stderr


def test_sound_kernels_pass_and_captures_are_left_alone():
    code = """
for kernel in ("tests.debug", "cuda.norm.rms", "torch.rms_norm"):
    torch.testing.assert_close(lz.rms_norm(x, w, kernel=kernel), torch.nn.functional.rms_norm(x, (64,), w, 1e-6))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = lz.rms_norm(x, w, kernel="cuda.norm.rms")
graph.replay()
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (64,), w, 1e-6))
print("done")
"""
    done = run(code, broken=False, LAYERZERO_DEBUG="1")
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.parametrize("kernel", ["cuda.norm.rms", "torch.rms_norm"])
def test_an_observer_that_waits_sees_the_kernels_time(kernel):
    import torch

    x, w = torch.ones(1 << 15, 4096, device="cuda"), torch.ones(4096, device="cuda")
    lz.rms_norm(x, w, kernel=kernel)
    torch.cuda.synchronize()
    runs = {False: [], True: []}
    for wait, seen in runs.items():
        with lz.observe(seen.append, wait=wait):
            for _ in range(5):
                lz.rms_norm(x, w, kernel=kernel)
        torch.cuda.synchronize()
    assert {r.kernel_id for seen in runs.values() for r in seen} == {kernel} and runs[True][0].device == "cuda:0"
    # 1 GiB takes 200 us at least; a launch alone takes a few.
    assert min(r.seconds for r in runs[True]) > 150e-6
