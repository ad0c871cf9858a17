"""Devices that a caller names, checked before torch is asked for memory on them."""

from typing import Any

from layerzero.errors import UnknownNameError, WrongTypeError


def device_of(field: str, device: Any) -> Any:
    """Returns the torch.device that `device` names: the CPU, or a GPU that this process can use.

    WrongTypeError: it is no device; UnknownNameError: this process has none of that name.
    """
    import torch

    count = torch.cuda.device_count()
    names = ", ".join(["cpu", *(f"cuda:{number}" for number in range(count))])
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        raise WrongTypeError(field, f"one of {names}", type(device).__name__)
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda") or (found.type == "cuda" and (found.index or 0) >= count):
        raise UnknownNameError(
            field, f"one of {names}", repr(str(device)), "`layerzero doctor` says why others are not"
        )
    return found
