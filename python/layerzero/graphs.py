"""Proofs that kernels are safe in CUDA graphs, by capture and replay on this device.

lz.graphs.verify("rms_norm", x, weight)                 # every kernel of this call
lz.graphs.verify(lambda: model(ids))                    # of every call that a function makes
with lz.policy(graph_strict_mode=True): ...             # a capture uses kernels with a proof alone

A proof holds for a class of calls (dtype and options) of a kernel's version on a device and driver. It is kept with the
quarantine in the policy's cache_dir, as is a failed one, which keeps the kernel out of captures.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import layerzero as lz
from layerzero import _layerzero
from layerzero.bench.operations import TOLERANCE
from layerzero.contracts import contracts, parameter_names, resolve_call
from layerzero.errors import InvalidRequestError, LayerZeroError, LayerZeroGraphMemoryWarning, WrongTypeError
from layerzero.host.policy import policy_in_force
from layerzero.torch import captures, random
from layerzero.tuning.gate import difference

SAFE, FAILED, WRONG, NOT_TRIED = "graph_safe", "failed_before_write", "wrong", "not_tried"
_LONGEST = 300  # characters of a reason
_OPEN = {"graph_strict_mode": False, "graph": {"default_graph_safe": True}}  # what a proof has to try


class Proof(NamedTuple):
    """What was found about one kernel for one call.

    verdict: "graph_safe", "failed_before_write" (it cannot be captured), "wrong" (a replay gave another result), or
    "not_tried", which is not kept. why: the reason of any other verdict than the first. extra_bytes: device memory besides
    its results that the kernel took in the capture and its replays.
    """

    operation: str
    kernel_id: str
    verdict: str
    why: str = ""
    extra_bytes: int = 0


def verify(call: Any, *args: Any, **kwargs: Any) -> list[Proof]:
    """Captures and replays every kernel that may take a call, keeps what was found, and returns it.

    call: an operation with the arguments of a call on a CUDA device (`kernel=` restricts it to one kernel), or a function,
    which is called with the arguments once; then all kinds of calls of operations that it made are proven, with their shapes. Each kernel
    runs on a side stream first (graph.warmup_iterations), is captured with memory of its own, and replayed with other
    values; results are compared with those of calls outside of a graph. Warns with LayerZeroGraphMemoryWarning about a
    kernel that takes more memory than graph.memory_delta_warning_mb.
    """
    if isinstance(call, str) or call in _layerzero.ops.values():
        function, params = resolve_call(call, args, kwargs)
        name = function.__name__
        named = dict(zip(parameter_names(name), args, strict=False)) | params
        return _prove_call(name, named)
    if not callable(call):
        raise WrongTypeError("call", "an operation or a function", repr(call))
    with _Calls() as made:
        call(*args, **kwargs)
    return [proof for name, arguments in made.calls.values() for proof in _prove_call(name, arguments)]


def proofs() -> list[dict[str, Any]]:
    """Returns the rows of this machine about captures, as in `lz.health()`: `outcome` "graph_safe", or how a kernel failed."""
    found = lz.health().to_dict()
    about = {"field": "capturing", "relation": "==", "value": 1}
    return [*found["graph_safe"], *(row for row in found["quarantine"] if about in row["when"])]


def _prove_call(name: str, arguments: dict[str, Any]) -> list[Proof]:
    arguments = {key: value for key, value in arguments.items() if value is not None}
    only = arguments.pop("kernel", None)
    for key in ("out", "generator"):
        if key in arguments:
            raise InvalidRequestError(f"{name}: {key}", "none for a proof", "one", "leave it out")
    _check_device(name, arguments)
    arguments = random.with_draw(name, arguments)
    found = []
    with lz.policy(**_OPEN), torch.no_grad():
        report = lz.explain(name, capturing=True, **arguments)
        for candidate in report.candidates:
            if only not in (None, candidate.kernel_id):
                continue
            if candidate.admissible:
                found.append(_prove(report.operation, name, candidate.kernel_id, arguments))
            elif why := _excluded_by_captures(candidate):
                found.append(Proof(report.operation, candidate.kernel_id, NOT_TRIED, why))
    if only is not None and not found:
        lz.explain(name, kernel=only, **arguments)  # an unknown kernel is an error
        found.append(Proof(report.operation, only, NOT_TRIED, "it does not take this call: see lz.explain"))
    return found


def _check_device(name: str, arguments: dict[str, Any]) -> None:
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    kind = tensors[0].device.type if tensors else "no tensor"
    if kind != captures.DEVICE:
        raise InvalidRequestError(f"{name}: device", "tensors of a CUDA device", kind)
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise InvalidRequestError(name, "a proof outside of captures", "one inside", "call verify before")


def _excluded_by_captures(candidate: Any) -> str:
    """Returns the reason of a kernel that nothing but the capture excludes, or ""."""
    codes = {reason.code for reason in candidate.reasons}
    if not codes <= {"CUDA_GRAPH_UNSAFE", "QUARANTINED"}:
        return ""
    if "QUARANTINED" in codes:
        return f"{candidate.reasons[0].message}; `layerzero health reset` lets it be tried again"
    return "it is declared unsafe"


def _prove(operation: str, name: str, kernel: str, arguments: dict[str, Any]) -> Proof:
    memory = _Memory(name, arguments)

    def run() -> Any:
        return _layerzero.ops[name](**memory.arguments, kernel=kernel)

    try:
        wanted = [memory.results_of(run, reverse) for reverse in (False, True)]
    except (LayerZeroError, RuntimeError, TypeError, ValueError) as error:
        return Proof(operation, kernel, NOT_TRIED, _short(error))
    verdict, why, extra = SAFE, "", 0
    keys = policy_in_force()["keys"]
    try:
        memory.write(reverse=False)
        graph = captures.record(run, keys["graph.warmup_iterations"]["value"])
    except Exception as error:  # of the kernel, its library or the driver
        verdict, why = FAILED, _short(error)
    else:
        why, extra = _replayed(graph, memory, wanted)
        verdict = WRONG if why else SAFE
    _layerzero.set_graph_verdict((_layerzero.ops[name], (), arguments), kernel, verdict, why)
    if verdict == SAFE and extra > (limit := keys["graph.memory_delta_warning_mb"]["value"]) * 2**20:
        warnings.warn(
            f"{kernel}: a captured call of {name} takes {extra / 2**20:.1f} MiB besides its results; "
            f"graph.memory_delta_warning_mb is {limit:g}",
            LayerZeroGraphMemoryWarning,
            stacklevel=4,
        )
    return Proof(operation, kernel, verdict, why, extra)


def _replayed(graph: captures.Recorded, memory: "_Memory", wanted: list[list[torch.Tensor]]) -> tuple[str, int]:
    """Returns what was wrong with a replay, or "", and the bytes that capture and replays took."""
    before = captures.free_bytes()
    for number, reverse in enumerate((False, True, True)):
        got = memory.results_of(graph.replay, reverse, graph.result)
        if why := _differs(got, wanted[reverse]):
            changed = " with other values" if reverse else ""
            return f"replay {number + 1}{changed}: {why}", 0
    return "", graph.extra_bytes + max(0, before - captures.free_bytes())


def _differs(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> str:
    if len(got) != len(wanted):
        return f"{len(got)} results, outside of a graph {len(wanted)}"
    for one, right in zip(got, wanted, strict=True):
        allowed = TOLERANCE.get(right.dtype, 3e-2)
        if not (off := difference(one, right)) <= allowed:
            return f"off by {off:.3g} from the call outside of a graph, allowed {allowed:.3g}"
    return ""


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST]


class _Memory:
    """The tensors of a call in memory of their own, which a graph reads. They take two sets of values: those that were given,
    and the same with each row of floats reversed. Integers stay: they may index, and must fit each other."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.arguments = dict(arguments)
        self.bases: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # own memory, and what was given
        for key, value in arguments.items():
            if isinstance(value, torch.Tensor):
                given = _without_broadcast(value)
                own = torch.empty_strided(given.shape, given.stride(), dtype=value.dtype, device=value.device)
                self.bases[key], self.arguments[key] = (own, given), own.expand(value.shape)
        names = [p["name"] for p in contracts()[name]["params"] if p.get("mutated")]
        self.written = [self.bases[name][0] for name in names if name in self.bases]

    def write(self, reverse: bool) -> None:
        for own, given in self.bases.values():
            own.copy_(_reversed(given) if reverse else given)

    def results_of(self, run: Callable[[], Any], reverse: bool, result: Any = None) -> list[torch.Tensor]:
        """Returns copies of outputs and written tensors after a run. result: that of a graph, which is spoiled before."""
        self.write(reverse)
        own = {memory.data_ptr() for memory, _ in self.bases.values()}
        for output in _tensors(result):
            if output.data_ptr() not in own:
                output.fill_(math.nan if output.is_floating_point() and output.itemsize > 1 else 1)
        returned = run()
        captures.wait()
        return [t.clone() for t in (*_tensors(returned if result is None else result), *self.written)]


