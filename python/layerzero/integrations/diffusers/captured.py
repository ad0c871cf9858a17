"""Forwards of a model on a CUDA device as CUDA graphs, where that takes less time than the calls.

A pipeline calls its transformer or UNet at each step with tensors of the same shapes, and where the model is small the device waits
for the host. The second call of a kind (shapes, dtypes, other arguments) is captured. The graph stays if its results are those of
the calls and a replay is faster, copies of inputs and results included; otherwise it is dropped, with its memory. A graph goes with
the policy, the weights and the modules' attributes that it was captured with.
"""

import copy
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from diffusers.utils import BaseOutput
from torch import nn

from layerzero import _layerzero
from layerzero.host import policy
from layerzero.host.watching import watchers
from layerzero.integrations import modules
from layerzero.integrations.diffusers import backend
from layerzero.integrations.diffusers.replacing import PREFIX
from layerzero.torch import captures

_STATE = f"{PREFIX}captured"
_MOST_KINDS = 8  # of one model; the one used least recently is dropped
_MOST_CHANGES = 3  # of a model between two calls, after which it is not captured any more
_FASTER = 0.97  # of the time of the calls that a replay may take
_PLAIN = (type(None), bool, int, float, str, torch.dtype)
_LIBRARIES = ("torch", "diffusers", "layerzero")


class _NotPlain(Exception):
    """A call has an argument or a result whose value a graph would keep without notice."""


class _Kind:
    """Calls with the same shapes and other arguments: their graph, or why there is none (`reason`)."""

    def __init__(self) -> None:
        self.calls = 0
        self.reason: str | None = None
        self.inputs: list[torch.Tensor] = []
        self.replay: Callable[[], None] | None = None
        self.result: Any = None


class CapturedForward:
    """The graphs of one model. counts: the report's entry, {"calls": replays so far, "kinds": graphs, "left": kind -> why not}."""

    def __init__(self, counts: dict[str, Any]) -> None:
        self.counts = counts
        self.kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self.watch: Any = None  # what the graphs depend on: the guard, and the lists that it looks at
        self.stamp: Any = None
        self.changes = 0
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
                return self._run(model, form, tensors)
        finally:
            self.lock.release()

    def _run(self, model: Any, form: Any, tensors: list[torch.Tensor]) -> Any:
        if self.watch is not None and not self._holds():
            self._drop()
        key = form, backend._registry._active_backend
        kind = self.kinds.setdefault(key, _Kind())
        self.kinds.move_to_end(key)
        if len(self.kinds) > _MOST_KINDS:
            self.kinds.popitem(last=False)
        kind.calls += 1
        if kind.replay is None and kind.reason is None and kind.calls > 1 and self.changes < _MOST_CHANGES:
            self._capture(model, kind, form, tensors)
        if kind.replay is None:
            return _forward(model, form, tensors)
        self.counts["calls"] += 1
        return self._replayed(kind, tensors)

    def _holds(self) -> bool:
        return bool(self.stamp == _stamp() and _layerzero.unchanged(self.watch[0]))

    def _drop(self) -> None:
        self.kinds.clear()
        self.watch = self.pool = None
        self.changes += 1
        self.counts["kinds"] = 0
        if self.changes == _MOST_CHANGES:
            self.counts["left"]["all"] = "the model or the policy changes between its calls"

    def _replayed(self, kind: _Kind, tensors: list[torch.Tensor]) -> Any:
        stream = torch.cuda.current_stream()
        if self.stream is not None and self.stream != stream:
            stream.wait_stream(self.stream)  # which may still read and write the memory of the graph
        self.stream = stream
        if tensors:
            torch._foreach_copy_(kind.inputs, tensors)
        assert kind.replay is not None
        kind.replay()
        return _copied(kind.result)

    def _capture(self, model: Any, kind: _Kind, form: Any, tensors: list[torch.Tensor]) -> None:
        """Sets the replay of a kind, or the reason why it has none."""
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):  # inference tensors could not be written outside of that mode
            kind.inputs = [tensor.clone() for tensor in tensors]
        versions = [tensor._version for tensor in kind.inputs]

        def run() -> None:
            kind.result = _forward(model, form, kind.inputs)

        try:
            if reason := _why_not(model):
                raise _NotPlain(reason)
            run()
            expected = _copied(kind.result)
            if versions != [tensor._version for tensor in kind.inputs]:
                raise _NotPlain("it writes into its arguments")
            with captures.ONE_AT_A_TIME:
                self.pool = self.pool or torch.cuda.graph_pool_handle()
                kind.replay = captures.replay_of(run, run, self.pool)
            if self.watch is None:
                self.stamp, self.watch = _stamp(), _guard(model)
            if not _same(self._replayed(kind, tensors), expected):
                raise _NotPlain("a replay has other results than the calls")
            calls, replays = (
                _seconds(lambda: _forward(model, form, tensors)),
                _seconds(lambda: self._replayed(kind, tensors)),
            )
            if replays > _FASTER * calls:
                raise _NotPlain(f"a replay takes {replays * 1e3:.2f} ms, the calls take {calls * 1e3:.2f}")
            self.counts["kinds"] += 1
        except Exception as error:  # of a module that waits for the device, of memory
            self.pool = None  # torch takes no other capture into the pool of one that failed
            kind.replay = kind.result = None
            kind.inputs = []
            kind.reason = str(error) if type(error) is _NotPlain else f"{type(error).__name__}: {str(error)[:200]}"
            self.counts["left"][_text(tensors)] = kind.reason


