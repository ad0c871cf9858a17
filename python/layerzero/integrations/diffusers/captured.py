"""Forwards of a model on a CUDA device as CUDA graphs, where that takes less time than the calls.

A pipeline calls its transformer or UNet at each step with tensors of the same shapes, and where the model is small the device waits
for the host. The second call of a kind (shapes, dtypes, values of all other arguments, torch's switches) is captured. The graph is
kept if its results are those of the calls and a replay is faster, copies of inputs and results included. It is dropped when the
policy, a weight's memory or an attribute of a module changes.
"""

import copy
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from diffusers.utils import BaseOutput
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from layerzero import _layerzero
from layerzero.host import policy
from layerzero.host.watching import watchers
from layerzero.integrations import modules
from layerzero.integrations.diffusers import backend
from layerzero.integrations.diffusers.replacing import PREFIX
from layerzero.torch import captures

STATE = f"{PREFIX}captured"
_MOST_KINDS = 256  # that are remembered of one model
_MOST_GRAPHS = 8  # of one model; the one used least recently is dropped, and its kind is not captured again
_MOST_CHANGES = 3  # of a model within _STEADY replays, after which it is not captured any more
_STEADY = 100
_LATER = 16  # times as many calls of a kind until a capture that failed is tried again
_HOST_BOUND = 0.5  # of a forward's time that the host needs to launch it: less, and the device is what takes the time
_FASTER = 0.97  # of the time of the calls that a replay may take
_PLAIN = (type(None), bool, int, str, torch.dtype)
_LIBRARIES = ("torch", "diffusers", "layerzero")
_DEEPEST = 3  # containers within containers of a module's attributes


class _NotPlain(Exception):
    """A call has an argument or a result whose value a graph would keep without notice."""


class _Kind:
    """Calls with the same shapes and other arguments, and their graph if there is one."""

    def __init__(self) -> None:
        self.calls = 0
        self.next_try = 2  # the number of the call that is captured
        self.release()

    def release(self) -> None:
        self.inputs: list[torch.Tensor] = []
        self.replay: Callable[[], None] | None = None
        self.result: Any = None


