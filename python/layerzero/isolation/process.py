"""Starts worker processes, and containers, with sockets and memory that no other process can open; and ends them."""

import contextlib
import itertools
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from layerzero import _layerzero
from layerzero.errors import NotInstalledError
from layerzero.host import policy
from layerzero.host.policy import Isolation
from layerzero.isolation import arena, protocol

ENGINES = ("docker", "podman")
_BOOT = (
    "import json,sys; a=json.loads(sys.argv[1]); sys.path[:]=a.pop('path');"
    " from layerzero.isolation import {module} as m; m.{function}(**a)"
)
_numbers = itertools.count(1)


class Started(NamedTuple):
    """A process that runs a worker, its socket, and this side of the arena."""

    process: "subprocess.Popen[bytes]"
    socket: socket.socket
    channel: Any  # this side of the memory that both have mapped
    container: tuple[str, str] | None  # docker or podman, and the container's name
    path: str | None  # of the arena, until the worker has opened it


def command(module: str, function: str, **arguments: Any) -> list[str]:
    """Returns the command of a Python like this one that imports from the same folders and calls a function of
    layerzero.isolation.<module>."""
    if not sys.executable:
        raise NotInstalledError(
            "backend_isolation",
            "a Python interpreter to start",
            "a program without sys.executable",
            "set sys.executable",
        )
    arguments["path"] = [p for p in sys.path if isinstance(p, str)]
    return [sys.executable, "-c", _BOOT.format(module=module, function=function), json.dumps(arguments)]


def _channel(file: int, size: int, ours: socket.socket) -> Any:
    return _layerzero.worker_open(file, size, ours.fileno(), ours.fileno(), protocol.spin_us(), False)


def start(library: str, mode: str, settings: Isolation) -> Started:
    """Starts a worker. It is not ready yet: it imports torch, then sends READY."""
    size = settings.arena_mb * 2**20
    if mode == "container":
        return _container(library, size, settings)
    ours, theirs = socket.socketpair()
    file = arena.make_file(size)
    arguments = {"parent": os.getpid(), "socket": theirs.fileno(), "arena": file, "size": size}
    try:
        with theirs:
            process = subprocess.Popen(
                command("worker", "from_parent", memory_mb=settings.memory_mb, **arguments),
                env=os.environ | {policy.WORKER: "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), file),
                start_new_session=True,  # a terminal's Ctrl-C is for this process
            )
        return Started(process, ours, _channel(file, size, ours), None, None)
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(file)


def _engine(library: str) -> str:
    """Returns the path of docker or podman; if both are there, of the first that answers: a client may lack its service."""
    found = list(filter(None, map(shutil.which, ENGINES)))
    if not found:
        raise NotInstalledError(
            f"backend_isolation.{library}",
            "docker or podman on the PATH",
            "neither",
            "sudo apt-get install podman, or set backend_isolation to subprocess",
        )
    return next(filter(_answers, found[:-1]), found[-1])


def _answers(engine: str) -> bool:
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run([engine, "info"], stdin=quiet, stdout=quiet, stderr=quiet, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _container(library: str, size: int, settings: Isolation) -> Started:
    engine = _engine(library)
    wanted = settings.container_of(library)
    file, path = arena.make_named_file(size)
    folder, name = os.path.dirname(path), f"layerzero-{os.getpid()}-{next(_numbers)}"
    gpu = ["--device=nvidia.com/gpu=all"] if "podman" in os.path.basename(engine) else ["--gpus=all"]
    options = [*(gpu if wanted["gpu_passthrough"] else []), *([f"--ipc={wanted['ipc']}"] if wanted["ipc"] else [])]
    run = [
        engine,
        "run",
        "--rm",
        "-i",
        f"--env={policy.WORKER}=1",
        f"--name={name}",
        f"--volume={folder}:{folder}",
        *options,
        *wanted["arguments"],
    ]
    worker = ["python3", "-m", "layerzero.isolation.worker", path, str(size), str(settings.memory_mb)]
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(
                [*run, wanted["image"], *worker], stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
            )
        return Started(process, ours, _channel(file, size, ours), (engine, name), path)
    except BaseException:
        ours.close()
        remove(path)
        raise
    finally:
        os.close(file)


def remove(path: str | None) -> None:
    """Removes the arena's file and folder; both sides have it mapped."""
    if path is not None:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def end(started: Started) -> str:
    """Ends a worker at once. Returns how it had ended before, or that it was running: "signal 11 (SIGSEGV)"."""
    process = started.process
    started.socket.close()
    remove(started.path)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)  # it may be ending: its socket closes before its exit status is there
    before = how_ended(process.returncode, started.container is not None)
    if process.returncode is None:
        if started.container is not None:
            engine, name = started.container
            quiet = subprocess.DEVNULL
            subprocess.Popen([engine, "kill", name], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        process.kill()
        process.wait()
    return before


def how_ended(code: int | None, in_container: bool = False) -> str:
    """Returns "signal 9 (SIGKILL)", "exit code 3", or "it was running" for None. A container's engine exits with 128 and the
    signal's number."""
    if code is None:
        return "it was running"
    if in_container and code > 128:
        code = 128 - code
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


class Starter:
    """The thread that starts a library's workers. It lives as long as the process: Linux ends a child with the thread
    that started it."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="layerzero workers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._work.get()()

    def do(self, work: Callable[[], None]) -> None:
        """Does `work`, which raises nothing, on the thread."""
        self._work.put(work)
