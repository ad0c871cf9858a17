"""Torch reference of attention.cross.{prefill,decode}: any device, differentiable; (b, s, h, d) tensors."""

from ..common import attention as _attention


def reference(
    query, key, value, *, scale=None, attn_mask=None, dropout_p=0.0, softcap=None, sinks=None, return_lse=False
):
    if dropout_p:
        raise NotImplementedError(f"dropout_p: wanted 0, for a formula draws no random numbers, got {dropout_p}")
    how = {"causal": False, "scale": scale, "softcap": softcap, "sinks": sinks}
    return _attention.dense(query, key, value, attn_mask, lse=return_lse, **how)
