"""Inspection: which kernel a call runs, why, and what else is available; and calls of operations by name."""

import contextlib
import importlib
import json
import platform
import sys
from typing import Any

from layerzero import _layerzero, backends
from layerzero.contracts import contracts, flat_name, parameter_names, resolve_call
from layerzero.contracts.axes import Description, fixed_arguments, with_contract_axes
from layerzero.errors import LayerZeroError, NoKernelFoundError, Reason, UnknownNameError, failures_of, known_name
from layerzero.host.policy import IN_PROCESS, isolation
from layerzero.host.typed import typed
from layerzero.inspection.report import Choice, DoctorReport, KernelList, KernelRecord, Record, SelectionReport
from layerzero.torch import attach


def run(operation: Any, *tensors: Any, **params: Any) -> Any:
    """Calls an operation by its flat name, id ("norm.rms") or alias."""
    function, params = resolve_call(operation, tensors, params)
    return function(*tensors, **params)


def prepare(operation: Any, *tensors: Any, **params: Any) -> Any:
    """Returns a callable that takes only the tensors: scalars, layout, kernel and policy are fixed as given here."""
    attach.attach_if_imported()
    function, params = resolve_call(operation, tensors, params)
    contract = contracts()[function.__name__]
    return _layerzero.prepare(
        function, *with_contract_axes(contract, tensors, params), fixed_arguments(contract, tensors, params)
    )


def report_of(explanation: str) -> SelectionReport:
    """Returns a report from the engine's JSON, for explain() of a prepared call."""
    return SelectionReport(json.loads(explanation))


@typed
def explain(
    op: Any, *tensors: Any, device: str | None = None, capturing: bool = False, **params: Any
) -> SelectionReport:
    """Returns the selection for a call, with every kernel's score or reasons.

    `device`: a simulated one, see doctor(). `capturing`: as in a CUDA graph capture, where only kernels that are safe in
    graphs may run, and times measured in graphs decide. If torch chooses the backend itself, `notes` has its choice, and
    torch's reasons against the others.
    """
    return explain_call(op, tensors, params, device, capturing=capturing)


def explain_call(
    op: Any,
    tensors: tuple[Any, ...],
    params: dict[str, Any],
    device: str | None = None,
    of_chosen: bool = False,
    capturing: bool = False,
) -> SelectionReport:
    """Does explain(). With `of_chosen` only the chosen kernel's library is imported and tried; `usable` is None for a
    candidate whose library was not tried."""
    function, params = resolve_call(op, tensors, params)
    args, kwargs = _as_tensors(function.__name__, tensors, params)
    report = json.loads(_layerzero.explain(function, args, kwargs, device, of_chosen, capturing))
    if (report["kernel_id"] or "").startswith("torch.sdpa.auto") and not report["device"]["simulated"]:
        report["notes"] = _notes_of_torch(
            report, dict(zip(parameter_names(report["name"]), args, strict=False)) | kwargs
        )
    report["notes"] = [*report.get("notes", []), *_notes_of_workers(report), *_notes_of_tuning(report)]
    if not report["notes"]:
        del report["notes"]
    return SelectionReport(report)


def _notes_of_workers(report: dict[str, Any]) -> list[str]:
    """Returns which of the kernels that may take the call run in a worker."""
    sources = {c["source"] for c in report["candidates"] if c["admissible"]}
    modes = {source: isolation().mode_of(source) for source in sorted(sources & set(backends.libraries()))}
    return [
        f"{source}: in a worker (backend_isolation: {mode})" for source, mode in modes.items() if mode != IN_PROCESS
    ]


def _notes_of_tuning(report: dict[str, Any]) -> list[str]:
    """Returns why tuning could not measure the call: "untuned: out of memory"."""
    from layerzero.tuning import states

    if not states.path().exists():
        return []
    axes = {axis: int(report["key"][axis]) for axis in contracts()[report["name"]]["axes"] if axis in report["key"]}
    device = _layerzero.device_id(report["device"]["name"])
    state = states.of_call(report["operation"], device, report["key"]["dtype"], axes, report["options"])
    return [f"untuned: {state} (layerzero tune)"] if state else []


def _notes_of_torch(report: dict[str, Any], given: dict[str, Any]) -> list[str]:
    from layerzero.backends.torch import can_use

    query, key, value = (_as_tensor(given[name]) for name in ("query", "key", "value"))
    causal = report["key"].get("causal") == "true"
    mask, dropout_p = _as_tensor(given.get("attn_mask")), given.get("dropout_p") or 0.0
    return can_use.notes(query, key, value, causal, mask, dropout_p, report["layout"]["name"])


def _as_tensor(value: Any) -> Any:
    """Returns an empty tensor for a description, and any other value unchanged."""
    if not isinstance(value, Description):
        return value
    torch = importlib.import_module("torch")
    return torch.empty_strided(value.shape, value.strides, dtype=getattr(torch, value.dtype))


