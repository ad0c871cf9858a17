"""The binding on CUDA tensors: streams, memory, devices, graphs, threads, modes, torch.compile."""

import subprocess
import sys
import threading

import layerzero as lz
import pytest
import torch
from torch.nn import functional as F

SLOW = 400_000_000  # cycles that a stream sleeps: some 200 milliseconds


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(32, 4096, device="cuda", dtype=torch.bfloat16)


def expected(x):
    return F.rms_norm(x.float(), (x.shape[-1],), None, 1e-6).to(x.dtype)


def close(got, x):
    torch.testing.assert_close(got, expected(x), rtol=1e-2, atol=1e-2)


def test_own_kernels_are_chosen(x):
    assert lz.which("rms_norm", x)["kernel_id"] == "cuda.norm.rms"
    assert lz.which("fused_add_rms_norm", x, x)["kernel_id"] == "cuda.norm.rms.residual"
    assert lz.which("swiglu", x, x)["kernel_id"] == "cuda.activation.swiglu"


def test_runs_on_the_current_stream(x):
    side = torch.cuda.Stream()
    source = torch.zeros_like(x)
    lz.rms_norm(source)  # loads the kernel
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
        source.copy_(x)
        y = lz.rms_norm(source)  # behind the copy in the order of this stream
    assert not side.query()
    torch.cuda.current_stream().wait_stream(side)
    close(y, x)


def test_prepared_calls_follow_the_stream(x):
    prepared = lz.prepare("rms_norm", x)
    source = torch.zeros_like(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
        source.copy_(x)
        y = prepared(source)
    side.synchronize()
    close(y, x)


@pytest.mark.parametrize("recorded", [True, False])
def test_record_stream_holds_an_outputs_memory(x, recorded):
    side = torch.cuda.Stream()
    x + 1  # loads the kernel, which may wait for the device
    y = lz.rms_norm(x)
    address = y.data_ptr()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
        z = y + 1
    if recorded:
        y.record_stream(side)
    del y
    again = lz.rms_norm(x)
    assert (again.data_ptr() == address) is not recorded  # without it the block is free at once: the control
    torch.cuda.synchronize()
    if recorded:
        close(z - 1, x)


def test_outputs_are_in_torchs_statistics(x):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = lz.rms_norm(x)
    assert torch.cuda.memory_allocated() - before == y.numel() * y.element_size()
    del y
    assert torch.cuda.memory_allocated() == before


def test_out_is_written_in_place(x):
    out = torch.empty_like(x)
    assert lz.rms_norm(x, out=out) is out
    close(out, x)


def test_negative_views_have_their_values(x):
    for view in (torch._neg_view(x), torch.complex(x.float(), x.float()).conj().imag):
        assert view.is_neg()
        got = lz.rms_norm(view)
        torch.testing.assert_close(got, lz.rms_norm(view.resolve_neg()), rtol=0, atol=0)


def test_graph_capture_and_replay(x):
    weight = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    calls = lambda: lz.swiglu(*lz.fused_add_rms_norm(lz.rms_norm(x, weight), x, weight))  # noqa: E731
    calls()  # selected before the capture, and while it runs
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = calls()
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(y, calls(), rtol=0, atol=0)


def test_a_first_call_inside_a_capture():
    x = torch.randn(3, 1000, device="cuda")
    lz._layerzero.invalidate()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lz.rms_norm(x)
        y = lz.rms_norm(y)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, lz.rms_norm(lz.rms_norm(x)), rtol=0, atol=0)


def test_capturing_is_seen_per_stream_and_keeps_unsafe_kernels_out(x):
    def admissible():
        report = lz.explain("rms_norm", x)
        return {c.kernel_id for c in report.candidates if c.admissible}

    outside = admissible()
    assert "torch.ref.norm.rms" in outside
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = admissible()
        lz.rms_norm(x)
    assert "cuda.norm.rms" in inside and "torch.rms_norm" in inside
    assert "torch.ref.norm.rms" not in inside
    assert admissible() == outside


def test_an_unsafe_kernel_in_a_capture_is_an_error_that_names_it():
    q = torch.randn(1, 4, 8, 20, device="cuda")
    lz.attention(q, q, q)
    graph = torch.cuda.CUDAGraph()
    keep = torch.zeros(1, device="cuda")
    with torch.cuda.graph(graph):
        keep += 1
        unsafe = pytest.raises(lz.CudaGraphUnsafeError, match=r"torch\.ref\.attention")
        with unsafe:
            lz.attention(q, q, q, softcap=3.0, layout="BSHD", kernel="torch.ref.attention.standard.prefill")
    graph.replay()


