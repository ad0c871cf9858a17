"""`lz.warmup`: prepares calls before traffic. What a call needs is imported, tested, compiled and chosen, then it runs once."""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from layerzero import _layerzero
from layerzero.contracts import Contract, contracts, flat_name
from layerzero.contracts.axes import Description
from layerzero.contracts.shapes import dims_of
from layerzero.errors import InvalidRequestError, LayerZeroError, WrongTypeError, one_of
from layerzero.host import watching
from layerzero.host.typed import typed
from layerzero.jit import examples, library, manifest, state, work
from layerzero.jit.examples import Call
from layerzero.torch.devices import device_of

_ALIKE = {"s_kv": "s_q", "h_kv": "h_q", "d_v": "d_qk"}  # axes that have the size of another unless they are given


class Warmed(NamedTuple):
    """One call of a warm-up. state: "ready"; "fallback": it runs, on another kernel than the best, which failed or was
    not compiled in time; "failed"; "left": the budget was spent before."""

    operation: str
    inputs: str  # "float16[1,1024,16,128] ..."
    state: str
    kernel_id: str | None
    detail: str
    seconds: float


class WarmupReport(NamedTuple):
    """What a warm-up did. complete: every call is ready."""

    calls: tuple[Warmed, ...]
    seconds: float
    compiled: int  # kernels
    from_cache: int  # of those: whose compiled code was on disk
    tuned: int = 0  # classes of calls that were measured, because of the policy's auto_tune_on_warmup

    @property
    def complete(self) -> bool:
        return all(call.state == "ready" for call in self.calls)


