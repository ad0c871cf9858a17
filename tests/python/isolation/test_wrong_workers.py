"""Workers that answer wrongly, containers without an engine, and libraries whose import ends the process."""
# proves: backend_containers, isolation.try_imports

import contextlib
import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import planted_library  # noqa: E402
import worker_messages as messages  # noqa: E402
from isolated import SOURCE, W, X, direct, isolated, pid_of, wanted, worker  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.isolation import arena, client, process, protocol, trial  # noqa: E402
from planted_library import BINDINGS, OWN  # noqa: E402

library = planted_library.library


def reasons(name):
    report = lz.explain("rms_norm", X, W)
    return next(c.reasons for c in report.candidates if c.kernel_id == f"{name}.norm")


# What a worker may say instead of a result.
LIES = {
    "kind": b"\xff",
    "need": messages.need(2**60),
    "half": messages.result(messages.place())[:-3],
    "longer": messages.result(messages.place()) + b"\x00",
    "outside": messages.result(messages.place(offset=2**40)),
    "inputs": messages.result(messages.place()),
    "between": messages.result(messages.place(offset=messages.DATA + 4)),
    "long strides": messages.result(messages.place(shape=(2, 2), strides=(2**60, 2**62))),
    "text": messages.result(messages.text("a")),
    "two": messages.result(messages.place(), messages.place()),
    "json": bytes([protocol.Kind.ERROR]) + b"[[[[",
    "fields": bytes([protocol.Kind.ERROR]) + b"{}",
    "pickle": bytes([protocol.Kind.ERROR]) + b"cos\nsystem\n(S'true'\ntR.",
    "ready": protocol.json_message(protocol.Kind.READY, {}),
}


def serve_lies(channel, socket, file):
    """A worker in a thread of this process, which answers as the last argument of a call says."""
    memory = mmap.mmap(file, 2**22)
    version, build = _layerzero.build_id()
    ready = {"protocol": protocol.VERSION, "version": version, "build": build, "torch": "", "pid": 0}
    _layerzero.worker_send(channel, protocol.json_message(protocol.Kind.READY, ready))
    while True:
        message = _layerzero.worker_receive(channel, -1.0)
        if message[0] == protocol.Kind.LOAD:
            _layerzero.worker_send(channel, protocol.json_message(protocol.Kind.LOADED, {"error": ""}))
            continue
        lie, shape, offset = messages.text_of(message)
        if lie == "noise":
            os.write(socket.fileno(), b"noise" * 100)
            x = torch.frombuffer(memory, dtype=torch.float32, count=128, offset=offset)
            torch.frombuffer(memory, dtype=torch.float32, count=128, offset=messages.room_of(message)).copy_(x * 2)
            _layerzero.worker_send(channel, messages.result(messages.place(shape, messages.room_of(message))))
        elif lie == "silence":
            return
        else:
            _layerzero.worker_send(channel, LIES[lie])


@pytest.fixture
def liar(monkeypatch):
    """The function of a kernel whose worker is a liar, and its Worker."""
    threads = []

    def start(name, mode, settings):
        ours, theirs = socket.socketpair()
        file = arena.make_file(2**22)
        channels = [
            _layerzero.worker_open(file, 2**22, side.fileno(), side.fileno(), 0.0, side is theirs)
            for side in (ours, theirs)
        ]

        def run():
            with theirs, contextlib.suppress(EOFError, OSError):
                serve_lies(channels[1], theirs, file)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return process.Started(subprocess.Popen(["sleep", "100"]), ours, channels[0], None, None)

    monkeypatch.setattr(process, "start", start)
    with isolated({}, timeout_s=20):
        assert client.prove("lz_liar", "subprocess", ("lz_liar:lie",), "") == ""
        yield direct("lz_liar", adapter="lie"), worker("lz_liar")
    client._workers.pop("lz_liar").close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_answer_is_a_typed_error(liar, lie):
    call, one = liar
    torch.testing.assert_close(call(X, "noise"), X * 2)  # the control: noise in the socket is no answer
    running = one.connection.started.process
    with pytest.raises(lz.WorkerError) as error:
        call(X, lie)
    assert "protocol" in error.value.wanted and running.poll() is not None and one.connection is None


