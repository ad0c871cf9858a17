"""GPTQ: qweight (k * bits / 32, n) int32, the first input row in the lowest bits; qzeros (groups, n * bits / 32);
scales (groups, n); g_idx (k), the group of each input row.

Two versions of checkpoints differ in qzeros: the older one stores each zero minus 1. A layer does not say which it has.
"""

from typing import Any

import torch
from torch import nn

from layerzero.integrations.weights import codes

_NAMES = ("qweight", "qzeros", "scales")


def read(layer: nn.Module) -> codes.Layout | str | None:
    found: list[Any] = [getattr(layer, name, None) for name in (*_NAMES, "g_idx")]
    if not all(isinstance(each, torch.Tensor) for each in found):
        return None
    qweight, qzeros, scales, indices = found
    k, (groups, n) = indices.numel(), scales.shape
    bits = 32 * qweight.shape[0] / k if k else 0
    if qweight.dtype != torch.int32 or qweight.shape[1:] != (n,) or qzeros.shape != (groups, n * bits // 32):
        return f"{type(layer).__name__}: its qweight {list(qweight.shape)} is not packed as a GPTQ checkpoint's"
    reason = codes.why_not_bits(bits) or codes.why_not_this_machine()
    if not reason and (
        k % groups or not torch.equal(indices.long(), torch.arange(k, device=indices.device) // (k // groups))
    ):
        reason = "its groups are not of adjacent rows (desc_act)"
    if not reason and scales.dtype not in codes.FLOATS:
        reason = f"its scales are {scales.dtype}"
    if reason:
        return f"{type(layer).__name__}: {reason}"
    own = getattr(layer, "dequantize_weight", None)  # of gptqmodel's layer for any device: (k, n)
    return codes.Layout(
        "GPTQ",
        f"{bits:g} bits by {k // groups}",
        lambda: tuple(getattr(layer, name) for name in _NAMES),
        lambda: _unpack(layer, int(bits)),
        None if own is None else lambda: own().t(),
    )


def _unpack(layer: nn.Module, bits: int) -> list[codes.QuantizedWeight]:
    qweight, qzeros, scales = (getattr(layer, name).detach() for name in _NAMES)
    words, n = qweight.shape
    packed = qweight.contiguous().view(torch.uint8).reshape(words, n, 4)  # bytes of a word are of adjacent input rows
    packed = packed.transpose(0, 1).reshape(n, words * 4).contiguous()
    stored = codes.columns_of_words(qzeros, bits).t()
    factors = scales.t().contiguous()
    return [codes.unsigned(packed, bits, factors, stored.int() + offset) for offset in (0, 1)]
