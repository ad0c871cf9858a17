"""The operations' torch references (ops/<path>_ref.py), imported on first use."""

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

from layerzero.contracts import contracts, host_parameter_names, parameter_names
from layerzero.contracts.axes import call_permuted
from layerzero.contracts.shapes import promotion
from layerzero.errors import InvalidRequestError, KernelExecutionError
from layerzero.host.policy import is_strict

PACKAGE = "layerzero._reference"  # the folder ops


@functools.cache
def reference_function(name: str) -> Callable[..., Any]:
    """Returns the function `reference` of an operation by flat name; its tensors have the contract's order of axes."""
    return importlib.import_module(f"{PACKAGE}.{contracts()[name]['path'].replace('/', '.')}_ref").reference


def reference_helpers(name: str) -> Any:
    """Returns the module ops/common/<name>.py, whose functions several references share."""
    return importlib.import_module(f"{PACKAGE}.common.{name}")


@functools.cache
def _keywords(name: str) -> tuple[frozenset[str], bool]:
    """Returns the reference's keyword arguments, and whether it handles layouts itself."""
    import inspect

    taken = frozenset(inspect.signature(reference_function(name)).parameters)
    return taken, "layout" in taken


def knows_strict_mode(name: str) -> bool:
    """True if the reference computes something else in strict mode."""
    return "strict" in _keywords(name)[0]


# The message of a reference that refuses: a ValueError for values inside a tensor, NotImplementedError for an argument.
_REFUSAL = re.compile(r"(?P<parameter>\w+): wanted (?P<wanted>.+), got (?P<got>.+)", re.DOTALL)
# The message of torch for an invalid index.
_OUTSIDE = re.compile(r"index.* out of (bounds|range)")
_INSIDE = "indices within the bounds of the tensors that they index"


def call_reference(name: str, arguments: dict[str, Any], layout: str | None = None) -> Any:
    """Calls the reference of `name` with arguments by name (None: not given) and tensors in `layout`."""
    try:
        return _call(name, arguments, layout)
    except (ValueError, NotImplementedError) as error:
        refusal = _REFUSAL.fullmatch(str(error))
        if refusal is None or refusal["parameter"] not in parameter_names(name):
            raise  # not a message of the reference: a bug
        kind = KernelExecutionError if isinstance(error, ValueError) else InvalidRequestError
        raise kind(f"{name}: {refusal['parameter']}", refusal["wanted"], refusal["got"]) from error
    except IndexError as error:
        if not _OUTSIDE.match(str(error)):
            raise
        raise KernelExecutionError(name, _INSIDE, f"'{error}'") from error
    except RuntimeError as error:
        if "indexing axis dim should be positive" in str(error):
            raise KernelExecutionError(name, _INSIDE, f"'{error}'") from error
        if "at::autocast" not in str(error):
            raise
        fix = "convert them to its dtype or float32, or call under torch.autocast(..., enabled=False)"
        raise InvalidRequestError(name, "tensors in dtypes that torch's autocast can mix", f"'{error}'", fix) from error


def _call(name: str, arguments: dict[str, Any], layout: str | None) -> Any:
    function = reference_function(name)
    contract = contracts()[name]
    taken, knows_layout = _keywords(name)
    given = {key: value for key, value in arguments.items() if value is not None or key in taken}
    if "strict" in taken:
        given["strict"] = is_strict()
    promoted = promotion(contract, arguments)
    if promoted is not None:
        names, dtype = promoted
        given.update({name: given[name].to(dtype) for name in names if given.get(name) is not None})
    order = contract["layouts"].get(layout) if layout is not None else None
    if order is None or order == sorted(order):
        return function(**given)
    if knows_layout:
        return function(**given, layout=layout)
    return call_permuted(contract, given, order, lambda permuted: function(**permuted))


@functools.cache
def host_kernel(name: str) -> Callable[..., Any]:
    """Returns the reference as a host kernel: all parameters by position, then the layout if the contract has any."""
    names = host_parameter_names(name)
    has_layouts = bool(contracts()[name]["layouts"])

    def run(*values: Any) -> Any:
        layout = values[-1] if has_layouts else None
        return call_reference(name, dict(zip(names, values, strict=False)), layout)

    run.__name__ = f"{name}_reference"
    return run