@typed
def which(op: Any, *tensors: Any, device: str | None = None, **params: Any) -> Choice:
    """Returns {"kernel_id", "score"} of the kernel that the call would run, or raises NoKernelFoundError like it.

    `device`: a simulated one, as in explain().
    """
    function, params = resolve_call(op, tensors, params)
    args, kwargs = _as_tensors(function.__name__, tensors, params)
    report = json.loads(_layerzero.explain(function, args, kwargs, device))
    kernel_id = report["kernel_id"] if device is not None else _layerzero.which(function, args, kwargs)[0]
    return choice(report, kernel_id)


def choice(report: Any, kernel_id: str | None) -> Choice:
    """Returns the Choice of a report as plain data, or raises NoKernelFoundError."""
    if kernel_id is None:
        raise NoKernelFoundError(report["operation"], failures_of(report))
    score = next((c["score"] for c in report["candidates"] if c["kernel_id"] == kernel_id), None)
    return Choice(kernel_id=kernel_id, score=score)


@typed
def validate(kernel_id: str, *tensors: Any, operation: Any = None, **params: Any) -> tuple[bool, list[Reason]]:
    """Returns whether a kernel takes a call, and all reasons if not. `operation`: needed if it serves several."""
    name = operation_of_kernel(kernel_id, operation)
    call = name if operation is None else operation
    candidate = _candidate(kernel_id, call, tensors, params)
    if candidate is not None and candidate.admissible and candidate.usable is None:
        _layerzero.prove_backend(next(k["backend"] for k in kernel_rows(name) if k["kernel_id"] == kernel_id))
        candidate = _candidate(kernel_id, call, tensors, params)
    if candidate is None:
        # A kernel of another operation of the same function: if named, it is a candidate, with the reasons why the call
        # is not its own.
        candidate = _candidate(kernel_id, name, tensors, params | {"kernel": kernel_id})
    return candidate.admissible, candidate.reasons


