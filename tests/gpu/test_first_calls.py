"""A Triton kernel that is compiled at its first call of a kind, on the device: no call compiles it, no capture is disturbed."""

import threading
import time

import layerzero as lz
import pytest
import torch
from layerzero.jit import work

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402


@triton.jit
def _scaled(x, weight, out, eps, width, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + eps)
    weights = tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(out + row * width + columns, values * scale * weights, mask=inside)


@pytest.fixture
def planted():
    """Registers it as the best kernel of norm.rms for float32; returns the threads on which it compiled, by width."""
    lz.configure(allow_jit_compile=False)
    compiled = {}

    @lz.register_kernel(
        "norm.rms",
        "triton_test.rms",
        supported_dtypes=["float32"],
        platform="cuda",
        priority=100,
        min_sm=80,
        max_sm=None,
        is_cuda_graph_safe=True,
        jit={"when": "first_call", "key": ["hidden", {"field": "hidden", "relation": "multiple of", "operand": 16}]},
    )
    def rms_norm(input, weight, eps):
        width = input.shape[-1]
        compiled.setdefault(width, threading.current_thread().name)
        out = torch.empty_like(input)
        _scaled[(input.numel() // width,)](input, weight, out, eps, width, BLOCK=triton.next_power_of_2(width))
        return out

    yield compiled
    lz.unregister_kernel("norm.rms", "triton_test.rms")
    lz.configure(allow_jit_compile=True)


def test_calls_and_captures_compile_nothing(planted):
    for width in (1024, 1040):
        x, weight = torch.randn(8, width, device="cuda"), torch.ones(width, device="cuda")
        first = lz.rms_norm(x, weight)
        assert work.idle(time.monotonic() + 120)
        assert planted[width] == "layerzero compiler"
        assert lz.explain("rms_norm", x, weight).kernel_id == "triton_test.rms"
        torch.testing.assert_close(lz.rms_norm(x, weight), first)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = lz.rms_norm(x, weight)
        x.normal_()
        graph.replay()
        torch.testing.assert_close(out, lz.rms_norm(x, weight))
    other, weight = torch.randn(8, 2064, device="cuda"), torch.ones(2064, device="cuda")
    torch.nn.functional.rms_norm(other, (2064,), weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = lz.rms_norm(other, weight)  # another kernel: this one has not been compiled for the width
    graph.replay()
    assert 2064 not in planted and torch.isfinite(out).all()


def test_a_warm_up_prepares_a_call(planted):
    report = lz.warmup("norm.rms", shapes=[(4, 512)], dtype="float32", options={"weight": True})
    assert report.complete and report.calls[0].kernel_id == "triton_test.rms", report
    assert planted == {512: "layerzero compiler"}
