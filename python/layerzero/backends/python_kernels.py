"""`@lz.register_kernel` registers a Python function as a kernel, `unregister_kernel` removes it."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Collection
from types import CodeType
from typing import Any, TypeVar

from layerzero import backends
from layerzero.contracts import Contract, contracts, flat_name, host_parameter_names
from layerzero.contracts.axes import call_permuted
from layerzero.errors import InvalidRequestError, UnknownNameError, WrongTypeError
from layerzero.host.typed import typed

F = TypeVar("F", bound=Callable[..., Any])
_DEFAULT_LAYOUTS = ("BSHD",)  # where the operation has it, else its first one
_SHORT = {"q": "query", "k": "key", "v": "value"}  # short names that a function may use for the parameters of attention


@typed
def register_kernel(
    operation: str,
    kernel_id: str,
    *,
    supported_dtypes: Collection[Any],
    platform: str = "any",
    source: str | None = None,
    version: str | None = None,
    requires_layouts: Collection[str] = _DEFAULT_LAYOUTS,
    produces_layout: str | None = None,
    **facts: Any,
) -> Callable[[F], F]:
    """Registers the decorated function as a kernel of `operation` (an operation id, e.g. "norm.rms").

    The function is called with the parameters that it names (q, k and v are query, key and value), final scalars
    included, and with the layout if it names that. `facts` are the keys of a kernel in capabilities.json: min_sm,
    max_head_dim, priority, supports_causal ... as numbers, strings, lists, tuples or sets, dtypes as torch.dtype or by
    name; a key that this version does not implement is a ConfigError. What is not declared is unsupported, so the
    kernel is refused for a call with an optional parameter which the function does not name. `preferences` are the
    priorities of some calls, [{"when": [{"field": "rows", "relation": ">=", "operand": 1024}], "priority": 5}]: the first
    whose conditions all hold replaces `priority`. `supported_dtypes` applies
    to every floating-point tensor of a call, and to the first tensor whatever it is; a constraint on "<tensor>.dtype"
    overrides it for that tensor. `version`: by default a digest of the function's code, so that what a machine has learned
    of the kernel, its quarantine for example, ends when the code changes. Tensors are passed in one of `requires_layouts`; calls in another layout are permuted,
    and so are results: `produces_layout`, if given, is the one of `requires_layouts`.

    If the function raises, the operation's reference serves the call; for an operation that writes its inputs, only if
    the function raises `KernelRefusedError` before it has written anything.
    """

    name = flat_name(operation)
    origin = facts.pop("plugin_origin", "function")

    _check_layouts(name, requires_layouts)
    if any(not isinstance(row, dict) for row in facts.get("constraints") or ()):
        raise WrongTypeError("constraints", 'a list of {"field", "relation", ...}', repr(facts["constraints"])[:100])

    def decorate(function: F) -> F:
        taken = _taken(name, function)
        adapter = adapter_of(operation, kernel_id)
        contract = contracts()[name]
        layouts = list(contract["layouts"]) if contract["layouts"] else ["any"]
        dtypes = [dtype_name(d) for d in supported_dtypes]
        if produces_layout is not None and list(requires_layouts) != [produces_layout]:
            wanted = "the one layout of requires_layouts, in which results are expected"
            raise InvalidRequestError("produces_layout", wanted, repr(produces_layout), "leave it out")
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
            "backend_version": version or _digest(getattr(function, "__code__", None)),
            "platform": platform,
            "plugin_origin": origin,
            "ops": {operation: [row]},
        }
        accepted = tuple(n for n in requires_layouts if n in layouts) or tuple(
            layouts[:1]
        )  # none of them: the contract's first layout
        backends.add_function(adapter, _adapter(name, function, taken, accepted), descriptor)
        return function

    return decorate


def _check_layouts(name: str, given: Collection[str]) -> None:
    """Refuses a layout that the operation does not have: the function would get tensors in another one."""
    known = contracts()[name]["layouts"] or ("any",)
    wrong = [layout for layout in given if layout not in known]
    if wrong and given is not _DEFAULT_LAYOUTS:
        raise InvalidRequestError("requires_layouts", f"layouts of {name}: {', '.join(known)}", repr(wrong[0]))


def _digest(code: CodeType | None) -> str:
    """Returns the same for the same code in every process, without file and line; "0" for what has no code."""
    if code is None:
        return "0"
    parts: list[object] = [code.co_code, code.co_names, code.co_varnames]
    for constant in code.co_consts:
        of_code = isinstance(constant, CodeType)
        parts.append(
            _digest(constant)
            if of_code
            else sorted(map(repr, constant))
            if isinstance(constant, frozenset)
            else constant
        )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


@typed
def unregister_kernel(operation: str, kernel_id: str) -> None:
    """Undoes `register_kernel`: no later call uses the kernel, and its id is free. Running calls finish."""
    if not backends.remove_function(adapter_of(operation, kernel_id)):
        raise UnknownNameError(
            "kernel_id",
            f"a kernel of {operation} that register_kernel made",
            repr(kernel_id),
            'a policy denies others: rules: [{deny: ["<kernel id>"]}]',
        )


def adapter_of(operation: str, kernel_id: str) -> str:
    """Returns the name by which the engine requests the function."""
    return f"layerzero.register_kernel:{operation}/{kernel_id}"


def _dtype_rows(contract: Contract, named: list[str], taken: Collection[str], ruled: set[Any]) -> list[dict[str, Any]]:
    """Returns constraints on the tensors after the first: floating-point ones have one of the named dtypes.

    A tensor gets no constraint if `ruled` has one, if the contract ties its dtype to another tensor's, or if the
    contract admits none of the named dtypes (float32 slopes with bfloat16 heads)."""
    rows = []
    for param in [p for p in contract["params"] if p["kind"] == "tensor"][1:]:
        field = f"{param['name']}.dtype"
        absent = param["optional"] and param["name"] not in taken
        if absent or param["same_dtype_as"] or field in ruled or not any(map(_is_floating, param["dtypes"])):
            continue
        if not any(map(_is_floating, named)):
            got = ", ".join(named) or "none"
            raise InvalidRequestError(
                "supported_dtypes", f"the floating dtypes of {param['name']} too", got, "name them"
            )
        if set(named) & set(param["dtypes"]):
            allowed = [d for d in param["dtypes"] if d in named or not _is_floating(d)]
            rows.append({"field": field, "relation": "in", "set": allowed})
    return rows


def _ruled_by(contract: Contract, facts: dict[str, Any]) -> set[str]:
    """Returns the dtype fields that other keys of the descriptor constrain."""
    names = [p["name"] for p in contract["params"] if p["kind"] == "tensor"]
    caches = {f"{n}.dtype" for n in names if n.endswith("cache")} if facts.get("supports_kv_cache_dtypes") else set()
    return caches | ({"attn_mask.dtype"} if facts.get("supported_attn_mask_types") else set())


def _plain(value: Any) -> Any:
    """Returns a value as in JSON: sets and tuples as lists, dtypes by name, at any depth."""
    if isinstance(value, set | frozenset):
        return sorted(_plain(v) for v in value)
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return dtype_name(value) if type(value).__name__ == "dtype" else value


def _is_floating(dtype: str) -> bool:
    return "float" in dtype


def _taken(name: str, function: Callable[..., Any]) -> dict[str, str]:
    """Returns the contract's parameters that the function takes, and layout, each with the function's name for it."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise WrongTypeError("kernel", "a function whose parameters Python can read", str(error)) from None
    known = host_parameter_names(name)
    can_be = (*known, "layout") if contracts()[name]["layouts"] else known
    free = {own: full for own, full in _SHORT.items() if own not in known and full not in parameters}
    short = {own: full for own, full in free.items() if full in known}
    named = {short.get(own, own): own for own, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    unknown = [
        own for full, own in named.items() if full not in can_be and parameters[own].default is inspect.Parameter.empty
    ]
    if unknown:
        wanted = f"parameters of {name} ({', '.join(known)})"
        raise WrongTypeError(function.__name__, wanted, ", ".join(unknown))
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
        return call_permuted(contract, given | {"layout": accepted[0]}, order, run)

    return call


def dtype_name(dtype: Any) -> str:
    """Returns "bfloat16" for torch.bfloat16 and for its name."""
    return str(dtype).removeprefix("torch.")
