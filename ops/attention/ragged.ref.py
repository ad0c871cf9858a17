"""Torch reference of attention.{standard,gqa}.prefill.ragged: any device, differentiable; one sequence at a time."""

from itertools import pairwise

import torch


def reference(
    query,
    key,
    value,
    cu_seqlens_q,
    cu_seqlens_kv,
    *,
    causal=True,
    scale=None,
    window=None,
    softcap=None,
    sinks=None,
    alibi_slopes=None,
    max_seqlen_q=None,
    max_seqlen_kv=None,
    return_lse=False,
):
    offsets_q = _offsets(cu_seqlens_q, query.shape[0], max_seqlen_q, "cu_seqlens_q")
    offsets_kv = _offsets(cu_seqlens_kv, key.shape[0], max_seqlen_kv, "cu_seqlens_kv")
    compute = torch.promote_types(query.dtype, torch.float32)
    scale = scale if scale is not None else query.shape[-1] ** -0.5 if query.shape[-1] else 1.0
    group = query.shape[1] // max(key.shape[1], 1)
    parts = []
    for (q0, q1), (k0, k1) in zip(pairwise(offsets_q), pairwise(offsets_kv), strict=True):
        q = query[q0:q1].transpose(0, 1).to(compute)
        k, v = (t[k0:k1].transpose(0, 1).to(compute).repeat_interleave(group, 0) for t in (key, value))
        n_q, n_kv = q1 - q0, k1 - k0
        row, column = (torch.arange(n, device=q.device) for n in (n_q, n_kv))
        distance = row[:, None] + (n_kv - n_q) - column
        z = q @ k.transpose(-1, -2) * scale
        z = softcap * torch.tanh(z / softcap) if softcap else z
        if alibi_slopes is not None:
            z = z - alibi_slopes.to(compute)[:, None, None] * distance.abs()
        windowed = window not in (None, -1)
        hidden = distance < 0 if causal or windowed else torch.zeros_like(distance, dtype=torch.bool)
        if windowed:
            hidden = hidden | (distance >= window)
        parts.append(_weigh(z.masked_fill(hidden, -torch.inf), v, sinks))
    rest = query.shape[0] - offsets_q[-1]  # rows of no sequence
    heads, d_v = query.shape[1], value.shape[-1]
    parts.append(
        (
            query.new_zeros(heads, rest, d_v, dtype=compute),
            query.new_full((heads, rest), -torch.inf, dtype=compute),
        )
    )
    out = torch.cat([o for o, _ in parts], 1).transpose(0, 1).to(query.dtype)
    return (out, torch.cat([lse for _, lse in parts], 1).transpose(0, 1).float()) if return_lse else out


def _offsets(offsets, limit, longest, name):
    values = offsets.tolist()
    lengths = [b - a for a, b in pairwise(values)]
    if values[:1] != [0] or min(lengths, default=0) < 0 or values[-1] > limit:
        raise ValueError(f"{name}: wanted offsets from 0, never decreasing, up to {limit}, got {values}")
    if longest is not None and max(lengths, default=0) > longest:
        raise ValueError(f"{name}: wanted sequences of at most {longest} tokens, got one of {max(lengths)}")
    return values


def _weigh(z, v, sinks):
    """Softmax of logits z (h, rows, keys) times v (h, keys, d_v); keys at -inf are skipped. With the lse."""
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
