"""Tables of position encodings: the published slopes of ALiBi."""

from typing import Any

from layerzero.errors import InvalidRequestError
from layerzero.host.typed import typed
from layerzero.torch.devices import device_of

_OTHER_DEVICES = ("hpu", "meta", "mps", "xpu")  # torch says where they are missing


@typed
def alibi_slopes(num_heads: int, *, dtype: Any = None, device: Any = None) -> Any:
    """Returns the slopes of arXiv:2108.12409 for `alibi_slopes=` and `lz.alibi`: a geometric sequence for powers of
    two, otherwise completed from the sequence for twice as many heads. Default: float32 on the CPU."""
    import torch

    if num_heads < 1:
        raise InvalidRequestError("alibi_slopes: num_heads", "at least one head", repr(num_heads))
    if device is not None and str(device).partition(":")[0] not in _OTHER_DEVICES:
        device = device_of("alibi_slopes: device", device)
    power = 1 << (max(num_heads, 1).bit_length() - 1)
    slopes = [2.0 ** (-8.0 * k / power) for k in range(1, min(power, num_heads) + 1)]
    slopes += [2.0 ** (-4.0 * k / power) for k in range(1, 2 * (num_heads - len(slopes)), 2)]
    return torch.tensor(slopes, dtype=dtype or torch.float32, device=device)
