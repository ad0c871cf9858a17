"""Kernels that fail, lie, crash or lose the device: what the caller gets, and what is not selected afterwards."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")

PACKAGE = Path(lz.__file__).parent.parent
X, W = torch.arange(32, dtype=torch.float32).view(4, 8), torch.full((8,), 2.0)
RIGHT = torch.nn.functional.rms_norm(X, (8,), W, 1e-6)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Nothing of this machine's is read or written, and nothing is left for the next test."""
    before = lz.policy_in_force()["keys"]["cache_dir"]["value"]
    lz.configure(cache_dir=str(tmp_path), health={"failures": 3, "retry_s": 0.2, "error_budget": 1000})
    lz.reset_health()
    yield
    lz.reset_health()
    lz.configure(cache_dir=before, health={"failures": 3, "retry_s": 30, "error_budget": 100, "persist": True})


@pytest.fixture
def planted():
    """Registers kernels of norm.rms that are selected before all others."""
    names = []

    def plant(name, function, priority=100, **facts):
        facts = {"supported_dtypes": ["float32"], "priority": priority} | facts
        lz.register_kernel("norm.rms", name, **facts)(function)
        names.append(name)

    yield plant
    for name in names:
        lz.unregister_kernel("norm.rms", name)


def right(input, weight, eps, weight_offset=None):
    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)


def raising(error, times=10**9):
    left = [times]

    def kernel(input, weight, eps, weight_offset=None):
        if left[0] > 0:
            left[0] -= 1
            raise error
        return right(input, weight, eps)

    return kernel


def lying(lie):
    def kernel(input, weight, eps, weight_offset=None):
        return lie(input)

    return kernel


def check(result):
    torch.testing.assert_close(result, RIGHT)


def reasons_of(kernel, *tensors):
    found = lz.explain("rms_norm", *(tensors or (X, W)))
    return {r.code: r.message for c in found.candidates if c.kernel_id == kernel for r in c.reasons}


def call(times=1):
    for _ in range(times):
        check(lz.rms_norm(X, W))


# ---- breakers


def test_a_breaker_opens_and_is_tried_again(planted):  # proves: health.failures, health.retry_s
    lz.configure(health={"retry_s": 4})
    planted("tests.bad", raising(ValueError("planted"), 3))
    call(3)
    message = reasons_of("tests.bad")["BACKEND_ERROR"]
    assert "failed 3 times" in message and "planted" in message
    assert lz.which("rms_norm", X, W).kernel_id != "tests.bad"
    assert lz.health()["status"] == "degraded"
    deadline = time.monotonic() + 60
    while not lz.health().ok and time.monotonic() < deadline:  # a timer says when it may be tried
        call()  # the first one then tries it, and the breaker closes
        time.sleep(0.02)
    assert reasons_of("tests.bad") == {}
    assert lz.which("rms_norm", X, W).kernel_id == "tests.bad"
    assert lz.health().ok


def test_the_next_best_kernel_answers(planted):
    ran = []
    planted("tests.bad", raising(RuntimeError("planted")))

    def following(input, weight, eps, weight_offset=None):
        ran.append(1)
        return right(input, weight, eps)

    planted("tests.next", following, priority=99)
    call()
    assert ran == [1]


def test_out_of_memory_opens_no_breaker(planted):
    planted("tests.large", raising(MemoryError("planted")))
    call(10)
    assert reasons_of("tests.large") == {}
    assert lz.which("rms_norm", X, W).kernel_id == "tests.large"
    with pytest.raises(MemoryError, match="planted"), lz.policy(locks={"norm.rms": "tests.large"}):
        lz.rms_norm(X, W)


def test_data_that_no_kernel_takes_is_no_failure():
    """Ids that name no row: a Python kernel raises as it does for its own faults, and then every other one refuses them."""
    table = torch.randn(8, 16)

    @lz.register_kernel("embedding.lookup", "tests.rows", supported_dtypes=["int64", "float32"], priority=100)
    def rows(input, weight):
        return weight[input]

    try:
        good, bad = torch.tensor([0, 7, 3]), torch.tensor([0, 99, 3])
        assert lz.which("embedding", good, table).kernel_id == "tests.rows"
        for _ in range(10):
            with pytest.raises(lz.KernelExecutionError):
                lz.embedding(bad, table)
        assert lz.which("embedding", good, table).kernel_id == "tests.rows"
        assert torch.equal(lz.embedding(good, table), table[good])
        assert lz.health()["breakers"] == [] and lz.health()["error_budget"]["used"] == 0
    finally:
        lz.unregister_kernel("embedding.lookup", "tests.rows")


