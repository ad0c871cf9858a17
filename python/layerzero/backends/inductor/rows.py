"""Descriptors of compiled references: a row per operation that is never ready, and one per compiled class of calls."""

import math
from typing import Any

from layerzero.contracts import Contract, contracts

SOURCE = "inductor"
PRIORITY = (
    25  # after own kernels and proven libraries; before torch's expressions (20), single functions and references
)


def descriptor() -> dict[str, Any]:
    """Returns the descriptor of the rows that say what has not been compiled."""
    ops = {o["id"]: [_waiting(o["id"], c)] for c in contracts().values() for o in c["operations"] if can_compile(c)}
    return {**_backend("any"), "ops": ops}


# Inductor's grouped product gave another group's rows on an H100 (torch 2.11): bf16, groups of one, eight and one row.
_WRONG = frozenset({"grouped_gemm"})


def can_compile(contract: Contract) -> bool:
    """False for operations that write into their arguments, where a compiled expression would write into copies; for those
    whose result is defined to the bit, since Inductor may join a product and a sum in one rounding; and for wrong ones.
    """
    writes = any(p.get("mutated") for p in contract["params"])
    return not writes and contract["tolerance"]["compare"] != "exact" and contract["name"] not in _WRONG


def _waiting(operation: str, contract: Contract) -> dict[str, Any]:
    row = _any_call(f"{SOURCE}.{operation}", f"{__name__}:not_ready", contract, operation)
    return row | {"dtypes": first_tensor(contract)["dtypes"], "jit": {"when": "recorded"}}


def not_ready(*_: Any) -> Any:
    raise AssertionError("no call is admitted")


def _backend(platform: str) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "backend": SOURCE,
        "backend_version": "2.11",
        "platform": platform,
        "description": "Torch expressions that Inductor compiles for recorded calls: layerzero.compile_references.",
        "requires": [{"import": "torch", "distribution": "torch", "min_version": "2.11"}],
    }


def first_tensor(contract: Contract) -> dict[str, Any]:
    return next(p for p in contract["params"] if p["kind"] == "tensor")


def _any_call(kernel_id: str, adapter: str, contract: Contract, operation: str) -> dict[str, Any]:
    (when,) = (o["when"] for o in contract["operations"] if o["id"] == operation)
    row: dict[str, Any] = {
        "kernel_id": kernel_id,
        "source": SOURCE,
        "adapter": adapter,
        "priority": PRIORITY,
        "requires_layouts": list(contract["layouts"]) or ["any"],
        "accepts": [p["name"] for p in contract["params"] if p["name"] != "dropout_p"],
        "requires_contiguous": False,
        "requires_last_dim_stride1": False,
        "is_cuda_graph_safe": True,
        "platform": "any",
        "min_sm": None,
        "max_sm": None,
        "jit": {"when": "done"},
    }
    if {"h_q", "h_kv"} <= set(contract["axes"]) and all(condition["field"] != "group" for condition in when):
        row["supports_gqa"] = True
    if {"d_qk", "d_v"} <= set(contract["axes"]):
        row["max_head_dim"] = None
    return row


def recorder(operation: str, contract: Contract, adapter: str) -> dict[str, Any]:
    """Returns the descriptor of a kernel that gets the calls of `operation` that a compiled reference would get."""
    row = _any_call(f"{SOURCE}.recorder.{operation}", adapter, contract, operation)
    row |= {"dtypes": first_tensor(contract)["dtypes"], "is_cuda_graph_safe": False}
    return {**_backend("any"), "ops": {operation: [row]}}


