"""`lz.compile_references`: notes the calls that a compiled reference would serve, then has them compiled."""

import dataclasses
import functools
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

from layerzero import _layerzero, backends
from layerzero.backends import proof
from layerzero.backends.inductor import rows
from layerzero.contracts import Contract, contracts, host_parameter_names, is_seeded
from layerzero.errors import InvalidRequestError
from layerzero.host import blocks
from layerzero.torch.references import knows_strict_mode

ALIKE = 3  # classes that differ in sizes alone, from which on these are free


class CompiledCall(NamedTuple):
    """A class of calls that was recorded. state: "waiting", "compiling", "ready", "failed", "skipped" or "dropped"
    (too many others were waiting)."""

    operation: str  # "posenc.rope"
    kernel_id: str  # of the kernel that serves it when it is ready
    device: str  # "cpu", "cuda:1"
    inputs: str  # "float32[4,8] float32[8]"
    state: str
    detail: str  # why it failed, was skipped or dropped
    seconds: float  # that it took to compile


class TensorFacts(NamedTuple):
    """What a compiled kernel is made for."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Eager:
    """The kernel that serves a call as long as nothing is compiled for it."""

    kernel_id: str
    function: Callable[..., Any]
    deterministic: bool = True
    numerics: str = ""
    strict: bool = True  # takes calls of strict mode, and computes the same in them


@dataclass
class Call:
    """A recorded class of calls, and what has become of it."""

    name: str  # of the contract
    operation: str
    device: str
    layout: str | None
    tensors: dict[str, TensorFacts]  # in the contract's order, those that are given
    scalars: dict[str, Any]
    eager: Eager
    free: dict[str, frozenset[int]] = field(default_factory=dict)  # axes of tensors that may have any size from 2 on
    state: str = "waiting"
    detail: str = ""
    seconds: float = 0.0

    @property
    def platform(self) -> str:
        return self.device.partition(":")[0]

    @functools.cached_property
    def kernel_id(self) -> str:
        """The same on every device of a platform: a kernel has code for each device that was recorded."""
        what = repr((self.platform, self.layout, self.tensors, self.scalars, self.text))
        return f"{rows.SOURCE}.{self.operation}.{hashlib.sha256(what.encode()).hexdigest()[:8]}"

    @property
    def text(self) -> str:
        found = []
        for name, tensor in self.tensors.items():
            free = self.free.get(name, ())
            sizes = ("any" if axis in free else str(size) for axis, size in enumerate(tensor.shape))
            found.append(f"{tensor.dtype}[{','.join(sizes)}]")
        return " ".join(found)

    def compile(self) -> None:
        """See layerzero.jit.work.Work."""
        from layerzero.backends.inductor import worker

        worker.make_ready(self)

    def report(self) -> CompiledCall:
        state = (self.state, self.detail, self.seconds)
        return CompiledCall(self.operation, self.kernel_id, self.device, self.text, *state)


class compile_references:
    """Compiles the torch expressions of the calls that are made while the `with` block is open.

    with lz.compile_references() as compiled: model(x)
    compiled.wait()

    Where no kernel of LayerZero or of a library takes a call, it is served by several torch functions or by the
    operation's reference. In the block such calls are noted; at its end torch's Inductor compiles each class of them
    (its dtypes, shapes, strides and scalars) in a thread of its own, while calls go on as before. A class that is
    ready has a kernel `inductor.<operation>.<hash>` from then on; other calls refuse it with the reason JIT_DISABLED.
    Three classes or more that differ in the sizes of some axes alone become one in which these have any size from 2
    on. No call ever compiles. On CPUs Inductor needs a C++ compiler. Calls that write into their arguments, that need
    gradients, or whose numbers come from a seed are not compiled. On a GPU call `wait()` before a CUDA graph is
    captured: what Inductor does on the device would end the capture with an error. What was compiled is kept in the
    cache folder, so that a later process is ready sooner.

    limit: the most classes that one block notes; further ones are left out. An exception that leaves the block
    compiles nothing.
    """

    def __init__(self, *, limit: int = 256) -> None:
        if limit < 1:
            raise InvalidRequestError("limit", "at least 1", str(limit))
        self._limit, self._calls, self._adapters = limit, dict[tuple[str, str], Call](), list[str]()
        self._guard = threading.Lock()

    def __enter__(self) -> "compile_references":
        if self._adapters:
            raise blocks.entered_twice("compile_references")
        backends.ensure_registered()
        for contract in contracts().values():
            if not rows.can_compile(contract):
                continue
            for operation in contract["operations"]:
                adapter = f"layerzero.compile_references:{id(self)}/{operation['id']}"
                function = functools.partial(self._answer, contract, operation["id"])
                backends.add_function(adapter, function, rows.recorder(operation["id"], contract, adapter))
                self._adapters.append(adapter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._adapters:
            raise blocks.not_entered("compile_references")
        while self._adapters:
            backends.remove_function(self._adapters.pop())
        if error is None:
            from layerzero.jit import work

            self._calls = {_key(call): call for call in merged(list(self._calls.values()))}
            work.add(list(self._calls.values()))

    def calls(self) -> tuple[CompiledCall, ...]:
        """Returns the recorded classes of calls and their states."""
        return tuple(call.report() for call in self._calls.values())

    def wait(self, timeout: float | None = None) -> tuple[CompiledCall, ...]:
        """Waits until every class is ready, failed or skipped, at most `timeout` seconds; returns calls()."""
        from layerzero.jit import work

        until = None if timeout is None else time.monotonic() + timeout
        for call in self._calls.values():
            work.wait(call, until)
        return self.calls()

    def _answer(self, contract: Contract, operation: str, *values: Any) -> Any:
        """The recorder's kernel: notes the class of a call and answers as it would have been answered."""
        names = host_parameter_names(contract["name"])
        layout = values[len(names)] if contract["layouts"] else None
        given = dict(zip(names, values, strict=False))
        eager = _eager(contract, operation, given, layout)
        call = described(contract, operation, given, layout, eager)
        with self._guard:
            known = self._calls.get(_key(call))
            if known is None and len(self._calls) < self._limit:
                self._calls[_key(call)] = call
        return eager.function(*values)