def test_kernels_that_were_unregistered_say_nothing_about_their_library(planted):
    lz.configure(health={"retry_s": 1000})
    bad = raising(ValueError("planted"))
    for name in ("tests.a", "tests.b", "tests.c"):
        lz.register_kernel("norm.rms", name, supported_dtypes=["float32"], priority=100)(bad)
        call(3)
        assert lz.health()["status"] == "degraded"
        lz.unregister_kernel("norm.rms", name)
    planted("tests.good", right)
    assert lz.which("rms_norm", X, W).kernel_id == "tests.good"
    assert lz.health().ok


def test_metrics_and_reports_have_the_breakers(planted):
    from layerzero.telemetry.health import breakers

    planted("tests.bad", raising(ValueError("planted"), 3))
    call(3)
    found = [b for b in breakers() if b["kernel_id"] == "tests.bad"]
    assert found == [{"operation": "norm.rms", "kernel_id": "tests.bad", "device": "0", "state": "open"}]


def test_the_error_budget_asks_for_a_restart(planted):  # proves: health.error_budget
    lz.configure(health={"failures": 1000, "error_budget": 5})
    planted("tests.bad", raising(ValueError("planted")))
    call(6)
    report = lz.health()
    assert report["status"] == "restart"
    assert report["reasons"][0]["code"] == "ERROR_BUDGET_SPENT"
    assert "health.error_budget allows 5" in str(report)


def test_reset_closes_a_breaker(planted):
    lz.configure(health={"retry_s": 1000})
    planted("tests.bad", raising(ValueError("planted"), 3))
    call(3)
    assert lz.reset_health("other.*") == 0
    assert lz.reset_health("tests.b*") == 1
    assert lz.which("rms_norm", X, W).kernel_id == "tests.bad"


# ---- lost devices, in a process of their own

LOST = """
import torch, layerzero as lz
@lz.register_kernel("norm.rms", "tests.lost", supported_dtypes=["float32"], priority=100)
def kernel(input, weight, eps, weight_offset=None):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
x, w = torch.ones(4, 8), torch.ones(8)
for _ in range(3):
    try:
        lz.rms_norm(x, w)
        print("answered")
    except lz.ContextLostError as error:
        print("lost", "start the process again" in str(error))
print(lz.health()["status"], lz.health()["reasons"][0]["code"])
"""
CRASH = """
import os, signal, sys, torch, layerzero as lz
@lz.register_kernel("norm.rms", "tests.crash", supported_dtypes=["float32"], priority=100)
def kernel(input, weight, eps, weight_offset=None):
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    return torch.nn.functional.rms_norm(input, (8,), weight, eps)
x, w = torch.ones(4, 8), torch.ones(8)
lz.rms_norm(x, w)
print(lz.which("rms_norm", x, w).kernel_id, [q["outcome"] for q in lz.health()["quarantine"] if q["kernel"] == "tests.crash"])
"""


def python(code, *arguments, cache):
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "LAYERZERO_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=120
    )


def test_after_a_lost_context_nothing_is_tried_again(tmp_path):
    cache = tmp_path / "cache"
    done = python(LOST, cache=cache)
    assert done.stdout.split("\n")[:4] == ["lost True"] * 3 + ["restart CONTEXT_LOST"], done.stderr
    rows = json.loads((cache / "quarantine.json").read_text())["rows"]
    assert [(row["kernel"], row["outcome"]) for row in rows] == [("tests.lost", "context_lost")]


def test_a_kernel_that_kills_its_process_is_quarantined_in_the_next(tmp_path):
    cache = tmp_path / "cache"
    assert python(CRASH, "die", cache=cache).returncode == -11
    done = python(CRASH, "live", cache=cache)
    assert done.stdout.strip().endswith("['crashed']"), done.stderr
    assert not done.stdout.startswith("tests.crash")
    mended = CRASH.replace("return torch", "return 1.0 * torch")  # another version, which the row is not of
    assert python(mended, "live", cache=cache).stdout.startswith("tests.crash [")
    assert python("import layerzero as lz; print(lz.reset_health('tests.*'))", cache=cache).stdout == "1\n"
    assert python(CRASH, "live", cache=cache).stdout == "tests.crash []\n"


def test_a_process_that_may_write_nothing_works(tmp_path):  # proves: health.persist
    cache = tmp_path / "cache"
    off = "import layerzero as lz; lz.configure(health={'persist': False})\n"
    assert python(off + CRASH, "die", cache=cache).returncode == -11
    assert not cache.exists()
    done = python(CRASH, "live", cache="/proc/nothing")
    assert done.stdout == "tests.crash []\n", done.stderr