def test_threads_with_streams_of_their_own(x):
    wrong = []

    def work(seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                a = torch.randn(7, 513 + seed, device="cuda", generator=generator)
                got, want = lz.rms_norm(a), F.rms_norm(a, (a.shape[-1],), None, 1e-6)
                if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("where", [0, 1])
def test_tensors_on_another_device_than_the_current_one(current, where):
    x = torch.randn(5, 4096, device=f"cuda:{where}")
    with torch.cuda.device(current):
        y = lz.rms_norm(x)
        z = lz.run("norm.rms", x.view(1, 5, 4096))
        first, second = lz.fused_add_rms_norm(x, x)
        assert torch.cuda.current_device() == current
    assert {t.device.index for t in (y, z, first, second)} == {where}
    torch.testing.assert_close(y, F.rms_norm(x, (4096,), None, 1e-6), rtol=1e-5, atol=1e-5)
    with torch.cuda.device(current), torch.no_grad():
        traced = torch.ops.layerzero.rms_norm(x)
    assert traced.device.index == where
    torch.testing.assert_close(traced, y, rtol=0, atol=0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_fresh_thread_and_tensors_on_two_devices():
    x = torch.randn(5, 64, device="cuda:1")
    results = []
    thread = threading.Thread(target=lambda: results.append(lz.rms_norm(x)))
    thread.start()
    thread.join()
    assert results[0].device.index == 1
    with pytest.raises(lz.InvalidRequestError, match="cuda:1"):
        lz.fused_add_rms_norm(x.to("cuda:0"), x)


def test_mixed_devices_are_refused(x):
    with pytest.raises(lz.InvalidRequestError, match="weight"):
        lz.rms_norm(x, torch.ones(4096, dtype=torch.bfloat16))


def test_gradients_go_through_torchs_kernel(x):
    a = x.float().requires_grad_()
    lz.rms_norm(a).sum().backward()
    b = x.float().requires_grad_()
    F.rms_norm(b, (4096,), None, 1e-6).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_torch_operators_and_compiled_code(x):
    with torch.no_grad():
        close(torch.ops.layerzero.rms_norm(x), x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = torch.ops.layerzero.rms_norm(x)
        side.synchronize()
        close(y, x)
        compiled = torch.compile(lambda a: lz.rms_norm(a * 2) + 1, fullgraph=True)
        torch.testing.assert_close(compiled(x), lz.rms_norm(x * 2) + 1, rtol=2e-2, atol=2e-2)
        reduced = torch.compile(lambda a: lz.rms_norm(a * 2) + 1, fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            y = reduced(x).clone()
        torch.testing.assert_close(y, lz.rms_norm(x * 2) + 1, rtol=2e-2, atol=2e-2)


def test_arrays_of_other_libraries():
    cupy = pytest.importorskip("cupy")
    a = cupy.arange(12, dtype=cupy.float32).reshape(3, 4)
    y = lz.rms_norm(a)
    assert isinstance(y, cupy.ndarray)
    want = F.rms_norm(torch.from_dlpack(a), (4,), None, 1e-6)
    torch.testing.assert_close(torch.from_dlpack(y), want, rtol=1e-5, atol=1e-5)


def test_arrays_on_a_device_without_torch():
    pytest.importorskip("cupy")
    code = """
import sys
sys.modules["torch"] = None  # an import of it fails
import cupy, layerzero as lz
x = cupy.arange(12, dtype="float32").reshape(3, 4)
try:
    lz.rms_norm(x)
except lz.LayerZeroError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "torch" in done.stdout, done.stdout  # what to install, or to copy to the host


def test_the_profiler_sees_the_kernel(x):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        lz.rms_norm(x)
        torch.cuda.synchronize()
    assert any("RmsNorm" in event.key for event in profile.key_averages())


def test_doctor_describes_the_device():
    report = lz.doctor()["devices"]
    device = next(d for d in report["devices"] if d["name"] == "cuda:0")
    assert device["model"] == torch.cuda.get_device_name(0)
    assert report["cuda_library"] == "loaded" and report["why_no_cuda"] == ""
    major, minor = torch.cuda.get_device_capability(0)
    assert device["facts"]["sm"] == 10 * major + minor
