"""layerzero's own kernels in Triton on the device: a kind of calls is compiled once, captures hold what calls return, the same
call has the same bits. tests/gpu/test_conformance.py --kernel 'triton.*' compares them with FP64."""

import pytest
import torch

pytest.importorskip("triton")
from layerzero.backends.triton import activations, attention, norms, positions, sampling  # noqa: E402

KERNELS = (
    norms._RMS_NORM,
    norms._LAYER_NORM,
    activations._GATED,
    positions._ROPE,
    sampling._SOFTMAX,
    attention._ATTENTION,
)


def tensor(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


def rows(count):
    return lambda n: tuple(tensor(n, 1024) for _ in range(count))


def heads(dtype):
    return lambda n: (tensor(2, n, 8, 128, dtype=dtype), *(tensor(2, n + 3, 2, 128, dtype=dtype) for _ in range(2)))


def attend(q, k, v):
    return attention.attention(q, k, v, True, 0.1, None, 0.0, 100, 30.0, None, None, True, "BSHD")


CALLS = {  # the adapter, and its tensors for a number of rows
    "rms_norm": (lambda x: norms.rms_norm(x, x[0], 1e-6), rows(1)),
    "fused_add_rms_norm": (lambda x, r: norms.fused_add_rms_norm(x, r, x[0], 1e-6), rows(2)),
    "layer_norm": (lambda x: norms.layer_norm(x, 1024, x[0], None, 1e-5), rows(1)),
    "fused_add_layer_norm": (lambda x, r: norms.fused_add_layer_norm(x, r, 1024, x[0], r[0], 1e-5), rows(2)),
    "silu_and_mul": (activations.silu_and_mul, rows(1)),
    "gated_activation": (lambda x: activations.gated_activation(x, "gelu", 7.0, 1.0, 1.0, True), rows(1)),
    "swiglu": (activations.swiglu, rows(2)),
    "geglu": (lambda gate, up: activations.geglu(gate, up, "tanh"), rows(2)),
    "rope": (
        lambda x, cos, sin: positions.rope(x, cos, sin, False, None, False, 128, "BSHD"),
        lambda n: (tensor(2, n, 4, 128), tensor(n, 128), tensor(n, 128)),
    ),
    "softmax": (lambda x: sampling.softmax(x, 0.7), lambda n: (tensor(n, 32000),)),
    "attention": (attend, heads(torch.bfloat16)),
    "attention of float32": (attend, heads(torch.float32)),
}


def compiled():
    """The number of programs that Triton holds for the kernels."""
    forms = [form for kernel in KERNELS for form in (kernel._aligned, kernel._others)]
    return sum(len(caches[0]) for form in forms for caches in form.device_caches.values())


def outputs(result):
    return result if isinstance(result, tuple) else (result,)


def assert_same(first, second):
    for a, b in zip(outputs(first), outputs(second), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("name", CALLS)
def test_a_kind_is_compiled_once(name):
    function, make = CALLS[name]
    function(*make(5))
    before = compiled()
    assert before, "nothing was compiled"
    for count in (2, 16, 17, 256):
        function(*make(count))
    assert compiled() == before


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_has_the_same_bits(name):
    function, make = CALLS[name]
    values = make(300)
    first = function(*values)
    for _ in range(20):
        assert_same(function(*values), first)


@pytest.mark.parametrize("name", CALLS)
def test_a_capture_holds_what_a_call_returns(name):
    function, make = CALLS[name]
    values = make(33)
    function(*values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(*values)
    for value in values:
        value.normal_()
    graph.replay()
    assert_same(captured, function(*values))
