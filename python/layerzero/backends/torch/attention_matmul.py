"""Dense and cross attention as two matrix products with a softmax in between: every argument but dropout, any dtype.

It serves calls that no fused function of torch takes: a soft-cap, ALiBi, masks together with sinks or the lse, float32
masks of 16-bit tensors. Logits are float32 and computed for a part of the rows at a time, over the keys that those rows
see. No value of a tensor is read, so a NaN of a masked value may reach the output.
"""

import torch

from layerzero.backends.torch.attention import as_given, heads_first
from layerzero.backends.torch.common import wants_grad

INF = float("inf")
CHUNK = 1 << 26  # logits in memory at once


def _product(a, b, plain):
    """Returns a @ b in at least float32. torch has such a product of 16-bit tensors on CUDA, without a derivative."""
    if a.dtype not in (torch.float16, torch.bfloat16):
        return torch.bmm(a, b)
    return torch.bmm(a, b, out_dtype=torch.float32) if plain and a.is_cuda else torch.bmm(a.float(), b.float())


class _Rows:
    """A range of query rows, [first, first + count), and the keys [begin, end) that any of them sees."""

    def __init__(self, first, count, s_q, s_kv, causal, window, device):
        self.rows, self.count, self.device = slice(first, first + count), count, device
        self.start = s_kv - s_q + first  # position of the first row
        self.last_key, self.directed, self.window = s_kv - 1, causal, window
        self.end = min(s_kv, self.start + count) if causal else s_kv
        self.begin = 0 if window is None else max(0, self.start - window + 1)

    def distance(self):
        """Returns (rows, keys): the distance from each key to each row, positive for keys before the row."""
        top, keys = self.start - self.begin, self.end - self.begin
        if self.count == 1:
            return torch.arange(top, top - keys, -1, device=self.device)[None]
        row = torch.arange(top, top + self.count, device=self.device)
        return row[:, None] - torch.arange(keys, device=self.device)

    def gone(self, distance):
        """Returns the keys hidden by causality and window as a mask, or None; distance() returns their distances."""
        early = self.directed and self.start + 1 < self.end
        late = self.window is not None and self.begin < self.start + self.count - self.window
        if not early and not late:
            return None
        distance = self.distance() if distance is None else distance
        if not late:
            return distance < 0
        return (distance < 0) | (distance >= self.window) if early else distance >= self.window

    def weightiest(self, negative):
        """Returns the distance of the key with the largest ALiBi term: the nearest, or farthest for negative slopes."""
        position = torch.arange(self.start, self.start + self.count, device=self.device)[:, None]
        if self.directed:
            farthest = position if self.window is None else position.clamp(max=self.window - 1)
            return negative * farthest
        return torch.where(negative, torch.maximum(position, self.last_key - position), (-position).clamp(min=0))


def _with_alibi(z, slopes, rows, distance):
    """Returns z - slopes |distance| minus the largest ALiBi term of each row, so that no difference is rounded away,
    and that term, (h_kv, group, rows, 1)."""
    slopes = slopes.to(z.dtype).view(*z.shape[1:3], 1, 1)
    base = rows.weightiest(slopes < 0).to(z.dtype)
    far = distance if rows.directed else distance.abs()  # keys after a row are hidden
    return torch.addcmul(z, slopes, far - base, value=-1.0), -slopes * base


def _with_mask(z, mask, rows):
    part = mask[:, :, rows.rows, rows.begin : rows.end].unflatten(1, z.shape[1:3])
    return torch.where(part, z, -INF) if mask.dtype == torch.bool else z + part.to(z.dtype)


def _part(q, k, v, rows, *, scale, mask, softcap, sinks, slopes, lse, grad):
    """Returns output (b, h_kv, group, rows, d_v), lse (..., 1) of some rows; q (b, h_kv, group, s_q, d), k, v flat."""
    b, h_kv, group, _, d = q.shape
    n = rows.rows.stop - rows.rows.start
    queries = q[:, :, :, rows.rows].reshape(b * h_kv, group * n, d)
    z = _product(queries, k[:, rows.begin : rows.end].mT, not grad).view(b, h_kv, group, n, -1)
    z = torch.tanh(z * (scale / softcap)) * softcap if softcap else z * scale
    shift, distance = 0.0, None
    if slopes is not None:
        distance = rows.distance()
        z, shift = _with_alibi(z, slopes, rows, distance)
    if mask is not None:
        z = _with_mask(z, mask, rows)
    gone = rows.gone(distance)
    if gone is not None:
        z = z.masked_fill(gone, -INF)
    top = z.detach().amax(-1, keepdim=True)
    empty = top == -INF  # no visible key
    if grad:  # the derivative of a softmax over -inf is NaN
        z = z.masked_fill(empty, 0.0)
        top = z.amax(-1, keepdim=True)
    p, found = torch.softmax(z, -1), top
    out = torch.bmm(p.view(b * h_kv, group * n, -1).to(v.dtype), v[:, rows.begin : rows.end])
    out = out.view(b, h_kv, group, n, -1)
    if lse or sinks is not None:  # the lse follows from the largest logit and its weight
        found = torch.where(empty, -INF, top - torch.log(p.amax(-1, keepdim=True)) + shift)
    if sinks is not None:
        out = out * torch.sigmoid(found - sinks.to(found.dtype).view(h_kv, group, 1, 1))
    return (out.masked_fill if grad else out.masked_fill_)(empty, 0.0).to(q.dtype), found


def attend(query, key, value, causal, scale, attn_mask, window, softcap, sinks, alibi_slopes, return_lse, layout):
    q, k, v = heads_first(layout, query, key, value)
    b, h, s_q, d = q.shape
    h_kv, s_kv = k.shape[1:3]
    causal = causal or window is not None or s_q == 1  # a window ends at its row, one row at the last key
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
