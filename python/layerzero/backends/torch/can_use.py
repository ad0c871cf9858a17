"""Torch's choice of an attention backend for one call, and its reasons against the others."""

import re
import warnings

import torch
from torch.backends import cuda

from layerzero.backends.torch.attention import four_axes, heads_first

_CHECKS = {
    "flash": cuda.can_use_flash_attention,
    "efficient": cuda.can_use_efficient_attention,
    "cudnn": cuda.can_use_cudnn_attention,
}
_PLACE = re.compile(r" \(Triggered internally at .*\)\s*$", re.DOTALL)


def _refusal(check, params):
    """Returns torch's reasons against a backend, empty if it may run; torch emits them as warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if check(params, True):
            return ""
    return " ".join(_PLACE.sub("", str(w.message)) for w in caught) or "no reason given"


def notes(query, key, value, causal, attn_mask, dropout_p, layout):
    """Returns a line for the backend that scaled_dot_product_attention chooses, and one for each that it cannot use."""
    q, k, v = heads_first(layout, query, key, value)
    mask, grouped = four_axes(attn_mask), q.shape[1] != k.shape[1]
    is_causal = causal and q.shape[2] > 1
    number = torch._fused_sdp_choice(q, k, v, mask, dropout_p, is_causal, enable_gqa=grouped)
    chosen = torch.nn.attention.SDPBackend(number).name.lower()
    params = cuda.SDPAParams(q, k, v, mask, dropout_p, is_causal, grouped)
    refusals = ((name, _refusal(check, params)) for name, check in _CHECKS.items())
    return [f"torch chooses {chosen}", *(f"torch refuses {name}: {why}" for name, why in refusals if why)]
