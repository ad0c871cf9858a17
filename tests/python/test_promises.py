"""What users take for granted: silence, a clean end, kept results, messages instead of tracebacks, versions."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(lz.__file__).parent


def python(code, path=PACKAGE.parent, **variables):
    env = os.environ | {"PYTHONPATH": str(path), "TRANSFORMERS_VERBOSITY": "error"} | variables
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


CALLS = """
import torch, layerzero as lz
x, w = torch.ones(4, 8), torch.ones(8)
for _ in range(3):
    lz.rms_norm(x, w), lz.attention(*[torch.ones(1, 2, 4, 8)] * 3, layout="BHSD"), lz.softmax(x)
lz.explain("rms_norm", x, w), lz.doctor(), lz.prepare("rms_norm", x, w)(x, w)
"""


def test_silent_unless_asked():
    done = python(CALLS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    asked = "import logging; logging.basicConfig(level=logging.INFO)\n"
    assert "norm.rms: hwy.norm.rms" in python(asked + CALLS, LAYERZERO_VERBOSE="1").stderr


# Daemon threads that are in the middle of `call` when the process ends, into memory of their own: torch's tensors abort a
# process whose daemon threads free them at its end.
RACE = """
import threading, time, torch, layerzero as lz
x, w, started = torch.ones(512, 512), torch.ones(512), threading.Barrier(5)
def work():
    out = torch.empty(512, 512)
    started.wait()
    while True:
        {call}
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
started.wait()
time.sleep({delay})
"""
RACING = {
    "call": "lz.rms_norm(x, w, out=out)",
    "preparation": "lz.prepare('rms_norm', x, w)",
    "question": "lz.explain('rms_norm', x, w)",
}


@pytest.mark.parametrize("first", RACING)
def test_a_clean_end_with_threads_running(first):
    for delay in (0, 0.03, 0.1):
        done = python(RACE.format(call=RACING[first], delay=delay))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), delay


# A kernel in Python that does not come back: where the interpreter ends it, its thread is inside of every function of the
# engine and of the C++ bindings that a call goes through.
ENDLESS = """
import threading, torch, layerzero as lz
started = threading.Event()
@lz.register_kernel("norm.rms", "tests.endless", supported_dtypes=["float32"], priority=99, supports_grad=True)
def endless(input, weight, eps):
    if threading.current_thread() is threading.main_thread():
        return input * weight
    started.set()
    while True:
        pass
x, w = torch.ones(4, 8), torch.ones(8)
assert lz.which("rms_norm", x, w).kernel_id == "tests.endless"
threading.Thread(target=lambda: {call}, daemon=True).start()
started.wait()
"""
THROUGH = {
    "function": "lz.rms_norm(x, w)",
    "out": "lz.rms_norm(x, w, out=torch.empty(4, 8))",
    "prepared": "lz.prepare('rms_norm', x, w)(x, w)",
    "operator": "torch.ops.layerzero.rms_norm(x, w)",
    "gradient": "lz.rms_norm(x.clone().requires_grad_(), w)",
}


@pytest.mark.parametrize("way", THROUGH)
def test_a_clean_end_inside_of_a_python_kernel(way):
    done = python(ENDLESS.format(call=THROUGH[way]))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_end_waits_for_nobody_for_ever():
    """What runs at the end may wait for a thread that makes its first call then; a forked child waits for no thread."""
    joined = """
import atexit, threading
def join():
    stop.set()
    thread.join()
    print("joined")
atexit.register(join)  # before layerzero's own: it runs later
import torch, layerzero as lz
stop, x, w = threading.Event(), torch.ones(4, 8), torch.ones(8)
def work():
    stop.wait()
    lz.rms_norm(x, w)
thread = threading.Thread(target=work, daemon=True)
thread.start()
"""
    done = python(joined)
    assert (done.returncode, done.stdout, done.stderr) == (0, "joined\n", "")
    forked = """
import os, threading, time, torch, layerzero as lz
from layerzero import _layerzero, backends
inside, x, w = threading.Event(), torch.ones(4, 8), torch.ones(8)
def prove(*_):
    inside.set()
    time.sleep(3600)
hooks = [None] * 11
hooks[8] = prove
_layerzero.set_hooks(*hooks)
threading.Thread(target=lambda: lz.rms_norm(x, w, kernel="torch.ref.norm.rms"), daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    os._exit(int(_layerzero.end()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), _layerzero.end())
os._exit(0)
"""
    done = python(forked)
    assert done.stdout == "0 True\n", done.stderr


def test_disabled_always_works():
    code = "import torch, layerzero as lz; print(lz.which('rms_norm', torch.ones(2, 8), torch.ones(8))['kernel_id'])"
    assert python(code, LAYERZERO_DISABLED="1").stdout.strip() == "torch.ref.norm.rms"


def interrupt_after(calls, function):
    def counted(*arguments, **options):
        counted.left -= 1
        if counted.left < 0:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    counted.left = calls
    return counted


def test_an_interrupted_benchmark_keeps_its_results(monkeypatch, capsys):
    pytest.importorskip("transformers")
    from layerzero import cli
    from layerzero.bench import family_bench, host

    monkeypatch.setattr(family_bench, "examine", interrupt_after(1, family_bench.examine))
    assert cli.run(["bench", "models", "--families", "gpt2,opt", "--rounds", "1", "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert list(report["families"]) == ["gpt2"] and report["interrupted"] and not report["ok"]
    assert cli.run(["bench", "models", "--families", "gpt2", "--json"]) == 130  # nothing was measured
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "interrupted"

    monkeypatch.setattr(host, "_measure", interrupt_after(2, host._measure))
    assert cli.run(["bench", "host", "--operation", "rms_norm", "--rounds", "1", "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert len(report["results"]) == 2 and report["interrupted"]


@pytest.mark.parametrize("content", [b"", b"MZ of another system", None], ids=["torn", "foreign", "absent"])
def test_another_platform_gets_a_message(tmp_path, content):
    """A package whose library is not of this machine says what it is for."""
    (tmp_path / "layerzero").mkdir()
    for entry in PACKAGE.iterdir():
        if not entry.name.startswith(("_layerzero.", "__pycache__")):
            (tmp_path / "layerzero" / entry.name).symlink_to(entry.resolve())
    if content is not None:
        (tmp_path / "layerzero/_layerzero.abi3.so").write_bytes(content)
    done = python("import layerzero", tmp_path)
    assert done.returncode == 1 and "wheels are for Linux on x86-64" in done.stderr and "make build" in done.stderr
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = subprocess.run([sys.executable, "-m", "layerzero", "doctor"], env=env, capture_output=True, text=True)
    assert command.returncode == 1 and "wheels are for Linux on x86-64" in command.stderr


def test_versions():
    assert re.fullmatch(r"\d+\.\d+\.\d+", lz.__version__)
    assert lz.version_info.build.startswith(lz.__version__ + "+")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"\n## {lz.__version__}" in changelog and "semantic versioning" in changelog
    assert (ROOT / "SECURITY.md").read_text().strip()