class CapturedForward:
    """The graphs of one model. counts: the report's entry, {"calls": replays so far, "kinds": graphs, "left": shapes -> why none}."""

    def __init__(self, counts: dict[str, Any]) -> None:
        counts |= {"calls": 0, "kinds": 0, "left": {}}  # of a copy too, which has no graphs
        self.counts = counts
        self.kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self.watch: _Watch | None = None
        self.changes = self.replays = 0
        self.pool: Any = None
        self.stream: Any = None  # of the last replay
        self.lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CapturedForward":
        return type(self)(copy.deepcopy(self.counts, memo))

    def __reduce__(self) -> Any:
        return type(self), (self.counts,)

    def __call__(self, model: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        tensors: list[torch.Tensor] = []
        try:
            form = _form((args, given), tensors)
        except _NotPlain:
            form = None
        if form is None or not _may_replay(tensors) or not self.lock.acquire(blocking=False):
            return type(model).forward(model, *args, **given)
        try:
            with torch.cuda.device(tensors[0].device):
                replayed, result = self._run(model, (form, *_switches()), form, tensors)
        finally:
            self.lock.release()
        return result if replayed else type(model).forward(model, *args, **given)

    def close(self) -> None:
        """Drops all graphs and what they hold."""
        self.kinds.clear()
        self.watch = self.pool = None
        self.counts |= {"kinds": 0, "left": {}}

    def _run(self, model: Any, key: Any, form: Any, tensors: list[torch.Tensor]) -> tuple[bool, Any]:
        """Returns (True, the result), or False where the model has to be called."""
        if self.watch is not None and not self.watch.holds():
            self._changed()
        kind = self.kinds.setdefault(key, _Kind())
        self.kinds.move_to_end(key)
        if len(self.kinds) > _MOST_KINDS:
            self.kinds.popitem(last=False)
        kind.calls += 1
        if kind.replay is None and kind.calls >= kind.next_try and self.changes < _MOST_CHANGES:
            return self._capture(model, kind, form, tensors)
        if kind.replay is None:
            return False, None
        self.counts["calls"] += 1
        self.replays += 1
        if self.replays % _STEADY == 0:
            self.changes = 0
        return True, self._replayed(kind, tensors)

    def _changed(self) -> None:
        self.close()
        self.changes += 1
        if self.changes == _MOST_CHANGES:
            self.counts["left"]["all"] = "the model or the policy changes between its calls"

    def _replayed(self, kind: _Kind, tensors: list[torch.Tensor]) -> Any:
        stream = torch.cuda.current_stream()
        if self.stream is not None and self.stream != stream:
            stream.wait_stream(self.stream)  # which may still read and write the memory of the graph
            for tensor in kind.inputs:
                tensor.record_stream(stream)
        self.stream = stream
        torch._foreach_copy_(kind.inputs, tensors)
        assert kind.replay is not None
        kind.replay()
        return _copied(kind.result)

    def _capture(self, model: Any, kind: _Kind, form: Any, tensors: list[torch.Tensor]) -> tuple[bool, Any]:
        """Sets the replay of a kind, or reports why it has none. Returns as `_run`."""
        result = None
        try:
            with captures.ONE_AT_A_TIME:  # until the timing has ended, which waits for the device
                # Inference tensors could not be written outside of inference mode.
                with torch.inference_mode(False), torch.no_grad():
                    kind.inputs = [tensor.clone() for tensor in tensors]
                result, reason = self._tried(model, kind, form)
                if reason is not None:
                    raise _NotPlain(reason)
                self._record(model, kind, form, tensors, result)
            self.counts["left"].pop(_text(tensors), None)  # of a try before
            self._keep_few()
        except Exception as error:  # of a module that waits for the device, of memory
            reason = str(error) if type(error) is _NotPlain else f"{type(error).__name__}: {str(error)[:200]}"
            self._leave(kind, tensors, reason)
            kind.next_try = _LATER * kind.calls
        return result is not None, result

    def _leave(self, kind: _Kind, tensors: list[torch.Tensor], reason: str) -> None:
        if len(self.counts["left"]) < _MOST_KINDS:
            self.counts["left"][_text(tensors)] = reason
        kind.release()

    def _tried(self, model: Any, kind: _Kind, form: Any) -> tuple[Any, str | None]:
        """Runs the calls once and returns the result, and None or why they are not worth a capture."""
        if reason := _why_not(model):
            raise _NotPlain(reason)
        versions = [tensor._version for tensor in kind.inputs]
        args, given = _filled(form, iter(kind.inputs))
        host, whole, found = _timed(lambda: type(model).forward(model, *args, **given))
        result = _copied(found)
        try:
            kept = _form((args, given), []) == form and versions == [tensor._version for tensor in kind.inputs]
        except _NotPlain:
            kept = False
        if not kept:
            return None, "it writes into its arguments"  # the caller's own, when it is called with them
        return result, "the device takes the time, not the host" if host < _HOST_BOUND * whole else None

    def _record(self, model: Any, kind: _Kind, form: Any, tensors: list[torch.Tensor], expected: Any) -> None:
        def run() -> None:
            kind.result = _forward(model, form, kind.inputs)

        self.pool = self.pool or torch.cuda.graph_pool_handle()
        try:
            kind.replay = captures.replay_of(run, run, self.pool)
        except Exception:
            self.pool = None  # torch takes no other capture into the pool of one that failed
            raise
        if self.watch is None:
            self.watch = _Watch(model)
        if not _same(self._replayed(kind, tensors), expected):
            raise _NotPlain("a replay has other results than the calls")
        calls = _seconds(lambda: _forward(model, form, tensors))
        replays = _seconds(lambda: self._replayed(kind, tensors))
        if replays > _FASTER * calls:
            raise _NotPlain(f"a replay takes {replays * 1e3:.2f} ms, the calls take {calls * 1e3:.2f}")

    def _keep_few(self) -> None:
        captured = [kind for kind in self.kinds.values() if kind.replay is not None]
        for kind in captured[:-_MOST_GRAPHS]:
            self._leave(kind, kind.inputs, f"{_MOST_GRAPHS} other kinds of calls were used more recently")
            kind.next_try = 1 << 62
        self.counts["kinds"] = min(len(captured), _MOST_GRAPHS)


class Forward(modules.Method):
    """Takes the place of a model's forward. It does not keep the model alive, as a bound method in its own dictionary would."""

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)

    def __call__(self, *args: Any, **given: Any) -> Any:
        model = self._of()
        state = model.__dict__.get(STATE)  # None: undone, while something else still calls this
        if state is None or torch.is_grad_enabled() or torch.compiler.is_compiling() or model.training:
            return type(model).forward(model, *args, **given)
        return state(model, args, given)

    @property
    def __wrapped__(self) -> Any:  # for inspect.signature
        model = self._of()
        return type(model).forward.__get__(model)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Forward":
        return type(self)(copy.deepcopy(self._of(), memo))

    def __reduce__(self) -> Any:
        return type(self), (self._of(),)

    def _of(self) -> Any:
        model = self._model()
        if model is None:
            raise ReferenceError("the model of this forward is gone")
        return model


