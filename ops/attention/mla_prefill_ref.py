"""Torch reference of attention.mla.prefill: any device, differentiable; (b, s, h, d) tensors."""

import torch

from ..common import attention as _attention


def reference(q_nope, q_pe, k_nope, k_pe, value, *, causal=True, sm_scale=None, return_lse=False):
    query = torch.cat([q_nope, q_pe], -1)
    key = torch.cat([k_nope, k_pe.expand(-1, -1, k_nope.shape[2], -1)], -1)
    return _attention.dense(query, key, value, causal=causal, scale=sm_scale, lse=return_lse)
