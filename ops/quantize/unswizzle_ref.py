"""Torch reference of quantize.unswizzle: any device."""

import torch


def reference(scale, rows, columns):
    lead = scale.shape[:-1]
    tall, wide = (rows + 127) // 128, (columns + 3) // 4
    tiles = scale.view(torch.uint8).reshape(*lead, tall, wide, 32, 4, 4)
    n = len(lead)
    order = [*range(n), n, n + 3, n + 2, n + 1, n + 4]
    codes = tiles.permute(order).reshape(*lead, tall * 128, wide * 4)
    return codes[..., :rows, :columns].contiguous().view(scale.dtype)
