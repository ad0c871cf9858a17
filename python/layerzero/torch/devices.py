"""Devices that a caller names, checked before torch is asked for memory on them."""

import contextlib
from typing import Any

from layerzero.errors import UnknownNameError, WrongTypeError


def device_of(field: str, device: Any) -> Any:
    """Returns the torch.device that `device` names: the CPU, or a GPU that this process can use.

    WrongTypeError: it is no device; UnknownNameError: this process has none of that name.
    """
    import torch

    found, is_name = None, isinstance(device, (str, int, torch.device)) and not isinstance(device, bool)
    if is_name:
        with contextlib.suppress(RuntimeError):
            found = torch.device(device)
    if found is not None and found.type == "cpu":
        return found
    count = torch.cuda.device_count()
    if found is not None and found.type == "cuda" and (found.index or 0) < count:
        return found
    wanted = "one of " + ", ".join(["cpu", *(f"cuda:{number}" for number in range(count))])
    if not is_name:
        raise WrongTypeError(field, wanted, type(device).__name__)
    raise UnknownNameError(field, wanted, repr(str(device)), "see `layerzero doctor` for this machine's devices")
