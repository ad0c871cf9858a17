"""Torch reference of attention.{standard,gqa}.{prefill,decode}: any device, differentiable; (b, s, h, d) tensors."""

from ..common import attention as _attention


def reference(
    query, key, value, *, causal=None, scale=None, attn_mask=None, dropout_p=0.0, window=None, softcap=None,
    sinks=None, alibi_slopes=None, return_lse=False,
):  # fmt: skip
    if dropout_p:
        raise NotImplementedError(f"dropout_p: wanted 0, for a formula draws no random numbers, got {dropout_p}")
    causal = attn_mask is None if causal is None else causal
    if causal and attn_mask is not None:
        raise ValueError("attn_mask with causal=True: fold the causal triangle into the mask")
    how = {"causal": causal, "scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    return _attention.dense(query, key, value, attn_mask, slopes=alibi_slopes, lse=return_lse, **how)
