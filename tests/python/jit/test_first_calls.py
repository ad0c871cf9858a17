"""Kernels that their library compiles at the first call of a kind: no call compiles or imports, a thread of its own does.

The rows are those of the shipped descriptors, with their keys, on planted modules that note on which thread they are imported,
probed, called and made to compile.
"""

import itertools
import json
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero, backends  # noqa: E402
from layerzero.jit import library, store, work  # noqa: E402

COMPILER = {"layerzero compiler", "layerzero probe"}
SOURCE = """
import threading
from layerzero.backends import proof

events, compiled, broken = [], set(), False


def note(what):
    events.append((what, threading.current_thread().name))


def adapter(*values):
    note("call")
    kind = tuple(tuple(v.shape[-1:]) + (v.dtype,) if hasattr(v, "shape") else v for v in values)
    if kind not in compiled:
        note("compile")
        if broken:
            raise RuntimeError("nvcc: no such option")
        compiled.add(kind)
    return proof.load(REFERENCE)(*values)


def probe():
    note("probe")


note("import")
"""
_number = itertools.count()
ATTENTION = lambda d=32: tuple(torch.randn(1, 16, 3, d) for _ in range(3))  # noqa: E731
OPTIONS = {"attention": {"layout": "BSHD"}}
NORMS = tuple((torch.randn(3, hidden), torch.ones(hidden)) for hidden in (64, 96))
CALLS = {  # one operation of each compiler: (kernel, operation, a call, a call of another kind)
    "flashinfer": ("flashinfer.batch_prefill", "attention", ATTENTION(), ATTENTION(64)),
    "flashinfer in the CuTe DSL": ("flashinfer.rmsnorm", "rms_norm", *NORMS),
    "liger": ("liger.rms_norm", "rms_norm", *NORMS),
    "quack": ("quack.rms_norm", "rms_norm", *NORMS),
    "triton": ("triton.rms_norm", "rms_norm", *NORMS),
    "deep_gemm": (
        "deep_gemm.bf16_gemm_nt",
        "linear",
        (torch.randn(3, 64), torch.randn(64, 64)),
        (torch.randn(3, 128), torch.randn(64, 128)),
    ),
    "flash_attn_4": ("flash_attn_4.attention", "attention", ATTENTION(), ATTENTION(64)),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_known", {})
    lz.configure(jit={"memory_mb": 0}, memory_headroom_mb=0)
    yield
    assert work.idle(time.monotonic() + 60)
    lz.configure(jit={"memory_mb": 2048}, memory_headroom_mb=1024)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Registers a row of a library as a kernel of the CPU that every call prefers; returns the name of its module."""
    monkeypatch.syspath_prepend(tmp_path)
    adapters = []

    def plant(kernel_id, source=SOURCE):
        shipped = backends.descriptor_of(kernel_id.split(".")[0])
        ((operation, row),) = [
            (o, r) for o, rows in shipped["ops"].items() for r in rows if r["kernel_id"] == kernel_id
        ]
        row = shipped.get("templates", {}).get(row.get("extends", ""), {}) | row
        module = f"planted_jit_{next(_number)}"
        reference = next(
            k["adapter"]
            for k in json.loads(_layerzero.kernels(None, False))
            if k["kernel_id"] == f"torch.ref.{operation}"
        )
        (tmp_path / f"{module}.py").write_text(source.replace("REFERENCE", repr(reference)))
        kept = ("requires_layouts", "jit", "max_head_dim", "supports_gqa")
        own = {key: value for key, value in row.items() if key in kept} | {
            "kernel_id": f"{module}.kernel",
            "adapter": f"{module}:adapter",
            "dtypes": ["float32"],
            "accepts": ["weight"] if "norm" in operation else [],
            "priority": 100,
        }
        if operation.startswith("attention"):
            own |= {"max_head_dim": None, "supports_gqa": True, "supports_causal": True, "max_seq_len": None}
        document = {
            "schema_version": "1.0",
            "backend": module,
            "backend_version": "1",
            "platform": "cpu",
            "probe": f"{module}:probe",
            "ops": {operation: [own]},
        }
        backends.register(document)
        adapters.append(own["adapter"])
        return module, operation

    yield plant
    for adapter in adapters:
        _layerzero.unregister(adapter)
        backends._libraries.pop(adapter.partition(":")[0])


def wait():
    assert work.idle(time.monotonic() + 60)


def chosen(name, tensors):
    return lz.explain(name, *tensors, **OPTIONS.get(name, {})).kernel_id


def run(name, tensors):
    return getattr(lz, name)(*tensors, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("backend", CALLS)
def test_no_call_imports_or_compiles(planted, backend):
    # proves: jit, jit.enable_background_compile
    kernel, name, tensors, others = CALLS[backend]
    module, _ = planted(kernel)
    first = run(name, tensors)
    wait()
    assert [(one.state, one.detail) for one in library.works()] == [("ready", "")]
    own = sys.modules[module]
    assert {what for what, _ in own.events} == {"import", "probe", "call", "compile"}
    assert {thread for _, thread in own.events} <= COMPILER, "another thread waited"
    assert chosen(name, tensors) == f"{module}.kernel"
    before = len(own.events)
    torch.testing.assert_close(run(name, tensors), first, rtol=1e-4, atol=1e-4)
    assert own.events[before:] == [("call", threading.current_thread().name)], "it runs here, and compiles nothing"
    before = len(own.events)
    run(name, others)  # another kind of calls
    wait()
    assert {thread for _, thread in own.events[before:]} <= COMPILER
    assert chosen(name, others) == f"{module}.kernel"


def test_a_capture_compiles_nothing_and_asks_for_nothing(planted):
    # proves: allow_jit_compile
    module, _ = planted("liger.rms_norm")
    tensors = CALLS["liger"][2]
    with lz.policy(allow_jit_compile=True):
        assert chosen("rms_norm", tensors) == f"{module}.kernel"
        captured = lz.explain("rms_norm", *tensors, capturing=True)
    assert captured.kernel_id != f"{module}.kernel"
    (own,) = [c for c in captured.candidates if c.kernel_id == f"{module}.kernel"]
    assert "JIT_DISABLED" in [r.code for r in own.reasons]
    assert not library.works()


def test_a_lock_waits_for_a_warm_up_unless_the_policy_lets_calls_wait(planted):
    # proves: jit.fail_on_no_fallback
    lz.configure(jit={"enable_background_compile": False})
    module, _ = planted("liger.rms_norm")
    tensors = CALLS["liger"][2]
    with pytest.raises(lz.NoKernelFoundError, match="not compiled") as refused:
        lz.rms_norm(*tensors, kernel=f"{module}.kernel")
    assert "JIT_DISABLED" in [r.code for r in refused.value.failures[f"{module}.kernel"]]
    assert module not in sys.modules
    with lz.policy(jit={"fail_on_no_fallback": False}):
        lz.rms_norm(*tensors, kernel=f"{module}.kernel")
    assert ("compile", threading.current_thread().name) in sys.modules[module].events


def test_without_the_background_nothing_is_queued(planted):
    lz.configure(jit={"enable_background_compile": False})
    module, _ = planted("liger.rms_norm")
    lz.rms_norm(*CALLS["liger"][2])
    assert not library.works() and module not in sys.modules


def test_a_failure_is_remembered_by_all_processes(planted):
    module, operation = planted(
        "liger.rms_norm", SOURCE.replace("broken = [], set(), False", "broken = [], set(), True")
    )
    tensors = CALLS["liger"][2]
    lz.rms_norm(*tensors)
    wait()
    (failed,) = library.works()
    assert failed.state == "failed" and "nvcc: no such option" in failed.detail
    key = library.key_of(failed.kernel_id, operation, failed.kind, failed.call)
    assert "nvcc" in store.failure_of(key)
    library.forget()  # as in another process
    before = len(sys.modules[module].events)
    _layerzero.invalidate()
    lz.rms_norm(*tensors)
    wait()
    (again,) = library.works()
    assert again.state == "failed" and "failed before" in again.detail
    assert len(sys.modules[module].events) == before, "it is not tried again"
    assert chosen("rms_norm", tensors) != f"{module}.kernel"


class Slow:
    """Work that waits for an event."""

    def __init__(self):
        self.state, self.detail, self.seconds, self.event = "waiting", "", 0.0, threading.Event()

    def compile(self):
        assert self.event.wait(30)


def test_the_queue_drops_the_oldest_and_counts_them():
    # proves: jit.compile_queue_max_size
    lz.configure(jit={"compile_queue_max_size": 2})
    before, works = work.counts().dropped, [Slow() for _ in range(6)]
    try:
        work.add(works[:1])
        while works[0].state != "compiling":
            time.sleep(0.01)
        work.add(works[1:])
        assert [w.state for w in works] == ["compiling", "dropped", "dropped", "dropped", "waiting", "waiting"]
        assert "more than 2" in works[1].detail and work.counts().dropped - before == 3
    finally:
        lz.configure(jit={"compile_queue_max_size": 1000})
        for one in works:
            one.event.set()
    wait()
    assert works[-1].state == "ready"


def test_nothing_is_compiled_while_a_graph_is_captured():
    one = Slow()
    one.event.set()
    work.pause()
    try:
        work.add([one])
        time.sleep(0.1)
        assert one.state == "waiting"
    finally:
        work.resume()
    wait()
    assert one.state == "ready"


def test_processes_share_slots():
    # proves: jit.max_concurrent_jit
    from layerzero.host.policy import jit_settings
    from layerzero.jit import flight

    lz.configure(jit={"max_concurrent_jit": 1})
    try:
        assert jit_settings().max_concurrent_jit == 1
        held = flight.slot(jit_settings().max_concurrent_jit, time.monotonic() + 1)
        with held, pytest.raises(flight.GaveUpError), flight.slot(1, time.monotonic() + 0.1):
            pass
    finally:
        lz.configure(jit={"max_concurrent_jit": 2})
