"""This process's side of the process that measures: starts it, sends it calls, and says how it ended."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from layerzero.errors import NotInstalledError, WorkerError
from layerzero.host import policy
from layerzero.isolation.process import how_ended

_BOOT = "import json,sys; a=json.loads(sys.argv[1]); sys.path[:]=a['path']; from layerzero.tuning import worker; worker.main(**a)"
START_S = 300.0  # to import torch and the libraries


class Ended(Exception):
    """The worker has ended, or was killed because it took too long. `kernel`: what ran; "" if nothing that is at fault."""

    def __init__(self, how: str, kernel: str) -> None:
        super().__init__(how)
        self.how, self.kernel = how, kernel


class Worker:
    """One process that measures. `timeout_s`: that a kernel's first call, or a call's measurement, may take."""

    def __init__(self, settings: dict[str, Any], timeout_s: float, nice: int = 0) -> None:
        if not sys.executable:
            raise NotInstalledError("tune", "a Python interpreter to start", "a program without sys.executable")
        path = [p for p in sys.path if isinstance(p, str)]
        command = [sys.executable, "-c", _BOOT, json.dumps({"parent": os.getpid(), "path": path})]
        if nice:
            command = ["nice", "-n", str(nice), *command]
        self._timeout_s, self._kernel, self._buffer = timeout_s, "", b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {policy.WORKER: "1"},
            start_new_session=True,
        )
        self._said = b""
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self._send(settings)
        self._next(START_S, "ready")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stderr:
                self._said = line.strip() or self._said

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(message) + "\n").encode())
            self._process.stdin.flush()
        except OSError:
            raise self._ended("") from None

    def _ended(self, how: str) -> Ended:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if how else 5)
        how = how or how_ended(self._process.returncode)
        self.end()
        self._reader.join(1)
        said = self._said.decode(errors="replace")[:200]
        return Ended(how + (f" ({said})" if said and self._process.returncode not in (-9, -15) else ""), self._kernel)

    def _next(self, seconds: float, *wanted: str) -> dict[str, Any]:
        """Returns the next event of one of these kinds. Each event is new time."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                line, newline, rest = self._buffer.partition(b"\n")
                if newline:
                    self._buffer = rest
                    message = json.loads(line)
                    if message["event"] == "kernel":
                        self._kernel, deadline = message["kernel"], time.monotonic() + seconds
                        continue
                    if message["event"] in wanted:
                        return message
                    raise WorkerError("tune", f"one of {', '.join(wanted)}", message["event"])
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._ended(f"no answer within {seconds:g} s")
                if not (got := os.read(self._process.stdout.fileno(), 1 << 20)):
                    raise self._ended("")
                self._buffer += got

    def tune(self, name: str, line: str) -> dict[str, Any]:
        """Measures one call: {"event": "result", "results": [...]} or {"event": "failed", "why": ...}. Raises Ended."""
        self._kernel = ""
        self._send({"name": name, "line": line})
        return self._next(self._timeout_s, "result", "failed")

    def deny(self, denied: dict[str, str]) -> None:
        """Kernels that are not run any more: "operation kernel" -> why."""
        self._send({"denied": denied})

    def end(self) -> None:
        """Ends the process at once."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def workers(settings: dict[str, Any], timeout_s: float, nice: int = 0) -> Iterator[Callable[[], Worker]]:
    """Yields a function that returns a running worker: a new one after one has ended. The last ends with the block."""
    running: list[Worker] = []

    def current() -> Worker:
        if not running or running[0]._process.poll() is not None:
            running[:] = [Worker(settings, timeout_s, nice)]
        return running[0]

    try:
        yield current
    finally:
        for worker in running:
            worker.end()
