"""cuBLASLt's kernels on a device: torch's library is used, streams, captures and devices are those of the call."""

import os
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest
import torch

PACKAGE = Path(lz.__file__).parent.parent
LINEAR = ["cublaslt.mlp.linear", "cublaslt.mlp.linear.second", "cublaslt.mlp.linear.third"]
HALF = {"device": "cuda", "dtype": torch.bfloat16}
CLOSE = {"atol": 3e-2, "rtol": 3e-2}


@pytest.fixture(autouse=True)
def installed():
    kernel = next(k for k in lz.list_kernels("linear") if k.kernel_id == LINEAR[0])
    if not kernel.installed:
        pytest.skip(kernel.detail)
    torch.manual_seed(1)


def operands(rows, n, k, **at):
    at = HALF | at
    return torch.randn(rows, k, **at), torch.randn(n, k, **at) / k**0.5, torch.randn(n, **at)


def wanted(x, weight, bias):
    return torch.nn.functional.linear(x.double(), weight.double(), bias.double()).to(x.dtype)


@pytest.mark.parametrize("kernel", LINEAR)
@pytest.mark.parametrize("shape", [(1, 4096, 4096), (16, 1024, 8192), (512, 4096, 1024), (3, 33, 65)])
def test_every_choice_is_right(kernel, shape):
    call = operands(*shape)
    torch.testing.assert_close(lz.linear(*call, kernel=kernel), wanted(*call), **CLOSE)


def test_one_copy_of_the_library_is_in_the_process():
    lz.linear(*operands(4, 64, 64), kernel=LINEAR[0])
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert len({line.split()[-1] for line in lines if "libcublasLt" in line}) == 1


def test_it_runs_on_the_callers_stream():
    x, weight, bias = operands(256, 2048, 2048)
    right = wanted(x, weight, bias)
    side, late = torch.cuda.Stream(), torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # a kernel of another stream would read zeros
        late.copy_(x)
        result = lz.linear(late, weight, bias, kernel=LINEAR[0])
    side.synchronize()
    torch.testing.assert_close(result, right, **CLOSE)


@pytest.mark.parametrize("kernel", LINEAR)
def test_a_replay_reads_new_values(kernel):
    x, weight, bias = operands(8, 1024, 4096)
    lz.linear(x, weight, bias, kernel=kernel)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = lz.linear(x, weight, bias, kernel=kernel)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result, wanted(x, weight, bias), **CLOSE)


FIRST = """
import sys, torch, layerzero as lz
x, w = (torch.randn(s, 512, device="cuda", dtype=torch.bfloat16) for s in (48, 256))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = lz.linear(x, w, kernel=sys.argv[1])
graph.replay()
torch.cuda.synchronize()
torch.testing.assert_close(result, torch.nn.functional.linear(x, w), atol=0.5, rtol=3e-2)
print("captured")
"""


@pytest.mark.parametrize("kernel", [LINEAR[0], LINEAR[2]])
def test_the_first_call_of_a_process_may_be_captured(kernel):
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([sys.executable, "-c", FIRST, kernel], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "captured", done.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_each_device_has_a_handle_of_its_own():
    for index in (1, 0, 1):
        call = operands(4, 256, 512, device=f"cuda:{index}")
        torch.testing.assert_close(lz.linear(*call, kernel=LINEAR[0]), wanted(*call), **CLOSE)


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("gelu_tanh", None)])
def test_the_activation_is_that_of_the_contract(activation, function):
    x, up, up_bias = operands(32, 1024, 512)
    _, down, down_bias = operands(1, 512, 1024)
    result = lz.fused_mlp(
        x, up, down, gate_bias=up_bias, down_bias=down_bias, activation=activation, kernel="cublaslt.mlp.fused"
    )
    hidden = torch.nn.functional.linear(x.double(), up.double(), up_bias.double())
    hidden = function(hidden) if function else torch.nn.functional.gelu(hidden, approximate="tanh")
    right = torch.nn.functional.linear(hidden, down.double(), down_bias.double())
    assert (result.double() - right).abs().max() <= 2e-2 * right.abs().max()
