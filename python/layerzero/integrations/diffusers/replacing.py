"""How a module gets another forward, and why one may not; the comparison of two results."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from layerzero.integrations import modules

PREFIX = "_layerzero_"
_PART = "_layerzero_part"


class _Done(threading.local):
    """Calls that the operations answered in this thread, by operation."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {"attention": 0, "posenc.rope": 0}


done = _Done()


def replace(module: nn.Module, function: Callable[..., Any], part: dict[str, Any], **facts: Any) -> None:
    module.__dict__[_PART] = part
    for name, value in facts.items():
        module.__dict__[f"{PREFIX}{name}"] = value
    modules.bind(module, function)


def restore(module: nn.Module) -> None:
    if type(module.__dict__.get("forward")) is modules.Bound:
        del module.__dict__["forward"]
    modules.forget_copies(module)
    for name in [name for name in module.__dict__ if name.startswith(PREFIX)]:
        del module.__dict__[name]


def count(owner: Any) -> None:
    """Counts an answered call; one that is only being tried has no part."""
    part = owner.__dict__.get(_PART)
    if part is not None:
        part["calls"] += 1


def of_rows(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a module that takes tensors: `compute`, or the module's own code where that returns None, and for traces,
    gradients, autocast and tensors that are no plain ones.
    """

    @functools.wraps(compute)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling() and args:
            rows = args[0]
            if type(rows) is torch.Tensor and (rows.is_cpu or rows.is_cuda) and not _is_autocast(rows):
                result = compute(self, *args, **kwargs)
                if result is not None:
                    count(self)
                    return result
        return type(self).forward(self, *args, **kwargs)

    return forward


def _is_autocast(rows: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(rows.device.type)


def why_not_called(module: nn.Module) -> str | None:
    """None, or why a call of a module is more than its class's forward."""
    if any(module.__dict__.get(name) for name in modules.HOOKS):
        return "has forward or backward hooks"
    if "forward" in module.__dict__:
        return "its forward was replaced by something else"
    return "is parametrised" if getattr(module, "parametrizations", None) else None


def why_not_plain(module: nn.Module) -> str | None:
    """None, or why a module cannot be replaced whatever it computes."""
    reason = why_not_called(module)
    if reason is not None:
        return reason
    for name, parameter in module.named_parameters():
        if type(parameter) is not nn.Parameter:
            return f"{name} is a {type(parameter).__name__}, not a plain parameter"
        if parameter.is_meta:
            return f"{name} has no data yet (meta device)"
        if parameter.dtype not in modules.TOLERANCE:
            return f"{name} is {parameter.dtype}: no floating point kernel takes it"
    return None


def agrees(actual: Any, expected: Any) -> bool:
    """Whether two results, tensors or tuples of them, are the same within the dtype's rounding."""
    if isinstance(expected, tuple):
        return isinstance(actual, tuple) and len(actual) == len(expected) and all(map(agrees, actual, expected))
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return expected is None and actual is None
    return modules.agrees(actual, expected)


def normal(*shape: int, like: Any = None, seed: int = 7) -> torch.Tensor:
    """The same numbers each time, in the dtype and on the device of a parameter."""
    rows = modules.normal(*shape, seed=seed)
    return rows if like is None else rows.to(like.device, like.dtype)
