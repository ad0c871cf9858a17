"""Torch reference of attention.cross.{prefill,decode}.paged: any device, differentiable; one sequence at a time."""

import torch

from ..common import attention as _attention


def reference(
    query, paged_k_cache, paged_v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale=None, *, softcap=None,
    sinks=None, k_scale=None, v_scale=None, return_lse=False,
):  # fmt: skip
    _, s_q, h_q, _ = query.shape
    lists = _attention.page_lists(kv_indptr, kv_indices, kv_last_page_len, paged_k_cache.shape[1])
    out = [query.new_zeros(0, s_q, h_q, paged_v_cache.shape[-1])]
    lses = [query.new_zeros(0, h_q, s_q, dtype=torch.float32)]
    how = {"softcap": softcap, "sinks": sinks, "k_scale": k_scale, "v_scale": v_scale}
    for s, (pages, length) in enumerate(lists):
        k, v = _attention.entries((paged_k_cache, paged_v_cache), pages, length, s_q, None)
        one, lse = _attention.rows(query[s], k, v, scale=sm_scale, **how)
        out.append(one[None].to(query.dtype))
        lses.append(lse.transpose(0, 1)[None].float())
    return (torch.cat(out), torch.cat(lses)) if return_lse else torch.cat(out)
