"""Torch reference of quantize: any device; float32 arithmetic as in the definition."""

import torch

from ..common import quant as _quant


def _make_scale(x, dtype, counts, rule, tensor_scale):
    low, high = _quant.block_range(x, counts)
    amax = torch.maximum(low.abs(), high.abs())
    if dtype == "nvfp4":
        if tensor_scale.numel() > 1:
            tensor_scale = tensor_scale.expand(counts)
        return _quant.nvfp4_scale(amax, 1.0 / tensor_scale)
    if dtype in _quant.GROUPS:
        return _quant.e8m0_scale(amax, dtype, rule).view(torch.float8_e8m0fnu)
    return _quant.f32_scale(amax, dtype)


def reference(
    input, dtype, scale=None, *, axis=None, group_size=0, block_rows=1, zero_point=None, tensor_scale=None,
    scale_rule="ceil",
):  # fmt: skip
    x = input.float()
    if tensor_scale is not None and tensor_scale.numel() == 1:
        tensor_scale = tensor_scale.reshape(())
    made = scale
    if scale is None:
        counts = _quant.block_counts(x.shape, axis, block_rows, _quant.GROUPS.get(dtype, group_size))
        made = _make_scale(x, dtype, counts, scale_rule, tensor_scale)
    spread = _quant.expand(_quant.scale_values(made), x.shape, axis)
    if zero_point is not None:
        zero_point = _quant.expand(zero_point, x.shape, axis)
    values = _quant.store(_quant.codes(x, dtype, spread, zero_point, tensor_scale), dtype)
    return values if scale is not None else (values, made)
