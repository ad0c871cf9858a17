"""Kernels in a worker: results, errors, warnings and limits cross as they are; a failure costs a call, not the process."""
# proves: backend_isolation, isolation.timeout_s, isolation.start_timeout_s, isolation.arena_mb, isolation.memory_mb

import gc
import os
import signal
import threading
import time
import warnings

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import planted_library  # noqa: E402
from isolated import SOURCE, W, X, direct, isolated, pid_of, planted_module, prove_once, wanted, when_it_runs, worker  # noqa: E402
from layerzero.isolation import client  # noqa: E402
from planted_library import BINDINGS  # noqa: E402

library = planted_library.library


def runs(name):
    report = lz.explain("rms_norm", X, W)
    return report.kernel_id == f"{name}.norm"


def test_every_binding_calls_the_worker(library):
    name = library(SOURCE + f"\nassert os.getpid() != {os.getpid()}")
    with isolated({name: "subprocess"}):
        for call in BINDINGS.values():
            call()
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        assert runs(name) and pid_of(name) not in (None, os.getpid()) and worker(name).starts == 1
        assert any("in a worker" in note for note in lz.explain("rms_norm", X, W).notes)
        assert f"(subprocess: process {pid_of(name)})" in str(lz.doctor())


# Each case: arguments of `echo`, which returns its first tensor as it got it, with facts about it.
STRIDED = {
    "contiguous": lambda: torch.randn(3, 5),
    "transposed": lambda: torch.randn(5, 3).t(),
    "sliced": lambda: torch.randn(6, 10)[::2, 1:6],
    "expanded": lambda: torch.randn(1, 5).expand(3, 5),
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 7),
    "bfloat16": lambda: torch.randn(3, 5).bfloat16(),
    "float8": lambda: torch.randn(3, 5).to(torch.float8_e4m3fn),
    "bool": lambda: torch.randn(3, 5) > 0,
    "int64": lambda: torch.arange(9).view(3, 3),
    "complex conjugate": lambda: torch.randn(3, 5, dtype=torch.complex64).conj(),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "complex128 sliced": lambda: torch.randn(6, 10, dtype=torch.complex128)[::2, 1:6],
    "negated": lambda: torch.randn(3, 5, dtype=torch.complex64).conj().imag,
    "parameter": lambda: torch.nn.Parameter(torch.randn(3, 5), requires_grad=False),
    "large": lambda: torch.randn(600, 1000).t(),
    "float4": lambda: torch.zeros(3, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
}


