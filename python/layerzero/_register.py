"""`@lz.register_kernel`: a Python function becomes a kernel."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from layerzero import backends
from layerzero._contracts import contracts, flat_name, parameter_names


def register_kernel(
    operation: str,
    kernel_id: str,
    *,
    supported_dtypes: Sequence[str],
    platform: str = "any",
    source: str | None = None,
    version: str = "0",
    requires_layouts: Sequence[str] = ("BSHD",),
    **facts: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function as a kernel of `operation` (an operation id, e.g. "norm.rms").

    The function is called with the parameters that it names, final scalars included. `facts` are keys of
    capabilities.json: min_sm, max_head_dim, priority, supports_causal ... What is not stated is unsupported, so a call
    that gives an optional parameter which the function does not name is not for it. Tensors arrive in one of
    `requires_layouts`; calls in another layout are permuted.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = flat_name(operation)
        taken = _taken(name, function)
        adapter = f"layerzero.register_kernel:{operation}/{kernel_id}"
        contract = contracts()[name]
        layouts = list(contract["layouts"]) if contract["layouts"] else ["any"]
        row = {
            "kernel_id": kernel_id,
            "adapter": adapter,
            "dtypes": [_dtype_name(d) for d in supported_dtypes],
            "requires_layouts": layouts,
            "accepts": [p["name"] for p in contract["params"] if p["name"] in taken and p["optional"]],
            "requires_contiguous": False,
            "requires_last_dim_stride1": False,
            **facts,
        }
        row["accepts"] += [p["name"] for p in contract["params"] if p["name"] in taken and p.get("has_default")]
        backends.add_function(adapter, _adapter(name, function, taken, tuple(requires_layouts)))
        backends.register(
            {
                "schema_version": "1.0",
                "backend": source or kernel_id.split(".")[0],
                "backend_version": version,
                "platform": platform,
                "ops": {operation: [row]},
            }
        )
        return function

    return decorate


def _taken(name: str, function: Callable[..., Any]) -> frozenset[str]:
    """The contract's parameters that the function takes by name."""
    parameters = inspect.signature(function).parameters
    known = parameter_names(name)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return frozenset(known)
    unknown = [n for n, p in parameters.items() if n not in known and n != "layout" and p.default is p.empty]
    if unknown:
        raise TypeError(
            f"{function.__name__}: wanted parameters of {name} ({', '.join(known)}), got {', '.join(unknown)}"
        )
    return frozenset(parameters) & frozenset(known)


def _adapter(
    name: str, function: Callable[..., Any], taken: frozenset[str], accepted: tuple[str, ...]
) -> Callable[..., Any]:
    names = parameter_names(name)
    contract = contracts()[name]
    layouts = contract["layouts"]

    @functools.wraps(function)
    def call(*values: Any) -> Any:
        given = {n: v for n, v in zip(names, values, strict=False) if n in taken}
        if not layouts or values[-1] in accepted:
            return function(**given)
        target = layouts[accepted[0]]
        order = [layouts[values[-1]][target.index(axis)] for axis in range(len(target))]
        for param in contract["params"]:
            if param.get("layout") and given.get(param["name"]) is not None:
                given[param["name"]] = given[param["name"]].permute(order)
        inverse = [order.index(axis) for axis in range(len(order))]
        results = function(**given)
        outputs = results if isinstance(results, tuple) else (results,)
        turned = tuple(
            t.permute(inverse) if o["layout"] else t for t, o in zip(outputs, contract["outputs"], strict=False)
        )
        return turned if isinstance(results, tuple) else turned[0]

    return call


def _dtype_name(dtype: Any) -> str:
    """ "bfloat16" for torch.bfloat16 and for its name."""
    return str(dtype).removeprefix("torch.")
