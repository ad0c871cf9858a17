"""Merges of attention results with FlashInfer, and decode over a shared prefix by them. Its lse is to the base 2.

The natural logarithms of a call are multiplied by log2(e) first. The merged lse is a torch expression, because
FlashInfer's own loses a NaN of one part.
"""

import flashinfer
import torch

from layerzero.backends.flash_attn.packed import finished
from layerzero.backends.flashinfer.common import LN2, LOG2E
from layerzero.backends.flashinfer.packed import paged_decode_attention
from layerzero.backends.torch.attention import positive_scale


def merge_attention(v_a, s_a, v_b, s_b, sinks):
    output, _ = flashinfer.merge_state(v_a, s_a * LOG2E, v_b, s_b * LOG2E)
    return output, torch.logaddexp(s_a, s_b)


def merge_partials(partials, part_lse, row_sum, sinks, dtype):
    """Transposes for FlashInfer, which takes the rows before the parts: (n, splits, h, d)."""
    sums = part_lse.transpose(0, 1)
    output, _ = flashinfer.merge_states(partials.transpose(0, 1).contiguous(), (sums * LOG2E).contiguous())
    return output, torch.logsumexp(part_lse, 0)


def cascade_decode_attention(
    query, shared_k, shared_v, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, window_left, softcap, sinks,
    slopes, k_scale, v_scale, return_lse,
):  # fmt: skip
    """The queries of all sequences over the prefix as one prefill without causality, each over its pages, merged. The sum
    of the prefix's weights may be one of weights rounded to 16 bits: it is exact enough for the output, not as an lse."""
    suffix, suffix_lse = paged_decode_attention(
        query, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, -1, softcap, None, None, None, None, True
    )  # first: it refuses tables that are not known
    scaled, scale = positive_scale(query, sm_scale)
    prefix, prefix_lse = flashinfer.single_prefill_with_kv_cache(
        scaled,
        shared_k,
        shared_v,
        causal=False,
        kv_layout="NHD",
        sm_scale=scale,
        window_left=-1,
        logits_soft_cap=softcap or 0.0,
        return_lse=True,
    )
    output, _ = flashinfer.merge_state(prefix, prefix_lse, suffix, suffix_lse * LOG2E)
    return finished(output, torch.logaddexp(prefix_lse * LN2, suffix_lse), sinks, False)[0]
