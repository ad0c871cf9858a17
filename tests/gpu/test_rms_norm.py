"""cuda.norm.rms against torch's FP64 on the device: dtypes, sizes, strides, aliases, graph captures."""

import pytest

torch = pytest.importorskip("torch")
lz = pytest.importorskip("layerzero")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


@pytest.fixture(autouse=True)
def own_kernel():
    with lz.policy(locks={"norm.rms": "cuda.norm.rms"}):
        yield


def reference(x, weight, eps, offset):
    x64 = x.double()
    gain = (1.0 if weight is None else weight.double()) + offset
    return (x64 / (x64.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gain).to(x.dtype)


def check(x, weight=None, eps=1e-6, offset=0.0):
    got = lz.rms_norm(x, weight, eps, weight_offset=offset)
    tolerance = TOLERANCE[x.dtype]
    torch.testing.assert_close(got, reference(x, weight, eps, offset), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("hidden", [1, 7, 8, 64, 576, 1024, 1025, 1032, 4096, 16384])
@pytest.mark.parametrize("rows", [1, 5, 257])
def test_agrees_with_torch(dtype, hidden, rows):
    torch.manual_seed(0)
    x = torch.randn(rows, hidden, device="cuda", dtype=dtype)
    weight = torch.randn(hidden, device="cuda", dtype=dtype)
    check(x, weight, eps=1e-5)
    check(x, weight, offset=1.0)
    check(x)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_leading_strides_and_unaligned_bases(dtype):
    x = torch.randn(4, 6, 256, device="cuda", dtype=dtype)
    check(x[:, ::2])
    check(x.transpose(0, 1))
    check(x[..., :200])
    check(x.flatten()[1 : 1 + 4 * 200].view(4, 200))
    check(x[:, :1].expand(4, 6, 256))


def test_many_rows_and_no_rows():
    check(torch.randn(5_000_000, 8, device="cuda"))
    assert lz.rms_norm(torch.empty(0, 64, device="cuda")).shape == (0, 64)


def test_a_nan_stays_in_its_row():
    x = torch.ones(3, 64, device="cuda")
    x[1, 5] = float("nan")
    y = lz.rms_norm(x)
    assert y[1].isnan().all() and not y[0].isnan().any() and not y[2].isnan().any()


def test_runs_in_a_captured_graph_on_its_stream():
    x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
    lz.rms_norm(x)  # selected before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lz.rms_norm(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, reference(x, None, 1e-6, 0.0), rtol=1e-2, atol=1e-2)
