"""lz.observe: one callback for every kernel that runs, whatever calls it, and nothing where nobody observes."""

import sys
import threading

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

X, W = torch.ones(4, 8), torch.ones(8)


def observed(call):
    runs = []
    with lz.observe(runs.append):
        call()
    call()  # not observed any more
    return runs


@pytest.mark.parametrize(
    "call",
    [
        lambda: lz.rms_norm(X, W),
        lambda: lz.run("norm.rms", X, W),
        lambda: torch.ops.layerzero.rms_norm(X, W),
        lambda: lz.prepare(lz.rms_norm, X, W)(X, W),
    ],
    ids=["function", "run", "torch.ops", "prepared"],
)
def test_every_way_to_call(call):
    call()
    (run,) = observed(call)
    assert run[:4] == ("rms_norm", "hwy.norm.rms", "cpu", "float32[4,8] float32[8]")
    assert run.seconds > 0 and run.fallback is False and run.error is None


def test_python_kernels_and_their_fallbacks():
    @lz.register_kernel("norm.rms", "tests.observe", supported_dtypes=["float32"], priority=100)
    def fails(input, weight, eps):
        raise ValueError("planted")

    try:
        runs = observed(lambda: lz.rms_norm(X, W))
    finally:
        lz.unregister_kernel("norm.rms", "tests.observe")
    assert [(r.kernel_id, r.fallback) for r in runs] == [("tests.observe", False), ("hwy.norm.rms", True)]
    assert "planted" in runs[0].error and runs[1].error is None


def test_an_error_of_the_call_stays_and_is_reported():
    @lz.register_kernel("norm.rms", "tests.observe.locked", supported_dtypes=["float32"], priority=0)
    def fails(input, weight, eps):
        raise ValueError("planted")

    runs = []
    try:
        with lz.observe(runs.append), pytest.raises((ValueError, lz.KernelExecutionError), match="planted"):
            lz.rms_norm(X, W, kernel="tests.observe.locked")
    finally:
        lz.unregister_kernel("norm.rms", "tests.observe.locked")
    assert len(runs) == 1 and "planted" in runs[0].error


def test_kernels_of_a_callback_are_not_reported_and_what_it_raises_changes_no_call(monkeypatch):
    seen, unraisable = [], []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def callback(run):
        seen.append(run.operation)
        lz.rms_norm(X, W)
        raise ValueError("of the callback")

    with lz.observe(callback):
        got = lz.rms_norm(X, W)
    torch.testing.assert_close(got, torch.nn.functional.rms_norm(X, (8,), W, 1e-6))
    assert seen == ["rms_norm"] and str(unraisable[0].exc_value) == "of the callback"


def test_other_threads_and_two_observers():
    outer, inner = [], []
    with lz.observe(outer.append):
        with lz.observe(inner.append, wait=True):
            thread = threading.Thread(target=lz.rms_norm, args=(X, W))
            thread.start()
            thread.join()
        lz.rms_norm(X, W)
    assert len(outer) == 2 and len(inner) == 1


def test_a_callback_is_freed():
    class Callback:
        def __call__(self, run):
            pass

    import weakref

    callback = Callback()
    reference = weakref.ref(callback)
    observer = lz.observe(callback)
    with observer:
        lz.rms_norm(X, W)
    del callback, observer
    assert reference() is None


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="callback"), lz.observe(3):
        pass
