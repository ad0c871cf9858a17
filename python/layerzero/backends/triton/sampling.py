"""Softmax over the vocabulary in Triton: a block for each row, which is read twice; a maximum and a sum in each lane."""

import torch
import triton
import triton.language as tl

from layerzero.backends.triton.launching import Kernel, are_aligned, power_of_two

BLOCK = 4096  # columns of a row that are read at once
COLDEST = 1e-37  # a lower temperature would be 0 in float32


@triton.jit
def _weight(x, top, temperature):
    """By halves, because a difference of finite values may be infinite."""
    return tl.exp((x * 0.5 - top * 0.5) / temperature * 2.0)


def _softmax(logits, output, temperature: tl.float32, width: tl.constexpr, block: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * width
    lanes = tl.arange(0, block)
    top = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    for start in range(0, width, block):
        columns = start + lanes
        x = tl.load(logits + first + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, x)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * _weight(top, base, temperature) + _weight(x, base, temperature)
        top = higher
    highest = tl.max(top, 0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    whole = tl.sum(total * _weight(top, base, temperature), 0)
    for start in range(0, width, block):
        columns = start + lanes
        x = tl.load(logits + first + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
        tl.store(output + first + columns, _weight(x, base, temperature) / whole, mask=columns < width)


_SOFTMAX = Kernel(_softmax)


def softmax(logits, temperature, row_temperature=None):
    output = torch.empty_like(logits, dtype=torch.float32)
    if logits.numel():
        width = logits.shape[-1]
        block = min(power_of_two(width), BLOCK)
        values = (logits, output, max(float(temperature), COLDEST))
        _SOFTMAX.run(
            logits.numel() // width,
            are_aligned(width, logits),
            *values,
            warps=max(min(block // 256, 8), 1),
            width=width,
            block=block,
        )
    return output