# ---- wrong results


@pytest.mark.parametrize(
    "lie",
    [
        lambda x: torch.full_like(x, float("nan")),
        lambda x: x.clone(),  # another's output
        lambda x: torch.cat([right(x[:1], W, 1e-6), x[1:]]),
    ],
    ids=["NaN", "other", "half"],
)
def test_a_lie_never_reaches_the_caller(planted, lie):  # proves: health.shadow_rate
    planted("tests.liar", lying(lie))
    with lz.shadow():
        call()
    assert "QUARANTINED" in reasons_of("tests.liar")
    assert lz.which("rms_norm", X, W).kernel_id != "tests.liar"
    assert lz.health()["shadow"]["wrong"] > 0
    rows = [row for row in lz.health()["quarantine"] if row["kernel"] == "tests.liar"]
    assert [row["outcome"] for row in rows] == ["wrong"]


def test_a_right_kernel_is_not_quarantined(planted):
    planted("tests.right", right)
    before = lz.health()["shadow"]
    with lz.shadow():
        call(20)
    assert lz.health()["shadow"]["right"] >= before["right"] + 20
    assert lz.which("rms_norm", X, W).kernel_id == "tests.right"


def test_a_locked_kernel_that_lies_is_an_error(planted):
    planted("tests.liar", lying(torch.clone))
    message = "within the operation's tolerance"
    locked = lz.policy(locks={"norm.rms": "tests.liar"})
    with lz.shadow(), locked, pytest.raises(lz.KernelExecutionError, match=message):
        lz.rms_norm(X, W)


def test_inputs_of_a_lie_are_kept(planted, tmp_path):  # proves: health.keep_inputs
    numpy = pytest.importorskip("numpy")
    planted("tests.liar", lying(torch.clone))
    with lz.shadow(keep_inputs=tmp_path / "kept"):
        call()
    (folder,) = (tmp_path / "kept").iterdir()
    told = json.loads((folder / "call.json").read_text())
    assert (told["operation"], told["kernel_id"]) == ("rms_norm", "tests.liar")
    assert (numpy.load(folder / "input.npy") == X.numpy()).all()
    assert (numpy.load(folder / "weight.npy") == W.numpy()).all()


def test_outside_of_the_block_nothing_is_compared(planted):
    planted("tests.right", right)
    with lz.shadow(0.0):
        call(5)
    before = lz.health()["shadow"]
    call(5)
    assert lz.health()["shadow"] == before


# ---- writes


def test_after_a_write_to_an_input_nothing_answers():
    caches = [torch.zeros(4, 8, 2, 16) for _ in range(2)]
    rows = [torch.ones(5, 2, 16) for _ in range(2)]
    slots = torch.tensor([0, 1, 9, 31, 16])

    @lz.register_kernel("kv.append_paged", "tests.half", supported_dtypes=["float32"], priority=100, accepts=["*"])
    def half(key_cache, value_cache, key, value, slots, k_scale=None, v_scale=None):
        key_cache[0, 0] = 1
        raise RuntimeError("planted")

    try:
        with pytest.raises(lz.KernelExecutionError, match="may have been written"):
            lz.kv_append_paged(*caches, *rows, slots)
    finally:
        lz.unregister_kernel("kv.append_paged", "tests.half")
    breaker = next(b for b in lz.health()["breakers"] if b["kernel_id"] == "tests.half")
    assert breaker["outcomes"] == {"failed_after_write": 1}


# ---- all of it at once


def test_many_threads_get_right_results_or_typed_errors(planted):
    """Planted kernels in 16 threads: one that raises at random, one that lies at random, one that refuses."""
    lz.configure(health={"failures": 3, "retry_s": 0.02, "error_budget": 10**9})
    count = [0]

    def sometimes(period, fault):
        def kernel(input, weight, eps, weight_offset=None):
            count[0] += 1
            return fault(input) if count[0] % period == 0 else right(input, weight, eps)

        return kernel

    def fail(_):
        raise RuntimeError("planted")

    def refuse(_):
        raise lz.KernelRefusedError("planted")

    planted("tests.raises", sometimes(7, fail), 100)
    planted("tests.refuses", sometimes(5, refuse), 99)
    planted("tests.lies", sometimes(11, lambda x: x.clone()), 98)
    wrong, errors = [], []

    def work():
        with lz.shadow():
            for _ in range(400):
                try:
                    if not torch.allclose(lz.rms_norm(X, W), RIGHT):
                        wrong.append(1)
                except lz.LayerZeroError as error:
                    errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert (wrong, errors) == ([], [])
    assert lz.health()["shadow"]["right"] > 0
