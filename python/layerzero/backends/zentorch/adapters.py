"""zentorch's operators as kernels; each takes its operation's parameters in the contract's order."""

import torch
import zentorch  # noqa: F401  # registers torch.ops.zentorch

from layerzero.backends.torch.attention import additive, attend

ops = torch.ops.zentorch


def rms_norm(input, weight, eps, weight_offset=None):
    if not input.numel():
        return torch.empty_like(input)
    rows = input.view(-1, input.shape[-1])
    gain = rows.new_ones(rows.shape[-1]) if weight is None else weight
    return ops.zentorch_rms_norm(rows, gain, eps).view(input.shape)


def _sdpa(q, k, v, mask, causal, scale):
    if not q.numel():
        return torch.empty_like(q)
    if mask is not None:
        mask = additive(q, k, mask).expand(*q.shape[:3], k.shape[2]).contiguous()
    return ops.zentorch_sdpa(q, k, v, is_causal=causal, attn_mask=mask, scale=scale)[0]


def sdpa(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    return attend(_sdpa, query, key, value, causal, scale, attn_mask, dropout_p, rest[-1])
