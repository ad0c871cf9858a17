"""Dense and cross attention as two matrix products with a softmax between them: every argument but dropout, any dtype.

For what no fused function of torch takes: a soft-cap, ALiBi, masks together with sinks or the lse, float32 masks of
16-bit tensors. Some rows of the logits are held at a time, in float32, over the keys that those rows see. No value of a
tensor is read, so a NaN of a hidden value may reach the output.
"""

import torch

from layerzero.backends.torch.attention import as_given, heads_first, wants_grad

INF = float("inf")
CHUNK = 1 << 26  # logits held at once


def _product(a, b, plain):
    """a b with a float32 result at least. torch has one product of 16-bit tensors with such a result, on CUDA, without a
    derivative."""
    if a.dtype not in (torch.float16, torch.bfloat16):
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=torch.float32) if plain and a.is_cuda else torch.bmm(a.float(), b.float())


class _Rows:
    """Positions of some query rows and of the keys [begin, end) that one of them sees."""

    def __init__(self, first, count, s_q, s_kv, causal, window, device):
        self.offset = s_kv - s_q
        self.rows = slice(first, first + count)
        directed = causal or window is not None
        self.end = min(s_kv, self.offset + first + count) if directed else s_kv
        self.begin = max(0, self.offset + first - window + 1) if window is not None else 0
        self.position = torch.arange(first, first + count, device=device)[:, None] + self.offset
        key = torch.arange(self.begin, self.end, device=device)
        self.distance = self.position - key
        self.gone = self.distance < 0 if directed and self.offset + first + 1 < self.end else None
        if window is not None and self.begin < self.offset + first + count - window:
            far = self.distance >= window
            self.gone = far if self.gone is None else self.gone | far
        self.reach = (self.position if directed else torch.maximum(self.position, s_kv - 1 - self.position), window)


def _with_alibi(z, slopes, rows):
    """z - slopes |distance|, less the term of the key that weighs most in a row, so that no difference is rounded away;
    and that term, (h_kv, group, rows, 1)."""
    slopes = slopes.to(z.dtype).view(*z.shape[1:3], 1, 1)
    nearest = (-rows.position).clamp(min=0)
    farthest, window = rows.reach
    farthest = farthest if window is None else farthest.clamp(max=window - 1)
    base = torch.where(slopes < 0, farthest, nearest).to(z.dtype)
    return torch.addcmul(z, slopes, rows.distance.abs() - base, value=-1.0), -slopes * base


def _with_mask(z, mask, rows):
    part = mask[:, :, rows.rows, rows.begin : rows.end].unflatten(1, z.shape[1:3])
    return torch.where(part, z, -INF) if mask.dtype == torch.bool else z + part.to(z.dtype)


def _part(q, k, v, rows, *, scale, mask, softcap, sinks, slopes, lse, grad):
    """Output (b, h_kv, group, rows, d_v) and lse (..., 1) of some rows; q (b, h_kv, group, s_q, d), k and v flat."""
    b, h_kv, group, _, d = q.shape
    n = rows.rows.stop - rows.rows.start
    queries = q[:, :, :, rows.rows].reshape(b * h_kv, group * n, d)
    z = _product(queries, k[:, rows.begin : rows.end].mT, not grad).view(b, h_kv, group, n, -1)
    z = torch.tanh(z * (scale / softcap)) * softcap if softcap else z * scale
    shift = 0.0
    if slopes is not None:
        z, shift = _with_alibi(z, slopes, rows)
    if mask is not None:
        z = _with_mask(z, mask, rows)
    if rows.gone is not None:
        z = z.masked_fill(rows.gone, -INF)
    top = z.detach().amax(-1, keepdim=True)
    empty = top == -INF  # no visible key
    if grad:  # the derivative of a softmax over -inf is NaN
        z = z.masked_fill(empty, 0.0)
        top = z.amax(-1, keepdim=True)
    p, found = torch.softmax(z, -1), top
    out = torch.bmm(p.view(b * h_kv, group * n, -1).to(v.dtype), v[:, rows.begin : rows.end])
    out = out.view(b, h_kv, group, n, -1)
    if lse or sinks is not None:  # the lse from the largest logit and its weight
        found = torch.where(empty, -INF, top - torch.log(p.amax(-1, keepdim=True)) + shift)
    if sinks is not None:
        out = out * torch.sigmoid(found - sinks.to(found.dtype).view(h_kv, group, 1, 1))
    return torch.where(empty, 0.0, out).to(q.dtype), found


def attend(query, key, value, causal, scale, attn_mask, window, softcap, sinks, alibi_slopes, return_lse, layout):
    q, k, v = heads_first(layout, query, key, value)
    b, h, s_q, d = q.shape
    h_kv, s_kv = k.shape[1:3]
    causal = causal or window is not None  # a window ends at the row's own position
    if attn_mask is not None:
        attn_mask = attn_mask.expand(b, h, s_q, s_kv)
    how = {"scale": scale, "mask": attn_mask, "softcap": softcap, "sinks": sinks, "slopes": alibi_slopes}
    how |= {"lse": return_lse, "grad": wants_grad(query, key, value, attn_mask, sinks, alibi_slopes)}
    k, v = k.reshape(b * h_kv, s_kv, d), v.reshape(b * h_kv, s_kv, -1)
    grouped = q.unflatten(1, (h_kv, h // h_kv))
    first = min(max(s_q - s_kv, 0), s_q) if causal else 0  # rows before the first key
    parts = []
    if first:
        shape = (*grouped.shape[:3], first)
        parts.append((v.new_zeros(*shape, v.shape[-1]), q.new_full((*shape, 1), -INF, dtype=torch.float32)))
    step = max(1, CHUNK // (b * h * s_kv))
    for at in range(first, s_q, step):
        rows = _Rows(at, min(step, s_q - at), s_q, s_kv, causal, window, q.device)
        parts.append(_part(grouped, k, v, rows, **how))
    out, found = parts[0] if len(parts) == 1 else (torch.cat(kind, 3) for kind in zip(*parts, strict=True))
    out = as_given(layout, out.flatten(1, 2))
    return (out, found.flatten(1, 2).squeeze(-1).float()) if return_lse else out


def matmul(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    return attend(query, key, value, causal, scale, attn_mask, *rest)


def cross_matmul(query, key, value, scale, attn_mask, dropout_p, softcap, sinks, return_lse, layout):
    return attend(query, key, value, False, scale, attn_mask, None, softcap, sinks, None, return_lse, layout)