def install(model: nn.Module, counts: dict[str, Any]) -> None:
    """Makes calls of the model go through its graphs, where there are any. `remove` undoes it."""
    model.__dict__[STATE] = CapturedForward(counts)
    model.__dict__["forward"] = Forward(model)
    modules.watch_copies(model)


def remove(model: nn.Module) -> None:
    if type(model.__dict__.get("forward")) is Forward:
        del model.__dict__["forward"]
    state = model.__dict__.pop(STATE, None)
    if state is not None:
        state.close()


def _may_replay(tensors: list[torch.Tensor]) -> bool:
    if not tensors or not all(type(tensor) is torch.Tensor and tensor.is_cuda for tensor in tensors):
        return False
    if watchers or policy.samples_runs() or _has_any_global_hook() or torch.is_autocast_enabled("cuda"):
        return False
    return bool(_layerzero.programs_may_run()) and not torch.cuda.is_current_stream_capturing()


def _switches() -> tuple[Any, ...]:
    """What torch and diffusers decide by besides the arguments."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    sdpa = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()
    exact = torch.are_deterministic_algorithms_enabled(), cudnn.enabled, cudnn.deterministic, cudnn.benchmark
    precision = tuple(getattr(of, "fp32_precision", None) for of in (cuda.matmul, getattr(cudnn, "conv", None)))
    return backend._registry._active_backend, *sdpa, *exact, *precision


# ---- arguments and results


def _form(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns what is the same in each call of a kind, hashable; tensors are added to `tensors`, in the order in which
    `_filled` takes them."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return torch.Tensor, value.shape, value.stride(), value.dtype, value.device
    if type(value) in _PLAIN:
        return type(value), value
    if type(value) is float:
        return float, value.hex()  # 0.0 is not -0.0, and NaN is itself
    if type(value) in (tuple, list):
        return type(value), tuple(_form(one, tensors) for one in value)
    if type(value) is dict:
        return dict, tuple((name, _form(one, tensors)) for name, one in value.items())
    raise _NotPlain


def _filled(form: Any, tensors: Any) -> Any:
    kind, *rest = form
    if kind is torch.Tensor:
        return next(tensors)
    if kind is float:
        return float.fromhex(rest[0])
    if kind in (tuple, list):
        return kind(_filled(one, tensors) for one in rest[0])
    if kind is dict:
        return {name: _filled(one, tensors) for name, one in rest[0]}
    return rest[0]


def _forward(model: Any, form: Any, tensors: list[torch.Tensor]) -> Any:
    args, given = _filled(form, iter(tensors))
    return type(model).forward(model, *args, **given)


def _copied(result: Any) -> Any:
    """Returns the result with tensors of its own: a graph's are written again by its next replay."""
    if isinstance(result, torch.Tensor):
        return result.clone()
    if isinstance(result, BaseOutput):
        return type(result)(**{name: _copied(value) for name, value in result.items()})
    if type(result) in (tuple, list):
        return type(result)(map(_copied, result))
    if type(result) in (*_PLAIN, float):
        return result
    raise _NotPlain(f"its result has a {type(result).__name__}")