SMALL = (torch.float8_e4m3fn, torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("case", STRIDED)
def test_tensors_cross_unchanged(echo, case):
    x = STRIDED[case]()
    got = echo(x, 1, 2.5, True, "text", None)
    assert got.dtype == x.dtype and got.shape == x.shape
    assert torch.equal(*(t.contiguous().view(torch.uint8) if x.dtype in SMALL else t for t in (got, x)))
    if case in ("transposed", "channels last"):
        assert got.stride() == x.stride()


ECHO = (
    SOURCE
    + """
import resource

def echo(x, *rest):
    assert list(map(type, rest)) == [int, float, bool, str, type(None)], rest
    return x

def pair(x):
    return x + 1, None, x * 2

def nothing(x):
    return None

def where(x):
    return torch.tensor(x.data_ptr())

def large(x):
    return x.repeat(1000)

def faults(x):
    made = [x + i for i in range(8)]
    del made
    return torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

def kept(x):
    held.append(x)
    return held[0] * 1
held = []
"""
)


@pytest.fixture(scope="module")
def echo_folder(tmp_path_factory):
    yield from planted_module(tmp_path_factory, "lz_echo", ECHO)


@pytest.fixture
def echoes(echo_folder):
    """The name of a library whose worker the tests share, as long as none closes it."""
    with isolated({}, timeout_s=60):
        prove_once("lz_echo", "echo", "pair", "nothing", "where", "large", "faults")
        yield "lz_echo"


@pytest.fixture
def echo(echoes):
    return direct(echoes, adapter="echo")


def test_results_are_tuples_or_nothing(echoes):
    x = torch.arange(4.0)
    first, none, second = direct(echoes, adapter="pair")(x)
    assert none is None and torch.equal(first, x + 1) and torch.equal(second, x * 2)
    assert direct(echoes, adapter="nothing")(x) is None


def test_memory_of_a_call_is_used_by_the_next_one(echoes):
    faults, x = direct(echoes, adapter="faults"), torch.zeros(2**18)
    counts = [int(faults(x)) for _ in range(6)]
    assert counts[-1] - counts[2] < 3 * 256, counts  # a tensor has 256 pages, and a call makes eight


def test_results_are_the_callers_and_their_memory_is_used_again(echoes):
    pair, channel = direct(echoes, adapter="pair"), worker(echoes).connection.channel
    kept = [pair(torch.full((1000,), float(i))) for i in range(8)]
    for i, (a, _, b) in enumerate(kept):
        assert torch.equal(a, torch.full((1000,), i + 1.0)) and torch.equal(b, torch.full((1000,), i * 2.0))
    a = kept[3][0]
    a.zero_()
    assert torch.equal(kept[3][2], torch.full((1000,), 6.0))  # no storage is shared
    del kept, b
    gc.collect()
    pair(torch.ones(1000))
    state = lz._layerzero.worker_state(channel)
    assert state["held"] <= 3 * 8192 and torch.equal(a, torch.zeros(1000))
    for _ in range(50):
        pair(torch.ones(1000))
    assert lz._layerzero.worker_state(channel)["free_parts"] <= state["free_parts"] + 2


def test_a_result_is_passed_on_without_a_copy(echoes):
    x = direct(echoes, adapter="pair")(torch.ones(512))[0]
    channel, where = worker(echoes).connection.channel, direct(echoes, adapter="where")
    assert lz._layerzero.worker_holds(channel, x.data_ptr())
    offset = where(x).item()
    assert where(x).item() == offset and where(x.clone()).item() != offset
    assert torch.equal(direct(echoes, adapter="pair")(x)[0], torch.full((512,), 3.0))


def test_outputs_that_are_larger_than_the_inputs(echoes):
    for n in (1, 1000, 100_000):
        assert direct(echoes, adapter="large")(torch.ones(n)).sum() == 1000 * n


def test_what_does_not_fit_is_refused(echoes):
    echo = direct(echoes, adapter="echo")
    cases = {
        "fits into a message": lambda: echo(X, 1, 2.0, True, "x" * 10_000, None),
        "arguments": lambda: echo(X, *range(100)),
        "dimensions": lambda: echo(torch.ones([1] * 20), 1, 2.0, True, "", None),
        "room in the shared memory": lambda: echo(torch.empty(2**31, dtype=torch.uint8), 1, 2.0, True, "", None),
        "without a gradient": lambda: echo(torch.ones(2, requires_grad=True), 1, 2.0, True, "", None),
        "dense tensors": lambda: echo(torch.ones(2, 2).to_sparse(), 1, 2.0, True, "", None),
        "numbers": lambda: echo(torch.ones(2), [1], 2.0, True, "", None),
        "got tuple": lambda: echo(torch.ones(2), (1, 2), 2.0, True, "", None),
    }
    for text, call in cases.items():
        with pytest.raises(lz.KernelRefusedError) as error:
            call()
        assert text in str(error.value) or text in ("arguments", "dimensions", "numbers"), (text, str(error.value))
    assert worker(echoes).starts == 1 and torch.equal(echo(X, 1, 2.0, True, "", None), X)


FAULTS = (
    SOURCE
    + """
import layerzero as lz
class Odd(Exception): pass
how = {
    "value": lambda: [][1],
    "type": lambda: int("x"),
    "odd": lambda: (_ for _ in ()).throw(Odd("odd")),
    "exit": lambda: exit(3),
    "own": lambda: (_ for _ in ()).throw(lz.KernelRefusedError("x", "a", "b", "c")),
    "lost": lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: an illegal memory access was encountered")),
    "unicode": lambda: b"\\xff".decode(),
    "memory": lambda: (_ for _ in ()).throw(MemoryError("4 GiB")),
    "long": lambda: (_ for _ in ()).throw(ValueError("\\u2764" * 100_000)),
    "result": lambda: 3,
    "segfault": lambda: __import__("ctypes").string_at(0),
    "abort": lambda: os.abort(),
    "leave": lambda: os._exit(7),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda: time.sleep(1000),
    "print": lambda: print("noise", flush=True) or torch.ones(1),
    "warn": lambda: warnings.warn("careful", lz.LayerZeroLayoutWarning) or warnings.warn("and so") or torch.ones(1),
}
def fault(x, name):
    return how[name]()
"""
)

ERRORS = {
    "value": (IndexError, "list index out of range"),
    "type": (ValueError, "invalid literal"),
    "odd": (lz.KernelExecutionError, "Odd: odd"),
    "exit": (lz.KernelExecutionError, "SystemExit: 3"),
    "own": (lz.KernelRefusedError, "x: wanted a, got b; c"),
    "unicode": (lz.KernelExecutionError, "UnicodeDecodeError"),
    "memory": (MemoryError, "4 GiB"),
    "long": (ValueError, "..."),
    "result": (TypeError, "got int"),
}
ENDS = {
    "segfault": "signal 11 (SIGSEGV)",
    "abort": "signal 6 (SIGABRT)",
    "leave": "exit code 7",
    "stop": "no answer in 1 s",
    "sleep": "no answer in 1 s",
}


@pytest.fixture(scope="module")
def faults_folder(tmp_path_factory):
    yield from planted_module(tmp_path_factory, "lz_faults", FAULTS)


@pytest.fixture
def faults(faults_folder):
    with isolated({}, timeout_s=1):
        prove_once("lz_faults", "fault")
        yield direct("lz_faults", adapter="fault")


@pytest.mark.parametrize("name", ERRORS)
def test_errors_cross_with_their_type(faults, name):
    kind, text = ERRORS[name]
    with pytest.raises(kind) as error:
        when_it_runs(lambda: faults(X, name))
    assert type(error.value) is kind and text in str(error.value)
    assert "in the worker" in str(error.value.__cause__) and len(str(error.value)) < 9000
    if name == "own":
        assert (error.value.field, error.value.wanted, error.value.got, error.value.fix) == ("x", "a", "b", "c")


def test_a_lost_context_of_the_worker_is_not_this_processes(faults):
    starts = worker("lz_faults").starts
    with pytest.raises(lz.KernelExecutionError) as error:
        when_it_runs(lambda: faults(X, "lost"))
    assert not isinstance(error.value, lz.ContextLostError) and "started again" in error.value.fix
    when_it_runs(lambda: faults(X, "print"))
    assert worker("lz_faults").starts == starts + 1


def test_warnings_cross_and_the_filters_here_decide(faults):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        when_it_runs(lambda: faults(X, "warn"))
    assert [(w.category, str(w.message)) for w in found] == [
        (lz.LayerZeroLayoutWarning, "careful"),
        (UserWarning, "and so"),
    ]
    assert found[0].filename.endswith("lz_faults.py")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(lz.LayerZeroLayoutWarning):
            faults(X, "warn")


def test_what_a_library_prints_breaks_nothing(faults):
    assert when_it_runs(lambda: faults(X, "print")).item() == 1


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_worker_is_a_typed_error(faults, name):
    began = time.monotonic()
    with pytest.raises(lz.WorkerError) as error:
        when_it_runs(lambda: faults(X, name))
    assert ENDS[name] in error.value.got and error.value.field == "the worker of lz_faults"
    with pytest.raises(lz.KernelRefusedError, match="started again"):
        faults(X, "print")
    assert when_it_runs(lambda: faults(X, "print")).item() == 1 and time.monotonic() - began < 60


def test_delays_between_starts_double():
    one = client.Worker("none", "subprocess")
    delays = []
    for _ in range(14):
        one._note_end("signal 9", 1.0)
        delays.append(one.next_start - time.monotonic())
    assert delays[:3] == pytest.approx([0.1, 0.2, 0.4], abs=0.05) and delays[-1] == pytest.approx(60, abs=0.1)
    one._note_end("signal 9", client.STABLE + 1)
    assert one.next_start - time.monotonic() < 0.11


def test_memory_of_a_worker_is_limited(library):
    name = library(SOURCE.replace("return", "torch.ones(2**29)\n    return"))
    with isolated({name: "subprocess"}, memory_mb=2000):
        assert lz._layerzero.prove_backend(name) == ""
        with pytest.raises((RuntimeError, MemoryError)) as error:
            direct(name)(X, W, 1e-6)
        assert not isinstance(error.value, lz.WorkerError) and worker(name).starts == 1


# ---- in the engine


def test_a_crash_costs_a_call_nothing_and_opens_the_breaker(library):
    name = library(SOURCE.replace("return", "os.kill(os.getpid(), 11) if input[0, 0] == 77 else 0\n    return"))
    bad = X.clone()
    bad[0, 0] = 77
    with isolated({name: "subprocess"}):
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        end, breaker = time.monotonic() + 90, None
        while (breaker or {}).get("state") != "open" and time.monotonic() < end:
            torch.testing.assert_close(lz.rms_norm(bad, W), wanted(bad))  # the next best kernel answers
            time.sleep(0.05)
            breaker = next((b for b in lz.health()["breakers"] if f"{name}.norm" in b.values()), None)
        assert breaker["state"] == "open" and "SIGSEGV" in str(breaker) and worker(name).ends == 3
        reasons = next(c.reasons for c in lz.explain("rms_norm", X, W).candidates if c.kernel_id == f"{name}.norm")
        assert [r.code for r in reasons] == ["BACKEND_ERROR"]
    lz.reset_health(f"{name}.norm")


def test_sixteen_threads_while_the_worker_is_killed(library):
    name = library(SOURCE)
    wrong, errors, done = [], [], threading.Event()
    counts = dict.fromkeys(("worker", "refused", "ended"), 0)
    with isolated({name: "subprocess"}):
        assert lz._layerzero.prove_backend(name) == ""
        kernel = direct(name)

        def call(seed):
            x = torch.randn(8, 32, generator=torch.Generator().manual_seed(seed))
            want = wanted(x)
            while not done.is_set():
                try:
                    if not torch.allclose(kernel(x, W, 1e-6), want, atol=1e-5):
                        wrong.append(seed)
                    counts["worker"] += 1
                except lz.KernelRefusedError:
                    counts["refused"] += 1
                    time.sleep(0.002)
                except lz.WorkerError:
                    counts["ended"] += 1
                except BaseException as error:
                    errors.append(repr(error))
                    return

        threads = [threading.Thread(target=call, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 8
        while time.monotonic() < end:
            time.sleep(0.004)
            connection = worker(name).connection
            if connection is not None and counts["worker"] % 3 == 0:
                os.kill(connection.started.process.pid, signal.SIGKILL)
        done.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert not wrong and not errors and counts["worker"] and counts["ended"], counts


def test_a_written_tensor_is_written_only_by_a_call_that_succeeds(library, monkeypatch):
    source = """
import os, torch
def write(input, weight, eps=1e-6):
    input.add_(1)
    if weight[0] == 9:
        os._exit(1)
    return input * weight
"""
    name = library(source)
    monkeypatch.setattr(client, "_written", lambda kernel: frozenset({0}))
    with isolated({name: "subprocess"}):
        assert client.prove(name, "subprocess", (f"{name}:write",), "") == ""
        write, x = direct(name, adapter="write"), torch.zeros(2, 4)[:, ::2]
        torch.testing.assert_close(write(x, torch.tensor([3.0, 3.0])), torch.full((2, 2), 3.0))
        torch.testing.assert_close(x, torch.ones(2, 2))
        both = torch.zeros(4)
        with pytest.raises(lz.KernelRefusedError, match="share no memory"):
            write(both[:3], both[1:])
        with pytest.raises(lz.KernelRefusedError, match="exit code 1"):
            write(x, torch.tensor([9.0, 9.0]))
        torch.testing.assert_close(x, torch.ones(2, 2))


# ---- processes


def test_a_forked_child_has_a_worker_of_its_own(library):
    name = library(SOURCE)
    with isolated({name: "subprocess"}):
        result = lz.rms_norm(X, W)
        mine = pid_of(name)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for _ in range(600):
                    torch.testing.assert_close(lz.rms_norm(X, W), wanted())
                    torch.testing.assert_close(result, wanted())
                    own = client.states()[name]["pid"]
                    if own:
                        break
                    time.sleep(0.1)
                os.write(send, str(own).encode())
            finally:
                os._exit(0)
        os.close(send)
        for _ in range(100):
            lz.rms_norm(X * 2, W)  # the child still reads `result`
        theirs = os.read(receive, 100).decode()
        os.waitpid(child, 0)
        os.close(receive)
        assert theirs not in ("", "None") and int(theirs) != mine and pid_of(name) == mine
        end = time.monotonic() + 10
        while os.path.exists(f"/proc/{theirs}") and time.monotonic() < end:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{theirs}"), "the child's worker outlives it"


def test_a_worker_ends_with_its_parent(tmp_path):
    import subprocess
    import sys

    (tmp_path / "lz_lib.py").write_text(SOURCE)
    script = f"""
import os, sys, time
sys.path[:0] = [{str(tmp_path)!r}]
import layerzero as lz
from layerzero.isolation import client
assert client.prove("lz_lib", "subprocess", ("lz_lib:rms_norm",), "") == ""
print(client.states()["lz_lib"]["pid"], flush=True)
time.sleep(100)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert os.path.exists(f"/proc/{pid}")
    parent.kill()
    parent.wait()
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def test_a_change_of_the_policy_holds_for_kernels_that_have_run(library):
    name = library(SOURCE)
    lz.rms_norm(X, W)
    assert lz.doctor().libraries[name].worker is None
    with isolated({name: "subprocess"}):
        for _ in range(600):
            torch.testing.assert_close(lz.rms_norm(X, W), wanted())
            if pid := pid_of(name):
                break
            time.sleep(0.1)
        assert pid
    assert lz.doctor().libraries[name].worker is None and not os.path.exists(f"/proc/{pid}")
    torch.testing.assert_close(lz.rms_norm(X, W), wanted())


def test_what_cannot_be_isolated_is_refused():
    for name in ("hwy", "torch.ref", "inductor", "no_such_library"):
        with pytest.raises(lz.ConfigError):
            lz.configure(backend_isolation={name: "subprocess"})
    with pytest.raises(lz.ConfigError, match="an image"):
        lz.configure(backend_isolation="container")
    with pytest.raises(lz.ConfigError, match="did you mean subprocess"):
        lz.configure(backend_isolation="subproces")
    with pytest.raises(lz.ConfigError):
        lz.policy(backend_isolation="subprocess")
    assert lz.policy_in_force()["keys"]["backend_isolation"]["value"] == {"default": "in_process"}