def test_a_worker_that_closes_its_socket_has_ended(liar):
    call, one = liar
    with pytest.raises(lz.WorkerError, match="its end: it was running"):
        call(X, "silence")
    assert one.connection is None


def test_an_import_that_crashes_a_worker_is_a_reason(library):
    name = library("import os\nos.abort()")
    with isolated({name: "subprocess"}):
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        (reason,) = reasons(name)
        assert reason.code == "BACKEND_IMPORT_FAILED" and "signal 6 (SIGABRT)" in reason.got


def test_errors_of_imports_and_probes_are_reasons(library):
    broken, failing = library("1 / 0"), library(SOURCE + "def check(): raise ArithmeticError('3 wrong')", "check")
    with isolated({broken: "subprocess", failing: "subprocess"}):
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        assert "ZeroDivisionError" in reasons(broken)[0].got and "3 wrong" in reasons(failing)[0].got
        assert broken not in sys.modules
    slow = library("import time\ntime.sleep(1000)")
    with isolated({slow: "subprocess"}, start_timeout_s=6):
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        assert "6 s" in reasons(slow)[0].got


CRASHES = {"abort": ("os.abort()", "SIGABRT"), "segfault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV")}


@pytest.mark.parametrize("case", CRASHES)
def test_in_any_mode_an_import_that_crashes_costs_a_reason(library, case):
    line, signal = CRASHES[case]
    name = library(f"import os\n{line}\n")
    with isolated("in_process", try_imports=True):
        for call in BINDINGS.values():
            call()
        (reason,) = reasons(name)
        assert reason.code == "BACKEND_IMPORT_FAILED" and signal in reason.got
        assert lz.which("rms_norm", X, W)["kernel_id"] == OWN


def test_an_import_is_tried_once_for_each_version(library, tmp_path, monkeypatch):
    name = library("import os\nopen(os.environ['LZ_COUNT'], 'a').write('x')\n" + SOURCE)
    monkeypatch.setenv("LZ_COUNT", str(tmp_path / "count"))
    cache = lz.policy_in_force()["keys"]["cache_dir"]["value"]
    lz.configure(cache_dir=str(tmp_path / "cache"))
    try:
        adapters = (f"{name}:rms_norm",)
        for _ in range(2):
            assert trial.error_of(name, (name,), adapters) == ""
        assert (tmp_path / "count").read_text() == "x"
        module = tmp_path / f"{name}.py"
        module.write_text(module.read_text() + "\n")
        assert trial.error_of(name, (name,), adapters) == "" and (tmp_path / "count").read_text() == "xx"
        for damaged in (b"", b"{", b"[]", b'{"passed": 3}', b"\xff" * 100, b'{"passed": {"a": "b"}}'):
            (tmp_path / "cache" / trial.FILE).write_bytes(damaged)
            assert trial._File().read() == {}
        assert os.stat(tmp_path / "cache" / trial.FILE).st_mode & 0o777 in (0o600, 0o644)
    finally:
        lz.configure(cache_dir=cache)


# ---- containers

