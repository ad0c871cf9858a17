"""Torch reference of attention.{standard,gqa}.decode.paged: any device, differentiable; one sequence at a time."""

from ..common import attention as _attention


def reference(
    q, paged_k_cache, paged_v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale=None, *, window_left=-1,
    softcap=None, sinks=None, alibi_slopes=None, k_scale=None, v_scale=None, return_lse=False,
):  # fmt: skip
    window = _attention.window_of(window_left)
    lists = _attention.page_lists(kv_indptr, kv_indices, kv_last_page_len, paged_k_cache.shape[1])
    how = {"softcap": softcap, "sinks": sinks, "slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale}
    parts = []
    for s, (pages, length) in enumerate(lists):
        k, v = _attention.entries((paged_k_cache, paged_v_cache), pages, length, 1, window)
        parts.append(_attention.rows(q[s : s + 1], k, v, scale=sm_scale, **how))
    return _attention.packed(parts, q, 0, paged_v_cache.shape[-1], return_lse)
