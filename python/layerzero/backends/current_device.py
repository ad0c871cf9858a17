"""Makes the device of a call's tensors the current one: libraries launch and make handles on the current device, which stays
the first one where a model's layers are on several (device_map="auto"). Own kernels and torch's functions see to that
themselves."""

import functools
import sys
from collections.abc import Callable
from typing import Any


def on_device_of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, which takes its tensors by position, on their device; as it is where only one can be current."""
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.device_count() < 2:
        return function
    guarded = _guarded(torch, function)
    plan = getattr(function, "before_capture", None)
    if plan is not None:
        guarded.before_capture = _guarded(torch, plan)  # type: ignore[attr-defined]
    return guarded


def _guarded(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    tensor, current, device = torch.Tensor, torch.cuda.current_device, torch.cuda.device

    @functools.wraps(function)
    def guarded(*values: Any) -> Any:
        for value in values:
            if isinstance(value, tensor) and value.is_cuda:
                number = value.get_device()
                if number == current():
                    break
                with device(number):
                    return function(*values)
        return function(*values)

    return guarded
