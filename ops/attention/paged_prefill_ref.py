"""Torch reference of attention.{standard,gqa}.prefill.paged: any device, differentiable; one sequence at a time."""

from itertools import pairwise

from ..common import attention as _attention


def reference(
    query, paged_k_cache, paged_v_cache, qo_indptr, kv_indptr, kv_indices, kv_last_page_len, sm_scale=None, *,
    causal=True, window_left=-1, softcap=None, sinks=None, alibi_slopes=None, k_scale=None, v_scale=None,
    return_lse=False,
):  # fmt: skip
    window = _attention.window_of(window_left)
    rows = _attention.offsets(qo_indptr, query.shape[0], "qo_indptr")
    lists = _attention.page_lists(kv_indptr, kv_indices, kv_last_page_len, paged_k_cache.shape[1])
    how = {"causal": causal, "window": window, "softcap": softcap, "sinks": sinks, "slopes": alibi_slopes}
    how |= {"k_scale": k_scale, "v_scale": v_scale}
    parts = []
    for (first, end), (pages, length) in zip(pairwise(rows), lists, strict=True):
        k, v = _attention.entries((paged_k_cache, paged_v_cache), pages, length, end - first, window)
        parts.append(_attention.rows(query[first:end], k, v, scale=sm_scale, **how))
    return _attention.packed(parts, query, query.shape[0] - rows[-1], paged_v_cache.shape[-1], return_lse)
