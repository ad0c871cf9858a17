"""Torch reference of quantize.nvfp4: any device; float32 arithmetic as in the definition."""

import torch

from ..common import quant as _quant


def reference(input, *, per_row=False):
    x = input.float()
    outer = _quant.block_counts(x.shape, group_size=x.shape[-1] if per_row else 0)
    finite = torch.where(x.isfinite(), x, 0)
    low, high = _quant.block_range(finite, outer)
    encoding = _quant.nvfp4_encoding(torch.maximum(low.abs(), high.abs()))
    tensor_scale = 1.0 / encoding
    low, high = _quant.block_range(x, _quant.block_counts(x.shape, group_size=16))
    scale = _quant.nvfp4_scale(torch.maximum(low.abs(), high.abs()), encoding)
    spread = _quant.expand(scale.float(), x.shape)
    return _quant.store(_quant.codes(x, "nvfp4", spread, tensor_scale=tensor_scale), "nvfp4"), scale, tensor_scale
