"""Merges of attention results with FlashInfer, and decode over a shared prefix by them. Its lse is to the base 2.

The natural logarithms of a call are multiplied by log2(e) first. The merged lse is a torch expression, because
FlashInfer's own loses a NaN of one part.
"""

import flashinfer
import torch

from layerzero.backends.flash_attn.packed import finished
from layerzero.backends.flashinfer.common import LN2, LOG2E
from layerzero.backends.flashinfer.compiled import compiled
from layerzero.backends.flashinfer.packed import paged_decode_attention
from layerzero.backends.torch.attention import positive_scale


def _merged(v_a, s_a, v_b, s_b):
    """The outputs of two parts, dense tensors, merged by their lse to the base 2 in float32."""
    merge = compiled("merge_state", v_a)
    if merge is None:
        return flashinfer.merge_state(v_a, s_a, v_b, s_b)[0]
    output = torch.empty_like(v_a)
    merge(v_a, s_a, v_b, s_b, output, torch.empty_like(s_a))
    return output


def merge_attention(v_a, s_a, v_b, s_b, sinks):
    return _merged(v_a, s_a * LOG2E, v_b, s_b * LOG2E), torch.logaddexp(s_a, s_b)


def merge_partials(partials, part_lse, row_sum, sinks, dtype):
    """Transposes for FlashInfer, which takes the rows before the parts: (n, splits, h, d)."""
    parts, sums = partials.transpose(0, 1).contiguous(), (part_lse.transpose(0, 1) * LOG2E).contiguous()
    merge = compiled("merge_states", parts)
    if merge is None:
        output, _ = flashinfer.merge_states(parts, sums)
    else:
        output = torch.empty_like(parts[:, 0], memory_format=torch.contiguous_format)
        merge(parts, sums, output, torch.empty_like(sums[:, 0], memory_format=torch.contiguous_format))
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
    output = _merged(prefix, prefix_lse, suffix, suffix_lse * LOG2E)
    return finished(output, torch.logaddexp(prefix_lse * LN2, suffix_lse), sinks, False)[0]
