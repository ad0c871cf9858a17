"""Torch reference of attention.{standard,gqa}.prefill.ragged: any device, differentiable; one sequence at a time."""

from itertools import pairwise

from ..common import attention as _attention


def reference(
    query, key, value, cu_seqlens_q, cu_seqlens_kv, *, causal=True, scale=None, window=None, softcap=None,
    sinks=None, alibi_slopes=None, max_seqlen_q=None, max_seqlen_kv=None, return_lse=False,
):  # fmt: skip
    offsets_q = _attention.offsets(cu_seqlens_q, query.shape[0], "cu_seqlens_q", max_seqlen_q)
    offsets_kv = _attention.offsets(cu_seqlens_kv, key.shape[0], "cu_seqlens_kv", max_seqlen_kv)
    how = {"causal": causal, "window": window, "softcap": softcap, "sinks": sinks, "slopes": alibi_slopes}
    parts = [
        _attention.rows(query[q0:q1], key[k0:k1], value[k0:k1], scale=scale, **how)
        for (q0, q1), (k0, k1) in zip(pairwise(offsets_q), pairwise(offsets_kv), strict=True)
    ]
    return _attention.packed(parts, query, query.shape[0] - offsets_q[-1], value.shape[-1], return_lse)
