"""Torch reference of quantize.asymmetric: any device; float32 arithmetic as in the definition."""

import torch

from ..common import quant as _quant


def reference(input, dtype, *, axis=None, group_size=0, block_rows=1):
    x = input.float()
    low, high = _quant.block_range(x, _quant.block_counts(x.shape, axis, block_rows, group_size))
    qmin, qmax = _quant.RANGES[dtype]
    scale = torch.clamp((high - low) / x.new_tensor(qmax - qmin), min=_quant.LEAST)
    zero = (qmin - torch.round((low / scale).double())).clamp(qmin, qmax)
    zero_point = torch.where(scale.isnan(), 0, zero).to(torch.int32)
    spread = _quant.expand(scale, x.shape), _quant.expand(zero_point, x.shape)
    return _quant.store(_quant.codes(x, dtype, *spread), dtype), scale, zero_point