def _candidate(kernel_id: str, op: Any, tensors: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Returns a kernel's entry in the report of a call, or None; no other library is imported."""
    given = dict(params)
    candidates = explain_call(op, tensors, given, given.pop("device", None), of_chosen=True).candidates
    return next((c for c in candidates if c.kernel_id == kernel_id), None)


def operation_of_kernel(kernel_id: str, operation: Any = None) -> str:
    """Returns the flat name of the one operation that a kernel serves, or of `operation` if it is one of several."""
    backends.ensure_registered()
    names = json.loads(_layerzero.functions_of(kernel_id))
    if not names:
        known = (k["kernel_id"] for k in kernel_rows(constraints=False))
        known_name("kernel_id", "a known kernel", kernel_id, known, "see `layerzero list`")
    name = flat_name(operation) if operation is not None else names[0]
    if operation == "attention.paged" and name not in names:  # the other form of the cache
        name = flat_name("paged_attention")
    if name not in names or (operation is None and len(names) > 1):
        raise UnknownNameError("operation", f"one of {', '.join(names)} for {kernel_id}", repr(operation))
    return name


def list_kernels(op: Any = None) -> KernelList:
    """Returns every registered kernel (of one operation), installed or not, each id once.

    `operations` names all operations of a kernel; dtypes and constraints are those for the first one, `operation`.
    """
    found: dict[str, KernelRecord] = {}
    for kernel in kernel_rows(op):
        first = found.setdefault(kernel["kernel_id"], KernelRecord(kernel | {"operations": []}))
        first._data["operations"].append(kernel["operation"])
    return KernelList(found.values())


def kernel_rows(op: Any = None, constraints: bool = True) -> list[dict[str, Any]]:
    """Returns a row for each kernel and each operation that it serves; much sooner without their constraints."""
    backends.ensure_registered()
    return json.loads(_layerzero.kernels(None if op is None else flat_name(op), constraints))


@typed
def coverage(*devices: str, shipped: bool = True) -> list[Record]:
    """Returns the kernels that serve each operation and dtype on devices: {"operation", "name", "device", "dtype",
    "kernels", "references", "not_built", "not_installed"}, kernels in order of decreasing priority.

    `devices`: names of this machine's and of simulated ones, see doctor(); default: all of them. Only constraints on
    the device and on the dtype of the first tensor are checked. `not_built`: this build has no code for the GPU;
    `not_installed`: a library is missing here, which is not checked for a simulated device. `shipped`: only LayerZero's
    own descriptors, without other distributions and register_kernel.
    """
    backends.ensure_registered()
    known = json.loads(_layerzero.devices())
    names = devices or dict.fromkeys(d["name"] for d in (*known["devices"], *known["simulated"]))
    outside = {
        (k["operation"], k["kernel_id"]) for k in kernel_rows(constraints=False) if shipped and k["origin"] != "builtin"
    }
    found = []
    for device in names:
        for entry in json.loads(_layerzero.coverage(device)):
            for key in ("kernels", "references", "not_built", "not_installed"):
                entry[key] = [k for k in entry[key] if (entry["operation"], k) not in outside]
            found.append(Record(entry))
    return found


def doctor() -> DoctorReport:
    """Returns versions, devices, threads, libraries, what is missing and how to fix it, policy, counters, problems."""
    return doctor_report()


def doctor_report(imports: bool = True) -> DoctorReport:
    """Does doctor(). Without `imports` no library is imported, and `tried` is False for installed ones."""
    from layerzero.backends.report import gains, report, served_by_reference
    from layerzero.host.optional import report as packages
    from layerzero.host.optional import version_of

    backends.ensure_registered()
    attach.attach_if_imported()
    version, build = _layerzero.build_id()
    problems = list(backends.problems())
    try:
        _layerzero.startup()
    except Exception as error:
        problems.insert(0, str(error))
    libraries = {library.pop("name"): library for library in report(imports)}
    devices = json.loads(_layerzero.devices())
    counters = json.loads(_layerzero.stats())
    if not counters["selections"] and not counters["measured_records"]:
        # As the first selection does, so that the records in force are counted before it too; an error in the machine's
        # file is `problem` below.
        with contextlib.suppress(LayerZeroError):
            _layerzero.use_prior()
        counters = json.loads(_layerzero.stats())
    measured = gains()
    libraries = {name: library | {"gain": measured.get(name)} for name, library in libraries.items()}
    served = served_by_reference(counters.pop("served_by_reference"), devices, imports)
    problem = counters.pop("measured_records_problem")
    for key in ("counting", "runs", "runs_not_counted"):  # lz.metrics() has them
        counters.pop(key)
    perfdb = json.loads(_layerzero.perfdb("state", "{}"))
    problems += [text for text in (problem, perfdb["queue"]["problem"]) if text]
    health = json.loads(_layerzero.health())
    problems += [f"{reason['code']}: {reason['text']}; {reason['fix']}" for reason in health["reasons"]]
    problems += [health["problem"]] if health["problem"] else []
    table = json.loads(_layerzero.table("state", "{}"))
    problems += [table["problem"]] if table["problem"] else []
    untuned = _untuned()
    problems += [f"{len(untuned)} calls are untuned: {untuned[-1]['state']}; see `untuned`"] if untuned else []
    policy = json.loads(_layerzero.policy_text())
    changed = {key: entry for key, entry in policy["keys"].items() if entry["origin"] != "default"}
    return DoctorReport(
        {
            "layerzero": {"version": version, "build": build},
            "python": platform.python_version(),
            "torch": getattr(sys.modules.get("torch"), "__version__", None) or version_of("torch"),
            "devices": devices,
            "threads": _threads(),
            "libraries": libraries,
            "packages": packages(),
            "policy": {"hash": policy["hash"], "changed": changed},
            "counters": counters,
            "perfdb": perfdb,
            "untuned": untuned,
            "health": {"status": health["status"], "reasons": health["reasons"]},
            "served_by_reference": served,
            "problems": problems,
            "ok": not problems,
        }
    )


def _untuned() -> list[dict[str, Any]]:
    """Returns the calls that tuning could not measure on this machine, the latest last."""
    from layerzero.tuning import states

    return [{name: row.get(name, "") for name in ("name", "call", "device_id", "state", "at")} for row in states.read()]


def _threads() -> dict[str, Any]:
    """Returns the processors that the process may use, the threads of torch and kernels, and advice if too many."""
    usable = _layerzero.usable_cpus()
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    advice = None
    if threads is not None and threads > usable:
        advice = (
            f"torch has {threads} threads where affinity and CPU quota allow {usable} at a time: they wait for each other; "
            f"torch.set_num_threads({usable}) or OMP_NUM_THREADS={usable}"
        )
    return {"usable": usable, "torch": threads, "advice": advice}


def _as_tensors(name: str, tensors: tuple[Any, ...], params: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
    """Attaches torch, registers all libraries and returns arrays as torch tensors on the contract's axes."""
    backends.ensure_registered()
    foreign = [v for v in (*tensors, *params.values()) if hasattr(v, "__dlpack__")]
    if foreign and "torch" not in sys.modules:
        importlib.import_module("torch")
    attach.attach_if_imported()
    torch = sys.modules.get("torch")
    names = parameter_names(name)
    if torch is not None and not all(isinstance(v, torch.Tensor) for v in foreign):
        from layerzero.torch.arrays import to_torch

        def converted(field: str, value: Any) -> Any:
            array = hasattr(value, "__dlpack__") and not isinstance(value, torch.Tensor)
            return to_torch(torch, field, value) if array else value

        tensors = tuple(converted(n, v) for n, v in zip(names, tensors, strict=False)) + tensors[len(names) :]
        params = {key: converted(key, value) for key, value in params.items()}
    return with_contract_axes(contracts()[name], tensors, params)
