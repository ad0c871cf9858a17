"""Merges of attention results with FlashInfer, whose lse is a logarithm to the base 2.

The natural logarithms of a call are multiplied by log2(e) first. The merged lse is a torch expression, because
FlashInfer's own loses a NaN of one part.
"""

import flashinfer
import torch

from layerzero.backends.flashinfer.common import LOG2E


def merge_attention(v_a, s_a, v_b, s_b, sinks):
    output, _ = flashinfer.merge_state(v_a, s_a * LOG2E, v_b, s_b * LOG2E)
    return output, torch.logaddexp(s_a, s_b)


def merge_partials(partials, part_lse, row_sum, sinks, dtype):
    """Transposes for FlashInfer, which takes the rows before the parts: (n, splits, h, d)."""
    sums = part_lse.transpose(0, 1)
    output, _ = flashinfer.merge_states(partials.transpose(0, 1).contiguous(), (sums * LOG2E).contiguous())
    return output, torch.logsumexp(part_lse, 0)
