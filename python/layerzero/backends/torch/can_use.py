"""What torch says about its attention backends for one call: the one that it chooses, and why not the others."""

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
    """torch's reasons against a backend, empty where it may run; torch gives them as warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if check(params, True):
            return ""
    return " ".join(_PLACE.sub("", str(w.message)) for w in caught) or "no reason given"


def notes(query, key, value, causal, attn_mask, dropout_p, layout):
    """A line for the backend that torch.nn.functional.scaled_dot_product_attention chooses, one for each that it cannot."""
    q, k, v = heads_first(layout, query, key, value)
    mask, grouped = four_axes(attn_mask), q.shape[1] != k.shape[1]
    is_causal = causal and q.shape[2] > 1
    number = torch._fused_sdp_choice(q, k, v, mask, dropout_p, is_causal, enable_gqa=grouped)
    chosen = torch.nn.attention.SDPBackend(number).name.lower()
    params = cuda.SDPAParams(q, k, v, mask, dropout_p, is_causal, grouped)
    refusals = ((name, _refusal(check, params)) for name, check in _CHECKS.items())
    return [f"torch chooses {chosen}", *(f"torch refuses {name}: {why}" for name, why in refusals if why)]
