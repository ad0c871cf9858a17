"""Kernels of libraries that are compiled at their first call of a kind: `jit` in a row of capabilities.json.

The engine selects such a kernel for no kind of calls that it was not compiled for, and says which kernel a call would have got
(`wanted`). The queue's thread then makes such a call itself, in which the library compiles, and tells the engine. So an
import, a probe, a look-up of an adapter and a compilation happen there and on no other thread.

What a library writes into its folder while it compiles is the artifact: `jit.json` next to its descriptor names the
variable of the folder. The folder is changed by one process at a time; what no artifact has put there is removed first.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from layerzero import _layerzero
from layerzero.errors import KernelRefusedError, OutOfMemoryError
from layerzero.host import forks
from layerzero.host.files import replaced
from layerzero.host.policy import jit_settings
from layerzero.jit import examples, flight, store, work
from layerzero.jit.examples import Call

LONGEST_WAIT = 3600.0  # seconds that a compilation waits for other processes and for memory
BACKENDS = pathlib.Path(__file__).parents[1] / "backends"
_LEDGER = ".layerzero.json"  # in a library's folder: SHA-256 of each file that an artifact has put there
_guard = forks.lock()
_known: dict[tuple[str, str, tuple[int, ...]], "LibraryWork"] = {}
_own_variables: set[str] = set()  # that this process has set


class CompilationFailedError(RuntimeError):
    """The same compilation failed before, in this process or another one."""


@dataclass(eq=False)
class LibraryWork:
    """One kernel and one kind of calls (layerzero.jit.work.Work)."""

    operation: str  # "norm.rms"
    kernel_id: str
    kind: tuple[int, ...]
    call: Call
    state: str = "waiting"
    detail: str = ""
    seconds: float = 0.0

    def compile(self) -> None:
        try:
            compile_kernel(self.kernel_id, self.operation, self.kind, self.call)
        except (flight.GaveUpError, MemoryError):
            with _guard:
                _known.pop((self.operation, self.kernel_id, self.kind), None)  # another call may ask for it again
            raise
        except Exception:
            _layerzero.set_jit(self.operation, self.kernel_id, self.kind, False)  # calls of other kinds are asked about
            raise
        _layerzero.set_jit(self.operation, self.kernel_id, self.kind, True)


def wanted(operation: str, kernel_id: str, kind: tuple[int, ...], call: str) -> None:
    """The engine's hook, on the thread of a call that another kernel serves: queues what it lacks, once. Never waits."""
    if jit_settings().enable_background_compile and not work.on_compiler_thread():
        queued(operation, kernel_id, kind, json.loads(call))


def queued(operation: str, kernel_id: str, kind: tuple[int, ...], call: Call) -> LibraryWork:
    """Returns the work of a kernel and a kind of calls, which is queued if it is not known."""
    with _guard:
        known = _known.get((operation, kernel_id, kind))
        if known is not None and known.state != "dropped":
            return known
        _known[operation, kernel_id, kind] = added = LibraryWork(operation, kernel_id, kind, call)
    work.add([added])
    return added


def works() -> list[LibraryWork]:
    """Returns everything that calls of this process have asked for, with its state."""
    with _guard:
        return list(_known.values())


def forget() -> None:
    """Has calls ask again for what failed or was dropped: after a repair, and in tests."""
    with _guard:
        for key in [key for key, one in _known.items() if one.state in ("failed", "dropped")]:
            del _known[key]


def compile_kernel(kernel_id: str, operation: str, kind: tuple[int, ...], call: Call) -> None:
    """Makes the call with the kernel, alone among the processes of the user that want the same. The first one compiles;
    the others find its artifact. A failure is remembered for all of them."""
    row = _row(kernel_id, operation)
    facts = facts_of(row, operation, kind, call["device"])
    key, settings = store.key_of(facts), jit_settings()
    refuse_failed(key)
    until = time.monotonic() + LONGEST_WAIT
    with flight.of_key(key, until), flight.slot(settings.max_concurrent_jit, until):
        refuse_failed(key)
        flight.wait_for_memory((settings.memory_mb + settings.headroom_mb) << 20, until)
        with _folder_of(row["backend"], key, facts, until), remembering_failures(key, facts):
            _run(kernel_id, call)
    store.cap(settings.cache_max_mb << 20)


def refuse_failed(key: str) -> None:
    if (why := store.failure_of(key)) is not None:
        raise CompilationFailedError(f"it failed before: {why}; `layerzero cache clear --compiled` has it tried again")


@contextlib.contextmanager
def remembering_failures(key: str, facts: dict[str, Any]) -> Iterator[None]:
    """A compilation: if it fails for another reason than memory, no process tries it again until a fact changes. What an
    adapter refuses says nothing about the compiler: the example had no values for it, and another process's may have."""
    try:
        yield
    except (MemoryError, KernelRefusedError):
        raise
    except Exception as error:
        if not isinstance(error, OutOfMemoryError):
            store.remember_failure(key, facts, work.text_of(error))
        raise


def _run(kernel_id: str, call: Call) -> None:
    import torch

    from layerzero.settings import policy
    from layerzero.torch.captures import away_from_captures

    device = call["device"]
    with policy(allow_jit_compile=True, fallback_enabled=False), away_from_captures(device), torch.no_grad():
        _layerzero.ops[call["operation"]](**examples.arguments(call), kernel=kernel_id)
        if device.startswith("cuda"):
            torch.cuda.current_stream().synchronize()


def key_of(kernel_id: str, operation: str, kind: tuple[int, ...], call: Call) -> str:
    """Returns the key of a kernel's compiled code for a kind of calls."""
    return store.key_of(facts_of(_row(kernel_id, operation), operation, kind, call["device"]))


