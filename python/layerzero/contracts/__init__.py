"""The operations' contracts, read from the engine on first use."""

import functools
import json
from typing import Any

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, UnknownNameError, did_you_mean

Contract = dict[str, Any]


@functools.cache
def contracts() -> dict[str, Contract]:
    """Maps flat names to contracts."""
    return {contract["name"]: contract for contract in json.loads(_layerzero.contracts())}


def condition(contract: Contract) -> str | None:
    """Returns the name of the boolean or optional tensor on which outputs of the contract depend."""
    return next((output["only_if"].removeprefix("!") for output in contract["outputs"] if output["only_if"]), None)


def present_outputs(contract: Contract, value: Any) -> list[dict[str, Any]]:
    """Returns the outputs of a call whose condition() has this value."""
    return [o for o in contract["outputs"] if not o["only_if"] or is_set(value) != o["only_if"].startswith("!")]


def is_set(value: Any) -> bool:
    """True if a condition()'s value is True or a tensor."""
    return value is not None and value is not False


def has_whole_outputs(contract: Contract) -> bool:
    """True if all outputs of a call are integers, so that no gradient can be lost."""
    kinds = [o["dtype"] in ("int64", "int32", "bool") and not o["dtype_choice"] for o in contract["outputs"]]
    return bool(kinds) and all(kinds)


def no_derivative(contract: Contract) -> str:
    """Returns the reason for which an operation has no derivative."""
    if has_whole_outputs(contract):
        return "its results are integers"
    if any(p.get("mutated") for p in contract["params"]):
        return "it writes into its arguments"
    return "it works on quantized or packed values"


def is_seeded(contract: Contract) -> bool:
    """True if the operation draws random numbers: it has `seed`, `offset`, `uniform` and, in Python, generator=."""
    return any(p["name"] == "seed" and p["kind"] == "int" for p in contract["params"])


@functools.cache
def parameter_names(name: str) -> tuple[str, ...]:
    return tuple(param["name"] for param in contracts()[name]["params"])


@functools.cache
def host_parameter_names(name: str) -> tuple[str, ...]:
    """Returns the positional parameters of a Python kernel: all but a last optional size that repeats an axis."""
    return tuple(p["name"] for p in contracts()[name]["params"] if not (p.get("folds") and p["optional"]))


def flat_name(operation: Any) -> str:
    """Returns the flat name of an operation given as its callable, flat name, operation id or alias."""
    text = operation if isinstance(operation, str) else getattr(operation, "__name__", None)
    found = _layerzero.find(text) if isinstance(text, str) else None
    if found is None:
        names = [name for c in contracts().values() for name in (c["name"], *(o["id"] for o in c["operations"]))]
        near = did_you_mean(text, names) if isinstance(text, str) else ""
        raise UnknownNameError("operation", "a known operation", repr(text), near or "see `layerzero list`")
    return found


# Deprecated operation names that fix an argument of their contract.
_FIXED_BY_ALIAS: dict[str, dict[str, Any]] = {
    "attention.causal": {"causal": True},
    "attention.full": {"causal": False},
}


def operation_name(operation: Any, tensors: tuple[Any, ...], params: dict[str, Any]) -> str:
    """Returns the flat name of a call's operation. One deprecated name covers two forms of a paged cache: page lists,
    and block tables, which have the arguments of `paged_attention`."""
    if operation != "attention.paged":
        return flat_name(operation)
    tables = "paged_attention"
    only = set(parameter_names(tables)) - set(parameter_names(flat_name(operation)))
    fourth = tensors[3] if len(tensors) > 3 else None
    shape = fourth[1] if isinstance(fourth, tuple) else getattr(fourth, "shape", ())
    return tables if only & params.keys() or len(shape) == 2 else flat_name(operation)


def resolve_call(operation: Any, tensors: tuple[Any, ...], params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Returns the callable of an operation, and its parameters with those that a deprecated name implies."""
    name = operation_name(operation, tensors, params)
    if isinstance(operation, str) and operation in contracts()[flat_name(operation)]["aliases"]:
        import warnings

        fixed = _FIXED_BY_ALIAS.get(operation, {})
        text = "".join(f" with {key}={value}" for key, value in fixed.items())
        warnings.warn(f"{operation!r} is deprecated; use {name!r}{text}", DeprecationWarning, stacklevel=3)
        for key, value in fixed.items():
            if params.get(key, value) is not value:
                raise InvalidRequestError(
                    f"{operation}: {key}", f"{value}, which the name implies", str(params[key]), f"use {name!r}"
                )
        params = params | fixed
    return _layerzero.ops[name], params