def _tensors(result: Any) -> list[torch.Tensor]:
    return [t for t in (result if isinstance(result, tuple | list) else (result,)) if isinstance(t, torch.Tensor)]


def _without_broadcast(value: torch.Tensor) -> torch.Tensor:
    for axis in range(value.dim()):
        if value.stride(axis) == 0 and value.shape[axis] > 1:
            value = value.narrow(axis, 0, 1)
    return value


def _reversed(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point() or not value.dim():
        return value.clone()
    axis = -1 if value.shape[-1] > 1 else 0
    if value.itemsize == 1:
        return value.contiguous().view(torch.uint8).flip(axis).view(value.dtype)
    return value.flip(axis)


class _Calls(TorchDispatchMode):
    """Keeps one call of each kind that is made inside: {kind: (operation, arguments)}. Tables are copied, because the program
    may write them; other tensors are not."""

    def __init__(self) -> None:
        super().__init__()
        from layerzero.torch.operators import operators

        self.calls: dict[Any, tuple[str, dict[str, Any]]] = {}
        self._operators = {(one.name, one.overload): one for one in operators()}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "layerzero":
            one = self._operators[function._opname, function._overloadname]
            given = dict(zip(one.names, args, strict=False)) | (kwargs or {}) | one.fixed
            given = {key: value for key, value in given.items() if value is not None}
            for layout in list(contracts()[one.name]["layouts"])[:1]:  # torch leaves out what is the default
                given.setdefault("layout", layout)
            kind = (one.name, *((key, _kind(value)) for key, value in sorted(given.items())))
            if kind not in self.calls:
                self.calls[kind] = one.name, {key: _kept(value) for key, value in given.items()}
        return function(*args, **(kwargs or {}))


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return tuple(value) if isinstance(value, list) else value


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) and not value.is_floating_point() else value
