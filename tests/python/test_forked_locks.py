"""Locks of modules over a fork: a child finds them free although another thread of its parent held them."""

import ast
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import layerzero as lz
import pytest

PACKAGE = Path(lz.__file__).parent
# Those that a child makes again, and that of captures of CUDA graphs, which a forked child cannot make.
OTHERS = {
    "backends/proof.py": "_turn",
    "backends/torch/flex_compiled.py": "_guard",
    "isolation/client.py": "_guard",
    "torch/captures.py": "ONE_AT_A_TIME",
}

# fork(body) -> the child's exit status; a child that waits for a lock is ended by SIGALRM.
FORK = """
import os, signal, threading, time
def fork(body):
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(int(body()))
    return os.waitpid(child, 0)[1]
def holding(lock, seconds):
    held = threading.Event()
    def hold():
        with lock:
            held.set()
            time.sleep(seconds)
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    return thread
"""


def run(body):
    online = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # huggingface_hub reads both
    environment = {name: value for name, value in os.environ.items() if name not in online}
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    source = FORK + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(importlib.util.find_spec("huggingface_hub") is None, reason="needs huggingface_hub")
def test_a_child_reads_offline_and_goes_online_again():
    run(
        """
        from huggingface_hub import constants
        from layerzero.host import offline
        def reads():
            before = constants.HF_HUB_OFFLINE
            with offline.offline():
                return before or not constants.HF_HUB_OFFLINE
        thread = holding(offline.offline(), 0.5)
        assert constants.HF_HUB_OFFLINE
        assert fork(reads) == 0
        thread.join()
        assert not constants.HF_HUB_OFFLINE
        """
    )


def test_a_child_finds_the_locks_of_modules_free():
    run(
        """
        import layerzero.host.offline, layerzero.jit.library, layerzero.jit.state, layerzero.tokenizers
        import layerzero as lz
        from layerzero import backends, settings
        from layerzero.torch import attach
        locks = [
            backends._guard, settings._guard, attach._guard, lz.tokenizers._lock, lz.jit.state._guard,
            lz.jit.library._guard, lz.host.offline._one_at_a_time,
        ]
        for lock in locks:
            thread = holding(lock, 0.1)
            assert fork(lambda: not lock.acquire(timeout=5)) == 0
            thread.join()
        with locks[0]:  # the thread that forks may hold one
            assert fork(lambda: not locks[0].acquire(timeout=5)) == 0
        assert fork(lambda: not locks[0].acquire(timeout=5)) == 0
        """
    )


def test_forks_wait_for_threads_that_take_locks_in_any_order():
    run(
        """
        from layerzero.host import forks
        first, second = forks.lock(), forks.lock()
        ended, taken = threading.Event(), []
        def take(one, other):
            while not ended.is_set():
                with one:
                    time.sleep(0.001)
                    if other.acquire(timeout=5):
                        other.release()
                        taken.append(one)
                    else:
                        os._exit(3)
                time.sleep(0.001)
        def work():
            for _ in range(40):
                if fork(lambda: not (first.acquire(timeout=5) and second.acquire(timeout=5))):
                    os._exit(4)
        for order in (first, second), (second, first):
            ended.clear()
            threads = [threading.Thread(target=take, args=order), *(threading.Thread(target=work) for _ in range(2))]
            for thread in threads:
                thread.start()
            for thread in threads[1:]:
                thread.join()
            ended.set()
            threads[0].join()
        assert taken.count(first) > 5 < taken.count(second), taken
        """
    )


def test_no_module_has_another_kind_of_lock():
    found = {}
    for path in files(PACKAGE):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.value) in ("threading.Lock()", "threading.RLock()"):
                found[str(path.relative_to(PACKAGE))] = ast.unparse(node.targets[0])
    assert found == OTHERS, "of layerzero.host.forks, or made again in a child"


def files(folder):
    """Those in linked folders too."""
    for base, _, names in os.walk(folder, followlinks=True):
        yield from (Path(base) / name for name in names if name.endswith(".py"))