PODMAN = """#!{python} -S
import os, subprocess, sys
arguments = sys.argv[1:]
open({log!r}, "a").write(repr(arguments) + "\\n")
if arguments[0] == "kill":
    sys.exit()
at = arguments.index("image:1")
assert arguments[0] == "run" and "--rm" in arguments and "-i" in arguments
for option in arguments[:at]:
    if option.startswith("--env="):
        os.environ.update([option[6:].split("=", 1)])
os.environ["PYTHONPATH"] = {path!r}
os.execv({python!r}, [{python!r}, *arguments[at + 2 :]])
"""


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """An executable of this name that runs the worker as it is; returns the file of its calls."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    (folder / "podman").write_text(PODMAN.format(python=sys.executable, log=str(log), path=path))
    (folder / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return log


def test_a_container_serves_the_same_calls(library, podman):
    name = library(SOURCE.replace("return", "os.kill(os.getpid(), 9) if input[0, 0] == 77 else 0\n    return"))
    containers = {name: {"image": "image:1", "arguments": ["--memory=1g"], "ipc": "host", "gpu_passthrough": True}}
    with isolated({}):
        lz.configure(backend_isolation={name: "container"}, backend_containers=containers)
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        assert pid_of(name) and lz.doctor().libraries[name].worker.mode == "container"
        folder = os.path.dirname(worker(name).connection.started.path)
        assert not os.path.exists(folder)  # both sides have the arena mapped
        bad = X.clone()
        bad[0, 0] = 77
        with pytest.raises(lz.WorkerError, match="SIGKILL"):
            direct(name, "container")(bad, W, 1e-6)
    run = next(line for line in podman.read_text().splitlines() if line.startswith("['run'"))
    for option in ("--memory=1g", "--ipc=host", "--device=nvidia.com/gpu=all", "image:1"):
        assert repr(option) in run


def test_a_docker_without_its_service_is_passed_over(library, podman):
    name = library(SOURCE)
    docker = Path(os.environ["PATH"]) / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")
    docker.chmod(0o755)
    assert process._engine(name).endswith("podman")
    docker.write_text("#!/bin/sh\nexit 0\n")
    assert process._engine(name).endswith("docker")


CONTAINERS_CONF = """
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=10000:10000"]
netns = "none"
"""


@pytest.fixture
def image(tmp_path, monkeypatch):
    """An image of empty folders for podman, over which the test puts this system's."""
    engine = shutil.which("podman")
    if engine is None:
        pytest.skip("podman is not installed")
    (tmp_path / "containers.conf").write_text(CONTAINERS_CONF if shutil.which("runc") else "")
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    (tmp_path / "image" / "tmp").mkdir(parents=True)
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.add(tmp_path / "image", ".")
    name, text = "layerzero-test:1", {"capture_output": True, "text": True, "timeout": 60}
    folders = [f"--volume={d}:{d}:ro" for d in ("/usr", "/lib", "/lib64", "/bin") if os.path.exists(d)]
    made = subprocess.run([engine, "import", str(tmp_path / "image.tar"), name], **text)
    ran = subprocess.run([engine, "run", "--rm", *folders, name, "/bin/true"], **text)
    if made.returncode or ran.returncode:
        pytest.skip(f"podman cannot run a container here: {(made.stderr if made.returncode else ran.stderr)[-300:]}")
    yield name, folders
    subprocess.run([engine, "rmi", "--force", name], **text)


@pytest.mark.full
def test_a_real_container_serves_the_same_calls(library, image, tmp_path):
    name = library(SOURCE.replace("return", "os._exit(9) if input[0, 0] == 77 else 0\n    return"))
    roots = {os.path.realpath(p) for p in (*sys.path, sys.prefix, sys.base_prefix, *_sources()) if os.path.isdir(p)}
    folders = [f"--volume={d}:{d}:ro" for d in sorted({*roots, *filter(os.path.isdir, sys.path), sys.prefix})]
    python = [f"--env=PYTHONPATH={os.pathsep.join(sys.path)}", f"--env=PATH={os.path.dirname(sys.executable)}:/usr/bin"]
    container = {"image": image[0], "arguments": [*image[1], *folders, *python, "--env=HOME=/tmp"]}
    with isolated({}, start_timeout_s=300, arena_mb=16):
        lz.configure(backend_isolation={name: "container"}, backend_containers={name: container})
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        state = lz.doctor().libraries[name].worker
        assert state.mode == "container" and state.pid and state.last_end is None
        bad = X.clone()
        bad[0, 0] = 77
        with pytest.raises(lz.WorkerError, match="exit code 9"):
            direct(name, "container")(bad, W, 1e-6)


