"""Torch reference of attention.{standard,gqa}.decode.cascade: any device, differentiable; one sequence at a time."""

import torch

from ..common import attention as _attention


def reference(
    query, shared_k, shared_v, paged_k_cache, paged_v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale=None,
    *, window_left=-1, softcap=None, sinks=None, alibi_slopes=None, k_scale=None, v_scale=None, return_lse=False,
):  # fmt: skip
    window = _attention.window_of(window_left)
    lists = _attention.page_lists(kv_indptr, kv_indices, kv_last_page_len, paged_k_cache.shape[1])
    how = {"window": window, "softcap": softcap, "sinks": sinks, "slopes": alibi_slopes}
    how |= {"k_scale": k_scale, "v_scale": v_scale}
    parts = []
    for s, (pages, length) in enumerate(lists):
        own = _attention.entries((paged_k_cache, paged_v_cache), pages, length, 1, window)
        cut = own[0].shape[0] < length  # the window begins in the pages: no key of the prefix is visible
        k, v = (o if cut else torch.cat([p, o]) for p, o in zip((shared_k, shared_v), own, strict=True))
        parts.append(_attention.rows(query[s : s + 1], k, v, scale=sm_scale, **how))
    return _attention.packed(parts, query, 0, paged_v_cache.shape[-1], return_lse)
