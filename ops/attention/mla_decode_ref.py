"""Torch reference of attention.mla.decode: any device, differentiable."""

import torch

from ..common import attention as _attention


def reference(q_nope, q_pe, ckv, kpe, sm_scale, *, causal=False, return_lse=False):
    query = torch.cat([q_nope, q_pe], -1)
    ckv, kpe = (t.to(torch.promote_types(query.dtype, torch.float32)) for t in (ckv, kpe))
    part = _attention.rows(query, torch.cat([ckv, kpe], -1), ckv, scale=sm_scale, causal=causal)
    return _attention.packed([part], query, 0, ckv.shape[-1], return_lse)
