"""Torch reference of attention.mla.decode.paged: any device, differentiable; one sequence at a time."""

import torch

from ..common import attention as _attention


def reference(
    q_nope, q_pe, ckv_cache, kpe_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale, *, return_lse=False
):
    query = torch.cat([q_nope, q_pe], -1)
    lists = _attention.page_lists(kv_indptr, kv_indices, kv_last_page_len, ckv_cache.shape[1])
    compute = torch.promote_types(q_nope.dtype, torch.float32)
    parts = []
    for s, (pages, length) in enumerate(lists):
        ckv, kpe = (t.to(compute) for t in _attention.entries((ckv_cache, kpe_cache), pages, length, 1, None))
        key = torch.cat([ckv, kpe], -1).unsqueeze(1)
        parts.append(_attention.rows(query[s : s + 1], key, ckv.unsqueeze(1), scale=sm_scale))
    return _attention.packed(parts, query, 0, ckv_cache.shape[-1], return_lse)