def compiled(call: Any, adapter: str) -> dict[str, Any]:
    """Returns the descriptor of the kernel of a compiled class of calls (`recording.Call`)."""
    contract = contracts()[call.name]
    row = _any_call(call.kernel_id, adapter, contract, call.operation)
    first = call.tensors[first_tensor(contract)["name"]]
    row |= {
        "platform": call.platform,
        "dtypes": [first.dtype],
        "deterministic": call.eager.deterministic,
        "notes": [call.text],
    }
    if contract["layouts"]:
        row["requires_layouts"] = [call.layout]
    if call.eager.numerics:
        row["numerics"] = call.eager.numerics
    row["constraints"] = [*_of_tensors(contract, call), *_of_scalars(contract, call)]
    if not call.eager.strict:
        row["constraints"].append({"field": "policy.strict_mode", "relation": "==", "operand": False})
    return {**_backend(call.platform), "ops": {call.operation: [row]}}


def _is(field: str, value: Any) -> dict[str, Any]:
    return {"field": field, "relation": "==", "operand": value, "code": "JIT_DISABLED"}


def _of_tensors(contract: Contract, call: Any) -> list[dict[str, Any]]:
    """What distinguishes this class of calls: which tensors it has, their dtypes, ranks and sizes."""
    rules = []
    for param in [p for p in contract["params"] if p["kind"] == "tensor"]:
        tensor = call.tensors.get(param["name"])
        if param["optional"]:
            rules.append(_is(f"{param['name']}.given", tensor is not None))
        if tensor is None:
            continue
        if not param["same_dtype_as"]:
            rules.append({"field": f"{param['name']}.dtype", "relation": "in", "set": [tensor.dtype]})
        if param["shape"].startswith(("*", "...")):
            rules.append(_is(f"{param['name']}.ndim", len(tensor.shape)))
    for axis, size in _sizes(contract, call).items():
        any_size = {"field": axis, "relation": ">=", "operand": 2, "code": "JIT_DISABLED"}
        rules.append(any_size if size is None else _is(axis, size))
    return rules


def _names(contract: Contract, param: dict[str, Any], rank: int, layout: str | None) -> list[str]:
    """Returns the names of a tensor's axes; of the leading ones that a contract leaves open "..."."""
    names = [n.strip() for n in param["shape"].split(",")]
    if param["layout"] and layout is not None and len(contract["layouts"][layout]) == len(names):
        names = [names[axis] for axis in contract["layouts"][layout]]
    if names[0] == "...":
        return ["..."] * (rank - len(names) + 1) + names[1:]
    return names if len(names) == rank else ["*"] * rank


def _sizes(contract: Contract, call: Any) -> dict[str, int | None]:
    """Maps axes of a call by name to their sizes, None: any from 2 on. Axes that a contract leaves open are one, "rows"."""
    sizes = dict[str, int | None]()
    open_axes = {"rows"} if any(d["name"] == "rows" for d in contract["derived"]) else set()
    for param in [p for p in contract["params"] if p["name"] in call.tensors]:
        shape, free = call.tensors[param["name"]].shape, call.free.get(param["name"], ())
        names = _names(contract, param, len(shape), call.layout)
        for axis, name in enumerate(names):
            if name in contract["axes"] and name != "...":
                sizes[name] = None if axis in free else shape[axis]
        if "..." in names and open_axes:
            lead = [axis for axis, name in enumerate(names) if name == "..."]
            sizes["rows"] = None if set(lead) & set(free) else math.prod(shape[axis] for axis in lead)
    return sizes


def _of_scalars(contract: Contract, call: Any) -> list[dict[str, Any]]:
    """Numbers with a fraction are no facts of a call: the adapter compares them."""
    rules = []
    for param in [p for p in contract["params"] if p["kind"] not in ("tensor", "float", "floats")]:
        value, name = call.scalars.get(param["name"]), param["name"]
        if param.get("folds") or param["kind"] not in ("bool", "choice", "int"):
            continue
        if (
            name == "dtype"
        ):  # as a field that is the first tensor's: contracts have another name for the choice, or none
            name = next((d["name"] for d in contract["derived"] if d["expression"] == name), "")
        if value is not None and name:
            rules.append(_is(name, value))
    return rules
