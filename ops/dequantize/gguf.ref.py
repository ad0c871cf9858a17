"""Torch reference of dequantize.gguf: any device, float32 arithmetic."""

import torch

_BLOCK_BYTES = {"q4_0": 18, "q4_1": 20, "q8_0": 34}


def reference(data, columns, *, format, dtype="float32"):
    n = data.shape[0]
    blocks = data.reshape(n, columns // 32, _BLOCK_BYTES[format])

    def half(at):
        # Two bytes as one float16, whatever the blocks' alignment.
        return blocks[..., at : at + 2].contiguous().view(torch.float16).float()

    if format == "q8_0":
        values = half(0) * blocks[..., 2:].contiguous().view(torch.int8).float()
    else:
        codes = blocks[..., 2:] if format == "q4_0" else blocks[..., 4:]
        codes = torch.cat([codes & 15, codes >> 4], -1).float()
        values = half(0) * (codes - 8) if format == "q4_0" else half(0) * codes + half(2)
    return values.reshape(n, columns).to(getattr(torch, dtype))