@typed
def warmup(
    operation: Any,
    shapes: Iterable[Any] | None = None,
    dtype: Any = None,
    *,
    inputs: Any = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    references: bool = False,
    record: bool = False,
    budget_s: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> WarmupReport:
    """Prepares calls, so that none of them imports, compiles or chooses anything while it serves; returns what it did.

    operation: an operation by name ("attention.causal") with `shapes` and `dtype`; a model with `inputs`, the keyword
    arguments of one call or a list of these; "manifest", or a path of one, for the calls of the shape manifest; or calls, each
    {"operation", "tensors": {name: {"dtype", "shape"}}, "scalars", "device"} as in the manifest.
    shapes: for each call the shape of the operation's first tensor, or {axis: size} for operations that have more axes.
    dtype: of the first tensor, "float16" or torch.float16, by default float32; others follow it where they may. device: "cuda" if torch has one,
    else "cpu". options: further arguments of an operation, {"causal": True}; an optional tensor by True, {"weight": True}.
    references: also compile references, as `lz.compile_references` does, where a reference serves a call.
    record: add a model's calls to the manifest of the policy.
    budget_s: seconds after which no further call is begun and no compilation is awaited; what was queued goes on.
    progress: called as progress(done, total, text) before each call and at the end.

    Compilations run one after another on a thread of their own. A call that fails is reported, not raised. With the policy's
    auto_tune_on_warmup the kernels of the calls are measured afterwards, in another process, and what is chosen then is
    prepared too.
    """
    from layerzero.tuning.auto import warming_up

    if budget_s is not None and not 0 <= budget_s < math.inf:
        raise InvalidRequestError("warmup: budget_s", "seconds, or None for no end", repr(budget_s))
    begin, before = time.monotonic(), work.counts()
    until = None if budget_s is None else begin + budget_s
    report = progress or (lambda done, total, text: None)
    with warming_up(budget_s) as measured:
        if callable(operation) and getattr(operation, "__name__", "") not in contracts():
            _refuse_unused("a model", shapes=shapes, dtype=dtype, device=device, options=options)
            calls = _calls_of_model(operation, inputs, record, references, until)
        else:
            _refuse_unused("no model", inputs=inputs, record=record or None)
            calls = list(_calls(operation, shapes, dtype, device, options))
        done = _all_warmed(calls, references, until, report)
    if any(one.records for one in measured["tuned"]):
        again = _all_warmed(calls, references, until, report)  # other kernels may be chosen now
        done = [old if new.state == "left" else new for old, new in zip(done, again, strict=True)]
    report(len(calls), len(calls), "done")
    now = work.counts()
    found = WarmupReport(
        tuple(done),
        time.monotonic() - begin,
        now.ready - before.ready,
        now.from_cache - before.from_cache,
        sum(one.calls for one in measured["tuned"]),
    )
    state.warmed(found)
    return found


def _all_warmed(
    calls: Sequence[Call], references: bool, until: float | None, report: Callable[[int, int, str], None]
) -> list[Warmed]:
    done = []
    for place, call in enumerate(calls):
        report(place, len(calls), f"{call['operation']} {_inputs(call)}")
        done.append(_warmed(call, references, until))
    return done


def _inputs(call: Call) -> str:
    return " ".join(f"{t['dtype']}[{','.join(map(str, t['shape']))}]" for t in call["tensors"].values())


def _warmed(call: Call, references: bool, until: float | None) -> Warmed:
    begin = time.monotonic()
    operation, inputs = call["operation"], _inputs(call)
    if until is not None and begin >= until:
        return Warmed(operation, inputs, "left", None, "the budget was spent", 0.0)
    try:
        device_of("warmup: device", call["device"])
        arguments = examples.arguments(call)
        _run(call, arguments, references, until)
        chosen, lacking = _compiled(call, arguments, until)
        if lacking is not None:
            _run(call, arguments, False, until)
    except (LayerZeroError, RuntimeError, ValueError, TypeError) as error:
        return Warmed(operation, inputs, "failed", None, work.text_of(error), time.monotonic() - begin)
    waiting = chosen["wanted"] is not None or (lacking is not None and lacking.state != "ready")
    detail = f"{lacking.kernel_id}: {lacking.detail or 'not compiled yet'}" if waiting and lacking is not None else ""
    outcome = "fallback" if waiting else "ready"
    return Warmed(operation, inputs, outcome, chosen["kernel_id"], detail, time.monotonic() - begin)


def _compiled(
    call: Call, arguments: dict[str, Any], until: float | None
) -> tuple[dict[str, Any], library.LibraryWork | None]:
    """Has the kernel compiled that the call would get then; and the next best one, if that fails. Returns the selection
    afterwards, and the last one that was waited for."""
    last, tried = None, set[library.LibraryWork]()
    while True:
        chosen = json.loads(_layerzero.explain(_layerzero.ops[call["operation"]], (), arguments))
        if (wanted := chosen["wanted"]) is None:
            return chosen, last
        one = library.queued(chosen["operation"], wanted["kernel_id"], tuple(wanted["kind"]), call)
        if one in tried:
            return chosen, one
        tried.add(one)
        work.wait(one, until)
        last = one


def _run(call: Call, arguments: dict[str, Any], references: bool, until: float | None) -> None:
    import torch

    from layerzero.backends.inductor.recording import compile_references

    operation = _layerzero.ops[call["operation"]]
    with torch.no_grad():
        if references:
            with compile_references() as compiled:
                operation(**arguments)
            compiled.wait(None if until is None else max(0.0, until - time.monotonic()))
        operation(**arguments)
        if call["device"].startswith("cuda"):
            torch.cuda.synchronize()


# ---- what to warm up


def _refuse_unused(what: str, **given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidRequestError(
                f"warmup: {name}", f"no `{name}` where {what} is warmed up", repr(value)[:100], "leave it out"
            )


def _calls(
    target: Any, shapes: Iterable[Any] | None, dtype: Any, device: str | None, options: Mapping[str, Any] | None
) -> Iterator[Call]:
    if isinstance(target, os.PathLike) or (isinstance(target, str) and (target == "manifest" or os.sep in target)):
        _refuse_unused("a manifest", shapes=shapes, dtype=dtype, device=device, options=options)
        for recorded in manifest.read(None if target == "manifest" else target).values():
            manifest.warn_if_stale(recorded)
            yield from recorded.calls
    elif isinstance(target, str) or callable(target):
        if shapes is None:
            raise InvalidRequestError("shapes", "a list of shapes for the operation", "none", "shapes=[(4, 1024)]")
        contract = contracts()[flat_name(target)]
        device = _default_device() if device is None else str(device_of("warmup: device", device))
        for shape in shapes:
            yield call_of(contract, shape, dtype, device, options or {})
    elif isinstance(target, Iterable):
        _refuse_unused("a list of calls", shapes=shapes, dtype=dtype, device=device, options=options)
        yield from (_complete(call) for call in target)
    else:
        raise WrongTypeError("operation", "an operation, a model, a manifest or calls", type(target).__name__)


def _complete(call: Any) -> Call:
    """Returns a call with what may be left out: strides of dense tensors, scalars, the device."""
    if not isinstance(call, Mapping) or not {"operation", "tensors"} <= set(call):
        raise WrongTypeError("calls", '{"operation": ..., "tensors": {...}}', repr(call))
    tensors = {
        name: {"strides": list(Description.of(t["dtype"], t["shape"]).strides), **t}
        for name, t in call["tensors"].items()
    }
    whole = {"device": _default_device(), "scalars": {}, **call, "operation": flat_name(call["operation"])}
    return whole | {"tensors": tensors}


def _default_device() -> str:
    import torch

    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"


def call_of(contract: Contract, shape: Any, dtype: Any, device: str, options: Mapping[str, Any]) -> Call:
    """Returns the description of a call from the shape of its first tensor, or from the sizes of its axes by name."""
    params = [p for p in contract["params"] if p["kind"] == "tensor"]
    layout = options.get("layout") or next(iter(contract["layouts"]), None)
    sizes = dict(shape) if isinstance(shape, Mapping) else _sizes_of_first(contract, params[0], shape, layout)
    kind = _dtype_of_first(contract, params[0], dtype)
    if unknown := sorted(set(sizes) - {"...", *contract["axes"]}):
        wanted = f"axes of {contract['name']}: {', '.join(contract['axes'])}"
        raise InvalidRequestError("shapes", wanted, ", ".join(map(str, unknown)))
    given = {name for name in options if any(p["name"] == name for p in params)}
    tensors = {}
    for param in params:
        if param["optional"] and param["name"] not in given:
            continue
        own = _shape(contract, param, sizes, layout)
        chosen = kind if kind in param["dtypes"] else param["dtypes"][0]
        tensors[param["name"]] = {"dtype": chosen, "shape": own, "strides": list(Description.of(chosen, own).strides)}
    scalars = {name: value for name, value in options.items() if name not in given and name != "layout"}
    call = {"operation": contract["name"], "device": device, "tensors": tensors, "scalars": scalars}
    return call if layout is None else call | {"layout": layout}


def _dtype_of_first(contract: Contract, first: Any, dtype: Any) -> str:
    known = first["dtypes"]
    if dtype is None:
        return "float32" if "float32" in known else str(known[0])
    return one_of(f"{contract['name']}: dtype of {first['name']}", str(dtype).removeprefix("torch."), known)


def _sizes_of_first(contract: Contract, first: Any, shape: Sequence[int], layout: str | None) -> dict[str, Any]:
    has_leading, names = dims_of(first["shape"])
    order = contract["layouts"].get(layout) if layout is not None and first["layout"] else None
    dims = [shape[place] for place in order] if order is not None and len(order) == len(shape) else list(shape)
    count = len(dims) - len(names)
    if count < 0 or (count and not has_leading):
        raise InvalidRequestError(
            "shapes", f"{contract['name']}: {first['name']} has the axes {first['shape']}", repr(tuple(shape))
        )
    sizes = dict(zip(names, dims[count:], strict=True))
    return sizes | ({"...": tuple(dims[:count])} if has_leading else {})


def _shape(contract: Contract, param: Any, sizes: dict[str, Any], layout: str | None) -> list[int]:
    has_leading, names = dims_of(param["shape"])
    found = list(sizes.get("...", ())) if has_leading else []
    for name in names:
        size = int(name) if name.isdigit() else sizes.get(name, sizes.get(_ALIKE.get(name, "")))
        if size is None:
            raise InvalidRequestError(
                "shapes",
                f"{contract['name']}: the size of {name} too, for {param['name']} ({param['shape']})",
                f"sizes of {', '.join(map(str, sizes))}",
                'pass the axes by name: shapes=[{"m": 4, "k": 1024, "n": 4096}], or whole calls',
            )
        found.append(int(size))
    order = contract["layouts"].get(layout) if layout is not None and param["layout"] else None
    if order is None or len(order) != len(found):
        return found
    turned = [0] * len(found)
    for axis, place in enumerate(order):
        turned[place] = found[axis]
    return turned


def _calls_of_model(model: Any, inputs: Any, record: bool, references: bool, until: float | None) -> list[Call]:
    """Runs a model with each of the inputs, so that it imports and allocates what it needs; returns the calls that it made."""
    import torch

    if inputs is None:
        raise InvalidRequestError(
            "inputs",
            "the arguments of a call of the model",
            "none",
            'inputs={"input_ids": torch.zeros(1, 8, dtype=int)}',
        )
    calls = dict[str, Call]()

    def note(text: str) -> None:
        calls.setdefault(text, json.loads(text))

    handle = watching.watch(_layerzero.observe_calls(note))
    try:
        for one in [inputs] if isinstance(inputs, Mapping) else list(inputs):
            if until is not None and time.monotonic() >= until:
                break
            with torch.no_grad():
                model(**one) if isinstance(one, Mapping) else model(*one) if isinstance(one, tuple) else model(one)
    finally:
        watching.stop(handle)
    if record:
        manifest.record(manifest.model_hash(model), type(model).__name__, calls.values())
    return list(calls.values())
