"""Torch reference of attention.mla.prefill: any device, differentiable; (b, s, h, d) tensors."""

import importlib.util
import pathlib

import torch

_spec = importlib.util.spec_from_file_location(
    "layerzero_ops_common_attention", pathlib.Path(__file__).parents[1] / "common" / "attention.py"
)
_attention = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_attention)


def reference(q_nope, q_pe, k_nope, k_pe, value, *, causal=True, sm_scale=None, return_lse=False):
    query = torch.cat([q_nope, q_pe], -1)
    key = torch.cat([k_nope, k_pe.expand(-1, -1, k_nope.shape[2], -1)], -1)
    return _attention.dense(query, key, value, causal=causal, scale=sm_scale, lse=return_lse)
