"""Calls that an operation would answer by torch's own function are made as torch's, without the operation around it.

On a CUDA device the function around one launch costs the host as much as the launch, and a small model's time is the host's.
What an operation would choose is asked once for a class of calls, and again after whatever can change it.
"""

from collections.abc import Callable
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.errors import LayerZeroError
from layerzero.host import policy
from layerzero.host.watching import watchers
from layerzero.inspection import explain_call

_MOST = 1024  # classes that are remembered: a program whose shapes never repeat must not fill memory
# Times that a class is asked about: where plans change all the time the operation chooses, as it does anyway.
_MOST_ASKED = 32
_known: dict[Any, tuple[Any, bool, int]] = {}  # class: (stamp of the plans, the answer, how often it was asked)


def is_launch_bound(rows: torch.Tensor) -> bool:
    """Whether a call on these rows is a launch, whose time on the host may be all of it."""
    return rows.is_cuda


def is_torchs(operation: str, kernels: str, shapes: tuple[Any, ...], call: Callable[[], tuple[Any, ...]]) -> bool:
    """Whether an operation would run a kernel whose name begins with `kernels`. shapes: of the class, hashable; call() returns
    (tensors, other arguments by name) of a call that is one of it. False while anything observes, records, compares or
    times the runs of kernels, and for an unknown class inside a capture, because asking may wait."""
    if watchers:
        return False
    key, stamp = (operation, *shapes), _layerzero.plans_stamp()
    known = _known.get(key)
    if known is not None and known[0] == stamp:
        return known[1]
    if policy.samples_runs():
        return False
    asked = 0 if known is None else known[2]
    if asked >= _MOST_ASKED or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return False
    if len(_known) >= _MOST:
        _known.clear()
    found = _kernel_of(operation, *call()).startswith(kernels)
    _known[key] = stamp, found, asked + 1
    return found


def _kernel_of(operation: str, tensors: tuple[Any, ...], given: dict[str, Any]) -> str:
    try:
        return explain_call(operation, tensors, given, of_chosen=True).kernel_id or ""
    except (LayerZeroError, RuntimeError, TypeError, ValueError):  # the call itself says so
        return ""
