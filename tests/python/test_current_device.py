"""Kernels of libraries run with the device of their tensors current. There are no two devices here: tensors without memory
say that they are on one, and stand-ins of torch's functions note which one is made current."""

import contextlib

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")
from layerzero import backends  # noqa: E402
from layerzero.backends.current_device import on_device_of_tensors  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402


def on(device):
    with FakeTensorMode():
        return torch.empty(2, device=device)


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda with two devices; `current` is a list of the one device that is current."""
    current = [0]

    @contextlib.contextmanager
    def device(number):
        before, current[0] = current[0], number
        try:
            yield
        finally:
            current[0] = before

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    return current


def test_the_device_of_the_first_tensor_on_one_is_current(cuda):
    run = on_device_of_tensors(lambda *values: cuda[0])
    assert [run(None, 0.5, on(d), on("cuda:0")) for d in ("cuda:1", "cuda:0", "cpu")] == [1, 0, 0]
    assert run(on("cpu"), on("cuda:1")) == 1
    assert (cuda[0], run()) == (0, 0)


def test_planning_before_a_capture_too(cuda):
    def function(*values):
        raise AssertionError

    function.before_capture = lambda *values: cuda[0]
    assert on_device_of_tensors(function).before_capture(on("cuda:1")) == 1


def test_one_device_costs_nothing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert on_device_of_tensors(len) is len


def test_an_error_leaves_the_device_as_it_was(cuda):
    def function(*values):
        raise ValueError(cuda[0])

    with pytest.raises(ValueError, match="1"):
        on_device_of_tensors(function)(on("cuda:1"))
    assert cuda[0] == 0


def test_a_kernel_of_a_library_and_a_registered_one_are_resolved_so(cuda, monkeypatch):
    lz.list_kernels()
    monkeypatch.setattr(backends.proof, "load", lambda adapter: lambda *values: cuda[0])
    given = on("cuda:1")
    assert backends.resolve("liger.rms_norm", "layerzero.backends.liger.adapters:rms_norm", "liger")(given) == 1
    assert backends.resolve("torch.rms_norm", "layerzero.backends.torch.norms:rms_norm", "torch")(given) == 0

    @lz.register_kernel("norm.rms", "here.rms", supported_dtypes=["float32"])
    def rms(input):
        return cuda[0]

    try:
        assert (
            backends.resolve("here.rms", "layerzero.register_kernel:norm.rms/here.rms", "here")(given, *[None] * 3) == 1
        )
    finally:
        lz.unregister_kernel("norm.rms", "here.rms")