def _key(call: Call) -> tuple[str, str]:
    return call.kernel_id, call.device


def described(contract: Contract, operation: str, given: dict[str, Any], layout: str | None, eager: Eager) -> Call:
    """Returns the class of a call, with the reason for which it is not compiled, if there is one."""
    import torch

    tensors, scalars = dict[str, TensorFacts](), dict[str, Any]()
    device = "cpu"
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            tensors[name] = TensorFacts(dtype, tuple(value.shape), tuple(value.stride()))
            device = str(value.device)
        else:
            scalars[name] = value
    call = Call(contract["name"], operation, device, layout, tensors, scalars, eager)
    if is_seeded(contract) and "uniform" not in tensors:
        call.state, call.detail = "skipped", "its numbers come from a seed, which differs in each call"
    elif any(0 in t.shape for t in tensors.values()):
        call.state, call.detail = "skipped", "a tensor is empty"
    elif eager.kernel_id in _functions():
        call.state, call.detail = "skipped", f"{eager.kernel_id} is one function of torch"
    return call


def merged(calls: list[Call]) -> list[Call]:
    """Replaces calls that differ in the sizes of some axes alone by one call in which these are free, from ALIKE on:
    compiling for every length of a sequence would never end."""
    groups: dict[str, list[Call]] = {}
    for call in calls:
        tensors = [(name, t.dtype, len(t.shape), _is_dense(t)) for name, t in call.tensors.items()]
        what = (call.name, call.operation, call.device, call.layout, tensors, call.scalars, call.eager.kernel_id)
        groups.setdefault(repr((*what, call.state)), []).append(call)
    found = []
    for alike in groups.values():
        whole = _with_free_axes(alike) if len(alike) >= ALIKE and alike[0].state == "waiting" else None
        found += alike if whole is None else [whole]
    return found


def _with_free_axes(alike: list[Call]) -> Call | None:
    """Returns the call that represents all of `alike`; None if they differ in more than sizes, or in a size of 1."""
    largest = max(alike, key=lambda call: sum(math.prod(t.shape) for t in call.tensors.values()))
    free = dict[str, frozenset[int]]()
    for name, tensor in largest.tensors.items():
        shapes = [call.tensors[name].shape for call in alike]
        varying = frozenset(axis for axis in range(len(tensor.shape)) if len({shape[axis] for shape in shapes}) > 1)
        if not _is_dense(tensor) or any(shape[axis] < 2 for shape in shapes for axis in varying):
            return None
        if varying:
            free[name] = varying
    return dataclasses.replace(largest, free=free) if free else None


def _is_dense(tensor: TensorFacts) -> bool:
    """True if the tensor is contiguous."""
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


@functools.cache
def _functions() -> frozenset[str]:
    """Kernels of torch that are one function each: compiling gains nothing."""
    ops = backends.descriptor_of("torch")["ops"].values()
    return frozenset(row["kernel_id"] for own in ops for row in own if row.get("extends") == "function")


def _eager(contract: Contract, operation: str, given: dict[str, Any], layout: str | None) -> Eager:
    """Returns the kernel that would have been chosen without a recorder and without compiled references."""
    named = {name: value for name, value in given.items() if value is not None}
    options = {"layout": layout} if layout is not None else {}
    report = json.loads(_layerzero.explain(_layerzero.ops[contract["name"]], (), named | options))
    candidates = [c for c in report["candidates"] if c["admissible"] and c["source"] != rows.SOURCE]
    known = {k["kernel_id"]: k for k in json.loads(_layerzero.kernels(contract["name"]))}
    candidates.sort(key=lambda c: (not c["reference"], c["score"]), reverse=True)
    for candidate in candidates:
        row = known[candidate["kernel_id"]]
        if not row["native"] and row["adapter"]:
            return _as_eager(row)
    raise AssertionError(f"{operation} has no torch reference")


def reference_of(name: str, operation: str) -> Eager:
    """Returns the torch reference of an operation."""
    rows_of_it = json.loads(_layerzero.kernels(name))
    return _as_eager(next(k for k in rows_of_it if k["kernel_id"] == f"torch.ref.{operation}"))


def _as_eager(row: dict[str, Any]) -> Eager:
    strict = not row["reference"] or not knows_strict_mode(row["name"])
    strict &= all(rule["field"] != "policy.strict_mode" for rule in row["constraints"])
    return Eager(row["kernel_id"], proof.load(row["adapter"]), row["deterministic"], row["numerics"], strict)
