"""Kernels in a worker on CUDA tensors: memory crosses by IPC handles; a lost context is the worker's alone."""

import gc
import threading
import time

import layerzero as lz
import pytest
import torch
from isolated import direct, isolated, planted_module, prove_once, when_it_runs, worker

SOURCE = """
import ctypes, os
import torch

def double(x, scale):
    return x * scale

def pair(x):
    return x + 1, x.cpu() * 3

def write(x, y):
    x.add_(y)
    return None

def crash(x):
    torch.ones(4, device="cuda")[torch.tensor([10**9], device="cuda")].sum().item()

def leave(x):
    os._exit(5)
"""
NAMES = ("double", "pair", "write", "crash", "leave")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield from planted_module(tmp_path_factory, "lz_cuda", SOURCE)


@pytest.fixture
def library(folder):
    with isolated({}, timeout_s=60):
        prove_once("lz_cuda", *NAMES)
        yield lambda name: direct("lz_cuda", adapter=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn])
def test_tensors_cross_unchanged(library, dtype):
    for x in (
        torch.randn(5, 7, device="cuda"),
        torch.randn(7, 5, device="cuda").t(),
        torch.randn(9, 16, device="cuda")[2:, 3:],
    ):
        x = (x * 10).to(dtype)
        want = x.float() * 2 if dtype == torch.float8_e4m3fn else x * 2
        if dtype == torch.float8_e4m3fn:
            x, want = x.float(), want
        got = when_it_runs(lambda x=x: library("double")(x, 2))
        assert torch.equal(got, want) and got.device == x.device and got.dtype == want.dtype


def test_results_are_copies_that_outlive_the_worker(library):
    x = torch.arange(1000.0, device="cuda")
    on_device, on_host = when_it_runs(lambda: library("pair")(x))
    with pytest.raises(lz.WorkerError, match="exit code 5"):
        library("leave")(x)
    assert torch.equal(on_device, x + 1) and torch.equal(on_host, x.cpu() * 3)


def test_work_of_the_callers_stream_is_done_before(library):
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(20):
            x = torch.zeros(1 << 22, device="cuda")
            for _ in range(20):
                x += 1
            assert when_it_runs(lambda x=x, i=i: library("double")(x, i)).eq(20 * i).all()


def test_written_tensors_are_written_in_place(library, monkeypatch):
    from layerzero.isolation import client

    monkeypatch.setattr(client, "_written", lambda kernel: frozenset({0}))
    x, host = torch.ones(100, device="cuda"), torch.ones(100)
    when_it_runs(lambda: direct("lz_cuda", adapter="write")(x, torch.full((100,), 2.0, device="cuda")))
    assert x.eq(3).all()
    when_it_runs(lambda: direct("lz_cuda", adapter="write")(host, torch.full((100,), 4.0)))
    assert host.eq(5).all()


def test_a_lost_context_is_the_workers_alone(library):
    x = torch.ones(100, device="cuda")
    with pytest.raises(lz.KernelExecutionError) as error:
        when_it_runs(lambda: library("crash")(x))
    assert not isinstance(error.value, lz.ContextLostError)
    assert (x + 1).eq(2).all() and when_it_runs(lambda: library("double")(x, 3)).eq(3).all()
    torch.cuda.synchronize()
    assert lz.health()["status"] != "restart"


def test_a_capture_is_refused(library):
    x = torch.ones(100, device="cuda")
    when_it_runs(lambda x=x: library("double")(x, 2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(lz.KernelRefusedError, match="capture"):
            library("double")(x, 2)
        y = x * 2
    graph.replay()
    assert y.eq(2).all()


def test_memory_is_released(library):
    x = torch.ones(1 << 24, device="cuda")
    double = library("double")
    when_it_runs(lambda: double(x, 2))
    before = None
    for i in range(60):
        double(x, i)
        double(torch.ones(1 << 24, device="cuda"), i)
        if i == 20:
            gc.collect()
            torch.cuda.synchronize()
            before = torch.cuda.mem_get_info()[0]
    gc.collect()
    assert torch.cuda.mem_get_info()[0] > before - (512 << 20)


def test_threads(library):
    wrong = []
    double = library("double")
    when_it_runs(lambda: double(torch.ones(1, device="cuda"), 1))

    def call(i):
        x = torch.full((1000,), float(i), device="cuda")
        for k in range(20):
            if not double(x, k).eq(i * k).all():
                wrong.append((i, k))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and worker("lz_cuda").connection is not None


def test_isolated_torch_serves_the_engine():
    x, w = torch.randn(8, 256, device="cuda"), torch.ones(256, device="cuda")
    want = torch.nn.functional.rms_norm(x, (256,), w, 1e-6)
    with isolated({"torch": "subprocess"}):
        lz.configure(isolation={"timeout_s": 60})
        for _ in range(600):
            try:
                got = lz.rms_norm(x, w, kernel="torch.rms_norm")
                break
            except lz.KernelRefusedError:
                time.sleep(0.1)
        torch.testing.assert_close(got, want)
        assert lz.doctor().libraries["torch"].worker.pid
