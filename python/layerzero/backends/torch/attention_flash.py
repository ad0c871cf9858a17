"""Windows, sinks, the lse and ALiBi with torch's FlashAttention 2; scaled_dot_product_attention has none of them.

aten._flash_attention_forward aligns causal triangles and windows bottom-right, as the operation does. Its lse has no
derivative; it is +inf for rows that see no key and for rows that are NaN. torch builds it without ALiBi.
"""

import torch
from torch.backends import cuda
from torch.nn import functional as F

from layerzero.backends.torch.attention import positive_scale
from layerzero.backends.torch.attention_matmul import attend

INF = float("inf")
EXTRA = 8  # extra columns of 16-bit elements, so that rows stay multiples of 16 bytes


def _forward(q, k, v, causal, scale, window):
    """Returns (output, lse) of (b, s, h, d) tensors; lse (b, h, s_q) in float32."""
    left, right = (None, None) if window is None else (window - 1, 0)
    lengths = (q.shape[1], k.shape[1])
    return torch.ops.aten._flash_attention_forward.default(
        q, k, v, None, None, *lengths, 0.0, causal, False, scale=scale, window_size_left=left, window_size_right=right
    )[:2]


def _windowed(k, v, s_q, window):
    """Returns the keys and values within a window, and the window, None if causality already hides as much."""
    reach = s_q + window - 1
    k, v = (k, v) if reach >= k.shape[1] else (k[:, -reach:], v[:, -reach:])
    return k, v, None if s_q == 1 or window >= k.shape[1] else window


def finite_or_nan(sums):
    """An lse with NaN, in place, where torch has +inf for a row that is NaN; rows without a key are the caller's."""
    return sums.masked_fill_(sums == INF, torch.nan)


def flash(query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, lse, layout):
    """Window, sinks, lse."""
    if not cuda.flash_sdp_enabled():
        return attend(query, key, value, causal, scale, None, window, None, sinks, None, lse, layout)
    query, scale = positive_scale(query, scale)
    q, k, v = (query, key, value) if layout == "BSHD" else (t.transpose(1, 2) for t in (query, key, value))
    if window is not None:
        causal = True  # a window ends at the row's own position
        k, v, window = _windowed(k, v, q.shape[1], window)
    output, found = _forward(q, k, v, bool(causal), scale, window)
    empty = q.shape[1] - k.shape[1] if causal else 0  # rows before the first key
    if sinks is not None:  # a sink is a key without a value: its share of the sum is removed from the output
        output.mul_(torch.sigmoid(found - sinks.float()[:, None]).transpose(1, 2).unsqueeze(-1))
        if empty > 0:
            output[:, :empty] = 0
    output = output if layout == "BSHD" else output.transpose(1, 2)
    if not lse:
        return output
    found = finite_or_nan(found)
    if empty > 0:
        found[..., :empty] = -INF
    return output, found


def cross_flash(query, key, value, scale, attn_mask, dropout_p, softcap, sinks, lse, layout):
    return flash(query, key, value, False, scale, None, 0.0, None, None, sinks, None, lse, layout)


def _slope_columns(slopes, scale, dtype):
    """Returns (h, 8): slope / scale as the sum of two 16-bit numbers, each twice, then zeros."""
    slopes = slopes.float() / scale
    high = slopes.to(dtype)
    low, zero = (slopes - high).to(dtype), torch.zeros_like(high)
    return torch.stack((high, high, low, low, *[zero] * 4), -1)


def _distance_columns(s_kv, dtype, device):
    """Returns (s_kv, 8): each key's negated distance to the last key, as a multiple of 256 and the rest, four times."""
    far = torch.arange(1 - s_kv, 1, device=device)
    rest = far.fmod(256)
    return torch.stack((far.sub_(rest), rest) * 4, -1).to(dtype)


def alibi(query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, lse, layout):
    """Causal attention with ALiBi and a window: slope * key position as additional columns of queries and keys.

    Among the keys of a row that term and -slope * distance differ by a constant, which cancels in the softmax. All
    values of the columns are exact in 16 bits up to 65536 keys; 16 bits of the slope are kept (22 in float16).
    """
    if not cuda.flash_sdp_enabled():
        return attend(query, key, value, causal, scale, None, window, None, None, alibi_slopes, False, layout)
    query, scale = positive_scale(query, scale)
    q, k, v = (query, key, value) if layout == "BSHD" else (t.transpose(1, 2) for t in (query, key, value))
    if window is not None:
        k, v, window = _windowed(k, v, q.shape[1], window)
    slopes = _slope_columns(alibi_slopes, scale, q.dtype).expand(*q.shape[:3], EXTRA)
    far = _distance_columns(k.shape[1], k.dtype, k.device)[:, None].expand(*k.shape[:3], EXTRA)
    wide = (torch.cat((q, slopes), -1), torch.cat((k, far), -1), F.pad(v, (0, EXTRA)))
    output = _forward(*wide, True, scale, window)[0][..., : v.shape[-1]]
    return output if layout == "BSHD" else output.transpose(1, 2)
