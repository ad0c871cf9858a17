"""A lost context and short memory of a real device. The first in a process of its own, because nothing helps it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")

PACKAGE = Path(lz.__file__).parent.parent
LOST = """
import torch, layerzero as lz
x, w = torch.ones(4, 64, device="cuda"), torch.ones(64, device="cuda")
right = lz.rms_norm(x, w)

@lz.register_kernel("norm.rms", "tests.lost", supported_dtypes=["float32"], platform="cuda", min_sm=70, priority=100)
def kernel(input, weight, eps):
    input.index_select(0, torch.tensor([1 << 20], device="cuda"))
    torch.cuda.synchronize()

for _ in range(3):
    try:
        lz.rms_norm(x, w)
        print("answered")
    except lz.ContextLostError as error:
        print("lost", "start the process again" in str(error))
host = lz.rms_norm(torch.ones(4, 64), torch.ones(64))  # another device is not lost
print(lz.health()["status"], [r["code"] for r in lz.health()["reasons"]], float(host[0, 0]) > 0.9)
"""


def test_after_a_lost_context_nothing_is_tried_again(tmp_path):
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "LAYERZERO_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LOST], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:3] == ["lost True"] * 3, done.stdout + done.stderr
    assert done.stdout.split("\n")[3] == "restart ['CONTEXT_LOST', 'QUARANTINED'] True"


def test_a_kernel_that_finds_no_memory_is_followed_by_another(tmp_path):
    lz.configure(cache_dir=str(tmp_path))
    lz.reset_health()
    x, w = torch.randn(4, 64, device="cuda"), torch.ones(64, device="cuda")
    asked = []

    @lz.register_kernel(
        "norm.rms", "tests.large", supported_dtypes=["float32"], platform="cuda", min_sm=70, priority=100
    )
    def kernel(input, weight, eps):
        asked.append(1)
        return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    for _ in range(5):
        torch.testing.assert_close(lz.rms_norm(x, w), torch.nn.functional.rms_norm(x, (64,), w, 1e-6))
    lz.unregister_kernel("norm.rms", "tests.large")
    assert asked and lz.health().ok  # short memory opens no breaker


def test_a_wrong_result_is_found_in_the_background(tmp_path):
    lz.configure(cache_dir=str(tmp_path))
    lz.reset_health()
    x, w = torch.randn(4, 64, device="cuda"), torch.ones(64, device="cuda")
    before = lz.health()["shadow"]

    @lz.register_kernel(
        "norm.rms", "tests.lies", supported_dtypes=["float32"], platform="cuda", min_sm=70, priority=100
    )
    def kernel(input, weight, eps):
        return input * 2

    def differences(name):
        return lz.health()["shadow"][name] - before[name]

    with lz.shadow(rate=1.0):
        deadline = time.monotonic() + 60
        while not differences("wrong") and time.monotonic() < deadline:
            lz.rms_norm(x, w)
        assert lz.which("rms_norm", x, w).kernel_id != "tests.lies"
        while differences("right") < 3 and time.monotonic() < deadline:
            torch.testing.assert_close(lz.rms_norm(x, w), torch.nn.functional.rms_norm(x, (64,), w, 1e-6))
    lz.unregister_kernel("norm.rms", "tests.lies")
    assert differences("wrong") == 1 and differences("right") >= 3
    lz.reset_health()
