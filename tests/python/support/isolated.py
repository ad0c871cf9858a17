"""A planted library in a worker: its source, and the policy that isolates it."""

import contextlib
import importlib
import socket
import sys
import time

import layerzero as lz
import torch
from layerzero import _layerzero
from layerzero.isolation import arena, client

X, W = torch.randn(4, 32), torch.ones(32)
SOURCE = """
import os, signal, time, warnings
import torch

def rms_norm(input, weight, eps, weight_offset=None):
    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)
"""


def wanted(x=X, w=W):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)


@contextlib.contextmanager
def isolated(modes, **keys):
    """backend_isolation and keys of `isolation` for a block. Its workers end with it."""
    before = {name.partition(".")[2]: entry["value"] for name, entry in lz.policy_in_force()["keys"].items() if name.startswith("isolation.")}  # fmt: skip
    try:
        lz.configure(backend_isolation=modes, isolation={"start_timeout_s": 120, **keys})
        yield
    finally:
        lz.configure(backend_isolation="in_process", backend_containers={}, isolation=before)


def planted_module(tmp_path_factory, name, source):
    """Generator of a fixture: a module that can be imported, and whose worker ends with the fixture."""
    folder = tmp_path_factory.mktemp(name)
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(folder))
    if name in client._workers:
        client._workers.pop(name).close()


def prove_once(name, *functions):
    """Starts the worker of a planted module, unless it runs: a change of the policy ends it."""
    if name not in client._workers:
        assert client.prove(name, "subprocess", tuple(f"{name}:{function}" for function in functions), "") == ""


def worker(name):
    return client._workers[name]


def pid_of(name):
    return lz.doctor().libraries[name].worker.pid


def direct(name, mode="subprocess", adapter="rms_norm", kernel=None):
    """The function that the engine calls, without the engine."""
    return client.proxy(name, mode, f"{name}:{adapter}", kernel or f"{name}.norm")


def when_it_runs(call):
    """The outcome of a call; one that is refused because the worker is starting is made again."""
    end = time.monotonic() + 90
    while True:
        try:
            return call()
        except lz.KernelRefusedError as error:
            if "started again" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.05)


def sides(size=2**20):
    """A parent's and a worker's channel over one file, and what keeps their sockets open."""
    ours, theirs = socket.socketpair()
    file = arena.make_file(size)
    parent = _layerzero.worker_open(file, size, ours.fileno(), ours.fileno(), 0.0, False)
    worker = _layerzero.worker_open(file, size, theirs.fileno(), theirs.fileno(), 0.0, True)
    return parent, worker, file, (ours, theirs)
