"""`@lz.register_kernel`: a Python function becomes a kernel, and `unregister_kernel`: it is none again."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from layerzero import backends
from layerzero._contracts import Contract, contracts, flat_name, host_parameter_names
from layerzero._refusals import refuse_name, refuse_request

F = TypeVar("F", bound=Callable[..., Any])
_SHORT = {"q": "query", "k": "key", "v": "value"}  # a function's names for the parameters of attention


def register_kernel(
    operation: str,
    kernel_id: str,
    *,
    supported_dtypes: Collection[Any],
    platform: str = "any",
    source: str | None = None,
    version: str = "0",
    requires_layouts: Collection[str] = ("BSHD",),
    produces_layout: str | None = None,
    **facts: Any,
) -> Callable[[F], F]:
    """Registers the decorated function as a kernel of `operation` (an operation id, e.g. "norm.rms").

    The function is called with the parameters that it names (q, k and v are query, key and value), final scalars
    included, and with the layout if it names that. `facts` are the keys of a kernel in capabilities.json: min_sm,
    max_head_dim, priority, supports_causal ... as numbers, texts, lists, tuples or sets, dtypes as torch's or by name; one
    that this version does not obey is a ConfigError. What is not stated is unsupported, so a call that gives an optional
    parameter which the function does not name is not for it. `supported_dtypes`: of every
    floating tensor of a call, and of the first tensor whatever it is; a row of `constraints` on "<tensor>.dtype" says
    otherwise for one of them. Tensors arrive in one of `requires_layouts`, calls in another layout are permuted, and so
    are results: `produces_layout`, if given, is the one of `requires_layouts`.

    A function that raises is answered for by the operation's reference; where the operation writes its inputs only if it
    raises `KernelRefusedError`, before it has written anything.
    """

    def decorate(function: F) -> F:
        name = flat_name(operation)
        taken = _taken(name, function)
        adapter = adapter_of(operation, kernel_id)
        contract = contracts()[name]
        layouts = list(contract["layouts"]) if contract["layouts"] else ["any"]
        dtypes = [dtype_name(d) for d in supported_dtypes]
        if produces_layout is not None and list(requires_layouts) != [produces_layout]:
            wanted = "the one layout of requires_layouts, in which results are expected"
            refuse_request("produces_layout", wanted, repr(produces_layout), "leave it out")
        row = {
            "kernel_id": kernel_id,
            "adapter": adapter,
            "dtypes": dtypes,
            "requires_layouts": layouts,
            "accepts": [p["name"] for p in contract["params"] if p["name"] in taken and p["optional"]],
            "requires_contiguous": False,
            "requires_last_dim_stride1": False,
            **{name: _plain(value) for name, value in facts.items() if value is not None or name != "accepts"},
        }
        row["accepts"] += [p["name"] for p in contract["params"] if p["name"] in taken and p.get("has_default")]
        row["constraints"] = list(facts.get("constraints") or ())
        ruled = {rule.get("field") for rule in row["constraints"]} | _ruled_by(contract, facts)
        row["constraints"] += _dtype_rows(contract, dtypes, taken, ruled)
        descriptor = {
            "schema_version": "1.0",
            "backend": source or kernel_id.split(".")[0],
            "backend_version": version,
            "platform": platform,
            "plugin_origin": "function",
            "ops": {operation: [row]},
        }
        accepted = tuple(n for n in requires_layouts if n in layouts) or tuple(
            layouts[:1]
        )  # no BSHD: the contract's first
        backends.add_function(adapter, _adapter(name, function, taken, accepted), descriptor)
        return function

    return decorate


def unregister_kernel(operation: str, kernel_id: str) -> None:
    """Undoes `register_kernel`: no later call gets the kernel, and its id is free. Calls that run it go on."""
    if not backends.remove_function(adapter_of(operation, kernel_id)):
        refuse_name(
            "kernel_id",
            f"a kernel of {operation} that register_kernel made",
            repr(kernel_id),
            'a policy denies others: rules: [{deny: ["<kernel id>"]}]',
        )


def adapter_of(operation: str, kernel_id: str) -> str:
    """The name under which the engine asks for the function."""
    return f"layerzero.register_kernel:{operation}/{kernel_id}"


def _dtype_rows(contract: Contract, named: list[str], taken: Collection[str], ruled: set[Any]) -> list[dict[str, Any]]:
    """Rules on the tensors after the first: what is floating is of the dtypes that are named.

    None where `ruled` has one, where the contract ties the dtype to another tensor's, and where it admits none of them
    (float32 slopes beside bfloat16 heads)."""
    rows = []
    for param in [p for p in contract["params"] if p["kind"] == "tensor"][1:]:
        field = f"{param['name']}.dtype"
        absent = param["optional"] and param["name"] not in taken
        if absent or param["same_dtype_as"] or field in ruled or not any(map(_is_floating, param["dtypes"])):
            continue
        if not any(map(_is_floating, named)):
            got = ", ".join(named) or "none"
            refuse_request("supported_dtypes", f"the floating dtypes of {param['name']} too", got, "name them")
        if set(named) & set(param["dtypes"]):
            allowed = [d for d in param["dtypes"] if d in named or not _is_floating(d)]
            rows.append({"field": field, "relation": "in", "set": allowed})
    return rows


def _ruled_by(contract: Contract, facts: dict[str, Any]) -> set[str]:
    """Fields with the dtypes of tensors that facts of their own rule."""
    names = [p["name"] for p in contract["params"] if p["kind"] == "tensor"]
    caches = {f"{n}.dtype" for n in names if n.endswith("cache")} if facts.get("supports_kv_cache_dtypes") else set()
    return caches | ({"attn_mask.dtype"} if facts.get("supported_attn_mask_types") else set())


def _plain(value: Any) -> Any:
    """A fact as JSON has it: sets and tuples as lists, dtypes by name."""
    if isinstance(value, set | frozenset):
        return sorted(_plain(v) for v in value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return dtype_name(value) if type(value).__name__ == "dtype" else value


def _is_floating(dtype: str) -> bool:
    return "float" in dtype


def _taken(name: str, function: Callable[..., Any]) -> dict[str, str]:
    """The contract's parameters that the function takes, and layout, each with the function's name for it."""
    parameters = inspect.signature(function).parameters
    known = host_parameter_names(name)
    can_be = (*known, "layout") if contracts()[name]["layouts"] else known
    free = {own: full for own, full in _SHORT.items() if own not in known and full not in parameters}
    short = {own: full for own, full in free.items() if full in known}
    named = {short.get(own, own): own for own, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    unknown = [
        own for full, own in named.items() if full not in can_be and parameters[own].default is inspect.Parameter.empty
    ]
    if unknown:
        raise TypeError(
            f"{function.__name__}: wanted parameters of {name} ({', '.join(known)}), got {', '.join(unknown)}"
        )
    taken = {full: own for full, own in named.items() if full in can_be}
    return taken if len(named) == len(parameters) else {full: full for full in known} | taken


def _adapter(
    name: str, function: Callable[..., Any], taken: dict[str, str], accepted: tuple[str, ...]
) -> Callable[..., Any]:
    contract = contracts()[name]
    layouts = contract["layouts"]
    names = (*host_parameter_names(name), "layout") if layouts else host_parameter_names(name)

    def run(given: dict[str, Any]) -> Any:
        return function(**{own: given[full] for full, own in taken.items()})

    @functools.wraps(function)
    def call(*values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        if not layouts or given["layout"] in accepted:
            return run(given)
        target = layouts[accepted[0]]
        order = [layouts[given["layout"]][target.index(axis)] for axis in range(len(target))]
        for param in contract["params"]:
            if param.get("layout") and given[param["name"]] is not None:
                given[param["name"]] = given[param["name"]].permute(order)
        inverse = [order.index(axis) for axis in range(len(order))]
        results = run(given | {"layout": accepted[0]})
        outputs = results if isinstance(results, tuple) else (results,)
        turned = tuple(
            t.permute(inverse) if o["layout"] else t for t, o in zip(outputs, contract["outputs"], strict=False)
        )
        return turned if isinstance(results, tuple) else turned[0]

    return call


def dtype_name(dtype: Any) -> str:
    """ "bfloat16" for torch.bfloat16 and for its name."""
    return str(dtype).removeprefix("torch.")