def _row(kernel_id: str, operation: str) -> dict[str, Any]:
    rows = json.loads(_layerzero.kernels(_layerzero.find(operation)))
    return next(row for row in rows if row["kernel_id"] == kernel_id and row["operation"] == operation)


def facts_of(row: dict[str, Any], operation: str, kind: tuple[int, ...], device: str) -> dict[str, Any]:
    """Returns all that the compiled code depends on: the kernel and the kind of calls, the library, torch, the device and
    its driver, and the variables that choose compilers and flags."""
    from layerzero.backends.availability import version_of

    torch = sys.modules.get("torch")
    return {
        "kernel": row["kernel_id"],
        "operation": operation,
        "kind": list(kind),
        "adapter": row["adapter"],
        "row": [row["version"], row["constraints"]],
        "library": [row["backend"], row["library_version"]],
        "compilers": {name: version_of([{"distribution": name}]) for name in COMPILERS},
        "torch": [torch.__version__, str(torch.version.cuda)] if torch is not None else None,
        "layerzero": list(_layerzero.build_id()),
        "device": device_facts(device),
        "flags": flags(),
    }


def flags() -> dict[str, str]:
    """Returns the compilers' paths, and the variables of the environment that they read."""
    found = {name: os.environ[name] for name in FLAGS if name in os.environ}
    return found | {name: shutil.which(os.environ.get(variable, name)) or "" for name, variable in PROGRAMS.items()}


COMPILERS = ("triton", "nvidia-cutlass-dsl", "flashinfer-cubin", "flashinfer-jit-cache", "nvidia-cuda-nvcc-cu12")
PROGRAMS = {"gcc": "CC", "g++": "CXX", "nvcc": "CUDACXX"}
FLAGS = (
    "CUDA_HOME",
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "TORCH_CUDA_ARCH_LIST",
    "FLASHINFER_CUDA_ARCH_LIST",
    "FLASHINFER_EXTRA_CUDAFLAGS",
    "DG_JIT_NVCC_COMPILER",
    "DG_JIT_USE_NVRTC",
    "TRITON_PTXAS_PATH",
    "CUTE_DSL_ARCH",
)


@functools.cache
def device_facts(name: str) -> dict[str, Any]:
    """Returns what code for a device depends on; two cards of a kind are the same."""
    platform, _, index = name.partition(":")
    devices = [d for d in json.loads(_layerzero.devices())["devices"] if d["platform"] == platform]
    found = devices[min(int(index or 0), len(devices) - 1)] if devices else {"model": "", "facts": {}}
    return {"model": found["model"], "facts": found["facts"]}


# ---- the folder that a library keeps its compiled code in


@functools.cache
def _declared(backend: str) -> dict[str, Any]:
    path = BACKENDS / backend / "jit.json"
    return json.loads(path.read_text()) if path.is_file() else {}


@contextlib.contextmanager
def _own_folder(backend: str) -> Iterator[pathlib.Path | None]:
    """Yields the folder of a library in the cache; None if the user has named one, or the library has begun with another.

    A library that reads its variable at its import keeps it; for others it is set in the block alone, since the variable may
    be about more than this library's kernels."""
    declared = _declared(backend)
    variable, module = declared.get("variable", ""), declared.get("read_at_import")
    if not declared or (variable not in _own_variables and (variable in os.environ or module in sys.modules)):
        yield None
        return
    try:
        folder = store.folder("files", backend)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        yield None
        return
    os.environ[variable] = str(folder)
    os.environ.update({name: value for name, value in declared.get("also", {}).items() if name not in os.environ})
    if module is not None:
        _own_variables.add(variable)
    try:
        yield folder
    finally:
        if module is None:
            del os.environ[variable]


@contextlib.contextmanager
def _folder_of(backend: str, key: str, facts: dict[str, Any], until: float) -> Iterator[None]:
    """Holds the library's folder for one compilation: restores the key's artifact into it, or makes it from what is new."""
    with _own_folder(backend) as folder, flight.alone(f"files-{backend}", until):
        if folder is None:
            yield
            return
        sealed = _swept(folder)
        artifact = store.read(key)
        if artifact is not None:
            _restore(folder, artifact.files, sealed)
            work.found_on_disk()
        yield
        if artifact is None:
            new = {name: data for name, data in _files(folder) if sealed.get(name) != _digest(data)}
            store.write(key, store.Artifact(facts, new))
            sealed |= {name: _digest(data) for name, data in new.items()}
        _seal(folder, sealed)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _files(folder: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != _LEDGER:
            yield str(path.relative_to(folder)), path.read_bytes()


def _swept(folder: pathlib.Path) -> dict[str, str]:
    """Removes what a killed process left, and what has changed on the disk. Returns the digests of what is left."""
    try:
        sealed = json.loads((folder / _LEDGER).read_text())
    except (OSError, ValueError):
        sealed = {}
    kept = {}
    for name, data in list(_files(folder)):
        if sealed.get(name) == _digest(data):
            kept[name] = sealed[name]
        else:
            with contextlib.suppress(OSError):
                (folder / name).unlink()
    return kept


def _restore(folder: pathlib.Path, files: dict[str, bytes], sealed: dict[str, str]) -> None:
    for name, data in files.items():
        path = folder / name
        if sealed.get(name) == _digest(data) or folder not in path.resolve().parents:
            continue
        with replaced(path, 0o700, folders=True) as file:
            file.write(data)
        sealed[name] = _digest(data)


def _seal(folder: pathlib.Path, sealed: dict[str, str]) -> None:
    with contextlib.suppress(OSError), replaced(folder / _LEDGER, 0o600, durable=True) as file:
        file.write(json.dumps(sealed).encode())
