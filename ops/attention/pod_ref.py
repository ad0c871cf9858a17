"""Torch reference of attention.{standard,gqa}.decode.pod: any device, differentiable; one sequence at a time."""

from itertools import pairwise

from ..common import attention as _attention


def reference(
    query_p, key_p, value_p, cu_seqlens_q, cu_seqlens_kv, query_d, paged_k_cache, paged_v_cache, kv_indptr,
    kv_indices, kv_last_page_len, sm_scale=None, *, causal=True, window_left=-1, softcap=None, sinks=None,
    return_lse=False,
):  # fmt: skip
    window = _attention.window_of(window_left)
    how = {"scale": sm_scale, "window": window, "softcap": softcap, "sinks": sinks}
    rows = _attention.offsets(cu_seqlens_q, query_p.shape[0], "cu_seqlens_q")
    keys = _attention.offsets(cu_seqlens_kv, key_p.shape[0], "cu_seqlens_kv")
    prefill = [
        _attention.rows(query_p[q0:q1], key_p[k0:k1], value_p[k0:k1], causal=causal, **how)
        for (q0, q1), (k0, k1) in zip(pairwise(rows), pairwise(keys), strict=True)
    ]
    decode = []
    lists = _attention.page_lists(kv_indptr, kv_indices, kv_last_page_len, paged_k_cache.shape[1])
    for s, (pages, length) in enumerate(lists):
        k, v = _attention.entries((paged_k_cache, paged_v_cache), pages, length, 1, window)
        decode.append(_attention.rows(query_d[s : s + 1], k, v, **how))
    d_v = value_p.shape[-1]
    out_p, lse_p = _attention.packed(prefill, query_p, query_p.shape[0] - rows[-1], d_v, True)
    out_d, lse_d = _attention.packed(decode, query_d, 0, d_v, True)
    return (out_p, out_d, lse_p, lse_d) if return_lse else (out_p, out_d)
