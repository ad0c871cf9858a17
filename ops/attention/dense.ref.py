"""Torch reference of attention.{standard,gqa}.{prefill,decode}: any device, differentiable; (b, s, h, d) tensors."""

import torch

CHUNK = 1 << 24  # logits held at once


def reference(
    query,
    key,
    value,
    *,
    causal=None,
    scale=None,
    attn_mask=None,
    dropout_p=0.0,
    window=None,
    softcap=None,
    sinks=None,
    alibi_slopes=None,
    return_lse=False,
):
    if dropout_p:
        raise NotImplementedError("the reference of attention has no dropout: pass dropout_p=0")
    causal = attn_mask is None if causal is None else causal
    if causal and attn_mask is not None:
        raise ValueError("attn_mask with causal=True: fold the causal triangle into the mask")
    window = None if window in (None, -1) else window
    s_q, s_kv = query.shape[1], key.shape[1]
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    # Torch's own function weights a hidden key by 0 instead of skipping it: only where nothing is hidden.
    plain = attn_mask is None and window is None and (not causal or s_q == 1) and 0 not in (q.numel(), k.numel())
    if plain and not softcap and sinks is None and alibi_slopes is None and not return_lse:
        grouped = bool(q.shape[1] != k.shape[1])
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)

    compute = torch.promote_types(query.dtype, torch.float32)
    group = q.shape[1] // max(k.shape[1], 1)
    q, k, v = (
        q.to(compute),
        *(t.to(compute).repeat_interleave(group, 1) for t in (k, v)),
    )
    shape = (q.shape[0], q.shape[1], s_q, s_kv)
    scale = scale if scale is not None else q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
    mask = None if attn_mask is None else attn_mask.broadcast_to(shape)
    keys = torch.arange(s_kv, device=q.device)
    step = max(1, CHUNK // max(shape[0] * shape[1] * s_kv, 1))
    parts = []
    for begin in range(0, s_q, step):
        rows = slice(begin, min(begin + step, s_q))
        distance = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + (s_kv - s_q) - keys
        z = q[:, :, rows] @ k.transpose(-1, -2) * scale
        z = softcap * torch.tanh(z / softcap) if softcap else z
        if alibi_slopes is not None:
            z = z - alibi_slopes.to(compute)[:, None, None] * distance.abs()
        hidden = distance < 0 if causal or window is not None else torch.zeros_like(distance, dtype=torch.bool)
        if window is not None:
            hidden = hidden | (distance >= window)
        if mask is not None and mask.dtype == torch.bool:
            hidden = hidden | ~mask[:, :, rows]
        elif mask is not None:
            z, hidden = (
                z + mask[:, :, rows].to(compute),
                hidden | (mask[:, :, rows] == -torch.inf),
            )
        parts.append(_weigh(z.masked_fill(hidden, -torch.inf), v, sinks))
    if not parts:
        parts = [(v.new_zeros(*shape[:2], 0, v.shape[-1]), q.new_zeros(*shape[:2], 0))]
    out = torch.cat([o for o, _ in parts], 2).transpose(1, 2).to(query.dtype)
    return (out, torch.cat([lse for _, lse in parts], 2).float()) if return_lse else out


def _weigh(z, v, sinks):
    """Softmax of logits z (..., h, rows, keys) times v (..., h, keys, d_v); keys at -inf are skipped. With the lse."""
    if z.shape[-1] == 0:
        return z.new_zeros(*z.shape[:-1], v.shape[-1]), z.new_full(z.shape[:-1], -torch.inf)
    top = z.detach().amax(-1, keepdim=True)
    sink = None if sinks is None else sinks.to(z.dtype)[:, None, None]
    peak = top if sink is None else torch.maximum(top, sink.detach())
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    p = torch.exp(z - peak)
    total = p.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.where(sink == torch.inf, 1.0, torch.exp(sink - peak))
    total = torch.where(top == -torch.inf, 1.0, total)
    lse = torch.where(top == torch.inf, torch.nan, torch.logsumexp(z, -1, keepdim=True))
    # 0 * nan is nan: finite values first, then what each row sees of the others.
    out = (p / total) @ torch.where(v.isfinite(), v, 0.0)
    special = torch.cat([v.isnan(), v == torch.inf, v == -torch.inf], -1).to(z.dtype)
    nan, up, down = (((z != -torch.inf).to(z.dtype) @ special) > 0).chunk(3, -1)
    out = out + torch.where(up, torch.inf, 0.0) + torch.where(down, -torch.inf, 0.0)
    return torch.where(nan, torch.nan, out), lse.squeeze(-1)
