"""Imports a library in another process before this one does, so that an import that crashes is a reason. A library that
passed is not tried again until a version or a file of it changes: imports.json in the policy's cache_dir says so.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from layerzero.errors import LayerZeroError
from layerzero.host import policy
from layerzero.host.files import replaced
from layerzero.host.optional import version_of
from layerzero.isolation import process

FILE = "imports.json"
MOST = 256  # libraries that the file keeps
_LONGEST = 400  # characters of what a library wrote before its end


def error_of(library: str, modules: tuple[str, ...], adapters: tuple[str, ...]) -> str:
    """Returns how an import of the adapters ends a process, or "" if it does not. An exception is none: this process gets it
    from its own import."""
    key = _key(library, modules, adapters)
    passed = _File()
    if key in passed.read():
        return ""
    seconds = policy.isolation().start_timeout_s
    try:
        command = process.command("trial", "main", parent=os.getpid(), adapters=list(adapters))
    except LayerZeroError:
        return ""  # no interpreter to try it with
    environment = os.environ | {policy.WORKER: "1"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds,
            env=environment,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{library}: importing it did not end within {seconds:g} s in a process of its own"
    except OSError:
        return ""  # no process can be started: the import itself says more
    if done.returncode < 0:
        how, said = process.how_ended(done.returncode), _first_line(done.stderr)
        return f"{library}: importing it ends the process: {how}{f' ({said})' if said else ''}"
    passed.add(key)
    return ""


def _first_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    fatal = [line for line in lines if line.startswith("Fatal Python error")]
    return (fatal or lines[-1:] or [""])[0][:_LONGEST]


def main(parent: int, adapters: list[str]) -> None:
    """In the other process: imports the adapters, and ends without exit handlers."""
    import faulthandler
    import resource

    from layerzero.backends import proof
    from layerzero.isolation.worker import end_with

    end_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    proof.error_of("", tuple(adapters))
    os._exit(0)


def _key(library: str, modules: tuple[str, ...], adapters: tuple[str, ...]) -> str:
    """Returns a digest of what decides how the import ends."""
    facts: list[Any] = [library, adapters, sys.version, sys.prefix, version_of("torch")]
    for name in dict.fromkeys((*modules, *(adapter.partition(":")[0] for adapter in adapters))):
        top = name.partition(".")[0]
        facts += [top, version_of(top)]
        with contextlib.suppress(ImportError, ValueError, OSError):
            spec = importlib.util.find_spec(top)
            if spec is not None and spec.origin and os.path.exists(spec.origin):
                stat = os.stat(spec.origin)
                facts += [spec.origin, stat.st_mtime_ns, stat.st_size]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class _File:
    """The keys of the libraries that passed, with the time. A file that is missing or damaged is empty."""

    def __init__(self) -> None:
        keys = policy.policy_in_force()["keys"]
        folder = os.path.expanduser(keys["cache_dir"]["value"])
        self._path = Path(folder) / FILE if keys["health.persist"]["value"] else None

    def read(self) -> dict[str, float]:
        if self._path is None:
            return {}
        try:
            passed = json.loads(self._path.read_bytes()[: 2**20])["passed"]
            return {key: float(when) for key, when in passed.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def add(self, key: str) -> None:
        if self._path is None:
            return
        now = time.time()
        # Times in the future were written before the clock was set back; they count as now.
        others = {other: min(when, now) for other, when in self.read().items() if other != key}
        newest = {key: now} | dict(sorted(others.items(), key=lambda item: -item[1])[: MOST - 1])
        # A disk that is full costs another trial.
        with contextlib.suppress(OSError), replaced(self._path, 0o600, folders=True) as out:
            out.write(json.dumps({"version": 1, "passed": newest}).encode())
