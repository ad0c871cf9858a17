"""Torch reference of quantize.swizzle: any device."""

import torch


def reference(scale):
    rows, columns = scale.shape[-2:]
    lead = scale.shape[:-2]
    codes = torch.nn.functional.pad(scale.view(torch.uint8), (0, -columns % 4, 0, -rows % 128))
    tiles = codes.reshape(*lead, (rows + 127) // 128, 4, 32, (columns + 3) // 4, 4)
    n = len(lead)
    order = [*range(n), n, n + 3, n + 2, n + 1, n + 4]
    size = (rows + 127) // 128 * ((columns + 3) // 4) * 512
    return tiles.permute(order).reshape(*lead, size).view(scale.dtype)