def _same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return modules.agrees(actual, expected) if expected.is_floating_point() else torch.equal(actual, expected)
    if isinstance(expected, BaseOutput):
        return _same(tuple(actual.values()), tuple(expected.values()))
    if isinstance(expected, tuple | list):
        return all(_same(a, b) for a, b in zip(actual, expected, strict=True))
    return bool(actual == expected)


def _text(tensors: list[torch.Tensor]) -> str:
    return ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors)


def _timed(run: Callable[[], Any]) -> tuple[float, float, Any]:
    """Returns the seconds until the call returned, until the device had ended, and its result."""
    captures.wait()
    began = time.perf_counter()
    result = run()
    host = time.perf_counter() - began
    captures.wait()
    return host, time.perf_counter() - began, result


def _seconds(run: Callable[[], Any]) -> float:
    """Returns the shortest of three runs."""
    return min(_timed(run)[1] for _ in range(3))


# ---- what a graph depends on


def _why_not(model: nn.Module) -> str | None:
    """None, or a part of the model whose state cannot be watched."""
    for name, module in model.named_modules():
        of, kind = name or "the model", type(module)
        if kind.__module__.partition(".")[0] not in _LIBRARIES:
            return f"{of} is a {kind.__name__}, whose state cannot be watched"
        if any(module.__dict__.get(hooks) for hooks in modules.HOOKS) or hasattr(module, "_diffusers_hook"):
            return f"{of} has hooks"
        if not isinstance(module.__dict__.get("forward"), modules.Bound | Forward | None):
            return f"the forward of {of} was replaced by something else"
        if getattr(module, "parametrizations", None):
            return f"{of} is parametrised"
        if any(hasattr(member, "cache_info") for each in kind.__mro__ for member in vars(each).values()):
            return f"{of} keeps results in a cache of its class"
    return None


class _Watch:
    """The policy, all attributes of all modules and of their processors, what lists and dictionaries among them contain, and
    the address of each weight."""

    def __init__(self, model: nn.Module) -> None:
        self.stamp = _layerzero.plans_stamp()
        self.dicts: list[Any] = []
        self.lists: list[Any] = []  # (list or set, what it contained)
        tensors: list[Any] = []
        for module in model.modules():
            for owner in (module, getattr(module, "processor", None)):
                if owner is not None and hasattr(owner, "__dict__"):
                    self._add(owner.__dict__, 0)
            for members in (module._parameters, module._buffers):
                tensors += [(members, name, tensor) for name, tensor in members.items() if tensor is not None]
        single: list[Any] = []
        self.held = self.dicts, single, tensors  # they have to live as long as the guard
        self.guard = _layerzero.guard(self.dicts, single, tensors)

    def _add(self, container: Any, depth: int) -> None:
        own = isinstance(container, dict)
        contents = tuple(container.values()) if own else tuple(container)
        (self.dicts if own else self.lists).append((container, contents))
        names = container if own else contents
        for name, value in zip(names, contents, strict=True):
            if depth < _DEEPEST and isinstance(value, dict | list | set) and not str(name).startswith(PREFIX):
                self._add(value, depth + 1)

    def holds(self) -> bool:
        if self.stamp != _layerzero.plans_stamp() or not _layerzero.unchanged(self.guard):
            return False
        return all(
            len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True)) for now, then in self.lists
        )
