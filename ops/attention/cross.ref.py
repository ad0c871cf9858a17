"""Torch reference of attention.cross.{prefill,decode}: any device, differentiable; (b, s, h, d) tensors."""

import importlib.util
import pathlib

_spec = importlib.util.spec_from_file_location(
    "layerzero_ops_common_attention", pathlib.Path(__file__).parents[1] / "common" / "attention.py"
)
_attention = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_attention)


def reference(
    query, key, value, *, scale=None, attn_mask=None, dropout_p=0.0, softcap=None, sinks=None, return_lse=False
):
    if dropout_p:
        raise NotImplementedError(f"dropout_p: wanted 0, for a formula draws no random numbers, got {dropout_p}")
    how = {"causal": False, "scale": scale, "softcap": softcap, "sinks": sinks}
    return _attention.dense(query, key, value, attn_mask, lse=return_lse, **how)