def _sources():
    """Folders that the package's links lead to."""
    package = Path(lz.__file__).parent
    return {str(p.resolve().parent) for p in package.iterdir()}


def test_without_docker_and_podman_the_error_says_what_to_do(library, monkeypatch, tmp_path):
    name = library(SOURCE)
    monkeypatch.setenv("PATH", str(tmp_path))
    with isolated({}):
        lz.configure(backend_isolation={name: "container"}, backend_containers={"default": {"image": "image:1"}})
        torch.testing.assert_close(lz.rms_norm(X, W), wanted())
        (reason,) = reasons(name)
        assert (
            reason.code == "BACKEND_IMPORT_FAILED"
            and "docker or podman" in reason.got
            and "install podman" in reason.got
        )


def test_exit_codes_of_containers_are_signals():
    assert process.how_ended(137, True) == "signal 9 (SIGKILL)" and process.how_ended(137) == "exit code 137"
    assert process.how_ended(-11) == "signal 11 (SIGSEGV)" and process.how_ended(3, True) == "exit code 3"


# ---- a process from its start


def test_a_policy_file_isolates_from_the_first_call(tmp_path):
    """A worker exports no metrics and isolates nothing itself, whatever the file says."""
    (tmp_path / "lz_first.py").write_text(SOURCE)
    (tmp_path / "layerzero.yaml").write_text("backend_isolation: {lz_first: subprocess, torch: subprocess}\n")
    script = f"""
    import sys
    sys.path[:0] = {[str(tmp_path), *[p for p in sys.path if p.endswith("support")]]!r}
    import layerzero as lz, torch
    from layerzero import backends
    from planted_library import descriptor
    backends.register(descriptor("lz_first"))
    x, w = torch.randn(4, 32), torch.ones(32)
    torch.testing.assert_close(lz.rms_norm(x, w), torch.nn.functional.rms_norm(x, (32,), w, 1e-6))
    assert "lz_first" not in sys.modules and lz.which("rms_norm", x, w)["kernel_id"] == "lz_first.norm"
    import json
    print(json.dumps(lz.doctor().libraries["lz_first"].worker.to_dict()))
    with lz.policy(locks={{"norm.rms": "torch.rms_norm"}}):
        torch.testing.assert_close(lz.rms_norm(x, w), torch.nn.functional.rms_norm(x, (32,), w, 1e-6))
    print(json.dumps(lz.doctor().libraries["torch"].worker.to_dict()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        state = json.loads(line)
        assert state["mode"] == "subprocess" and state["pid"] and state["starts"] == 1 and state["last_end"] is None
        end = time.monotonic() + 10
        while os.path.exists(f"/proc/{state['pid']}") and time.monotonic() < end:
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{state['pid']}")


def test_no_module_of_the_package_unpickles():
    folder = os.path.dirname(protocol.__file__)
    for file in filter(lambda f: f.endswith(".py"), os.listdir(folder)):
        with open(os.path.join(folder, file)) as text:
            assert "import pickle" not in text.read()


def test_a_proof_and_a_restart_at_once_start_one_worker(liar):
    call, one = liar
    with pytest.raises(lz.WorkerError):
        call(X, "kind")
    one.next_start = 0.0
    started = []
    real = process.start
    process.start = lambda *given: started.append(real(*given)) or started[-1]  # the fixture puts it back
    gate = threading.Event()
    one._on_starter(gate.wait)
    proof = threading.Thread(target=one.prove, args=(("lz_liar:lie",), ""))
    proof.start()  # queued first
    time.sleep(0.1)
    with pytest.raises(lz.KernelRefusedError):
        call(X, "noise")
    gate.set()
    proof.join()
    done = threading.Event()
    one._on_starter(done.set)
    assert done.wait(20) and len(started) == 1
    torch.testing.assert_close(call(X, "noise"), X * 2)