def install(model: nn.Module, counts: dict[str, Any]) -> None:
    """Makes calls of the model go through its graphs, where there are any. `replacing.restore` undoes it."""
    model.__dict__[_STATE] = CapturedForward(counts)
    model.__dict__["forward"] = _BoundForward(_captured_forward, model)


class _BoundForward(modules.Bound):
    @property
    def __wrapped__(self) -> Any:  # for inspect.signature
        return type(self.args[0]).forward.__get__(self.args[0])


def _captured_forward(model: Any, *args: Any, **given: Any) -> Any:
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or model.training:
        return type(model).forward(model, *args, **given)
    return model.__dict__[_STATE](model, args, given)


def _may_replay(tensors: list[torch.Tensor]) -> bool:
    if not tensors or not all(type(tensor) is torch.Tensor and tensor.is_cuda for tensor in tensors):
        return False
    if watchers or policy.samples_runs() or torch.is_autocast_enabled("cuda"):
        return False
    return bool(_layerzero.programs_may_run()) and not torch.cuda.is_current_stream_capturing()


def _stamp() -> Any:
    return _layerzero.plans_stamp(), torch.get_float32_matmul_precision()


# ---- arguments and results


def _form(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns what is the same in each call of a kind, hashable; tensors are added to `tensors`, in the order in which
    `_filled` takes them."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return torch.Tensor, value.shape, value.stride(), value.dtype, value.device
    if type(value) in _PLAIN:
        return type(value), value
    if type(value) in (tuple, list):
        return type(value), tuple(_form(one, tensors) for one in value)
    if type(value) is dict:
        return dict, tuple((name, _form(one, tensors)) for name, one in value.items())
    raise _NotPlain


def _filled(form: Any, tensors: Any) -> Any:
    kind, *rest = form
    if kind is torch.Tensor:
        return next(tensors)
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
    if type(result) in _PLAIN:
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


def _seconds(run: Callable[[], Any]) -> float:
    """Returns the shortest of three runs."""
    times = []
    for _ in range(3):
        captures.wait()
        began = time.perf_counter()
        run()
        captures.wait()
        times.append(time.perf_counter() - began)
    return min(times)


# ---- what a graph depends on


def _why_not(model: nn.Module) -> str | None:
    """None, or a part of the model whose state the guard does not see."""
    for name, module in model.named_modules():
        if type(module).__module__.partition(".")[0] not in _LIBRARIES:
            return f"{name or 'the model'} is a {type(module).__name__}, whose state cannot be watched"
        if any(module.__dict__.get(hooks) for hooks in modules.HOOKS) or hasattr(module, "_diffusers_hook"):
            return f"{name or 'the model'} has hooks"
        if not isinstance(module.__dict__.get("forward"), modules.Bound | None):
            return f"the forward of {name or 'the model'} was replaced by something else"
        if getattr(module, "parametrizations", None):
            return f"{name} is parametrised"
    return None


def _guard(model: nn.Module) -> Any:
    """Watches all attributes of all modules and of their processors, and where each weight is stored."""
    same: list[Any] = []
    tensors: list[Any] = []
    for module in model.modules():
        processor = getattr(module, "processor", None)
        for attributes in (module.__dict__, getattr(processor, "__dict__", None)):
            if attributes is None:
                continue
            inner = [value for name, value in attributes.items() if isinstance(value, dict) and not _is_own(name)]
            same += [(each, tuple(each.values())) for each in (attributes, *inner)]
        for members in (module._parameters, module._buffers):
            tensors += [(members, name, tensor) for name, tensor in members.items() if tensor is not None]
    lists: tuple[list[Any], list[Any], list[Any]] = same, [], tensors
    return _layerzero.guard(*lists), lists  # they have to live as long as the guard


def _is_own(name: str) -> bool:
    return name.startswith(PREFIX)
