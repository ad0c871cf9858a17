"""Partial attention over runs of keys and the merging of such parts, as torch expressions on any device."""

import torch
from torch.nn import functional as F

from layerzero.backends.torch.common import wants_grad
from layerzero.backends.torch.expressions import no_minus_inf, product, products_dtype, weighted
from layerzero.torch.references import reference_helpers

LOGITS = 1 << 26  # in memory at once
SLICES = 16  # up to this many runs, values are read in place


def _hidden_and_bias(s_q, s_kv, first, rows, device, causal, window, slopes, dtype):
    """Returns the keys hidden by causality and window for rows from `first` on, (rows, s_kv), the distance bias (h,
    rows, s_kv), and the amount subtracted from it, (h, rows, 1)."""
    shared = reference_helpers("attention")
    distance = shared.distances(s_q, s_kv, device)[first : first + rows]
    gone = shared.hidden(distance, causal, window)
    return (gone, None, None) if slopes is None else (gone, *shared.distance_bias(slopes, distance, gone, dtype))


def _logits(q, k, first, s_q, causal, scale, attn_mask, window, softcap, slopes):
    """Computes logits (b, h_kv, group, rows, s_kv), -inf where hidden, and the amount to add to them, from q (b, h_kv,
    group, rows, d) and k (b, h_kv, s_kv, d)."""
    heads, rows, s_kv = q.shape[1:3], q.shape[3], k.shape[2]
    z = product(q.flatten(2, 3), k.transpose(-1, -2)).unflatten(2, q.shape[2:4]) * scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    if rows == s_q == 1 and window is None and attn_mask is None and slopes is None:
        return z, None
    gone, bias, shift = _hidden_and_bias(s_q, s_kv, first, rows, q.device, causal, window, slopes, z.dtype)
    if bias is not None:
        z = z + bias.unflatten(0, heads)
        shift = shift.unflatten(0, heads) if isinstance(shift, torch.Tensor) else None
    if attn_mask is not None:
        full = attn_mask.expand(q.shape[0], heads[0] * heads[1], s_q, s_kv)
        mask = full[:, :, first : first + rows].unflatten(1, heads)
        z = z if mask.dtype == torch.bool else z + mask.to(z.dtype)
        gone = gone | (~mask if mask.dtype == torch.bool else mask == -torch.inf)
    return z.masked_fill(gone, -torch.inf), shift


def _values_of_runs(p, seen, value, run):
    """p, seen (b, h_kv, group, rows, splits, run), value (b, h_kv, s_kv, d) to (b, h_kv, group, rows, splits, d)."""
    shape, splits = p.shape[2:4], p.shape[4]
    p, seen = (None if t is None else t.flatten(2, 3) for t in (p, seen))
    rest = run * splits - value.shape[2]
    if splits > SLICES or (value.is_cuda and not rest):  # one product, possibly over a copy of the values
        value = (F.pad(value, (0, 0, 0, rest)) if rest else value).unflatten(2, (splits, run))
        p, seen = (None if t is None else t.transpose(2, 3) for t in (p, seen))
        return weighted(p, seen, value).transpose(2, 3).unflatten(2, shape)
    outs = []
    for t in range(splits):
        part = value[:, :, t * run : (t + 1) * run]
        one, of_one = (None if x is None else x[:, :, :, t, : part.shape[2]] for x in (p, seen))
        outs.append(weighted(one, of_one, part))
    return torch.stack(outs, 3).unflatten(2, shape)


def _runs(z, value, splits, run, raw, shift, all_seen):
    """Maps logits (b, h_kv, group, rows, s_kv) to the parts of some rows: outputs (b, h_kv, group, rows, splits, d),
    lse and sums (b, h_kv, group, rows, splits)."""
    rest = run * splits - z.shape[-1]
    z = (F.pad(z, (0, rest), value=-torch.inf) if rest else z).unflatten(-1, (splits, run))
    top = z.amax(-1)
    p = torch.exp(z - no_minus_inf(top)[..., None])
    total = p.sum(-1)
    out = _values_of_runs(p, None if all_seen else z != -torch.inf, value, run)
    lse = top if raw else no_minus_inf(top) + torch.log(total)
    lse = lse if shift is None else lse + shift
    return (out, lse, total) if raw else (out / torch.where(total == 0, 1.0, total)[..., None], lse)


def attention_partials(
    query, key, value, num_splits, raw, causal, scale, attn_mask, window, softcap, alibi_slopes, layout
):
    """Uses one matrix product for the logits of some rows and all keys, and one per run for the values."""
    q, k, v = (query, key, value) if layout == "BHSD" else (t.transpose(1, 2) for t in (query, key, value))
    dtype, heads, s_q = products_dtype(q, k, v), k.shape[1], q.shape[2]
    run = -(-k.shape[2] // num_splits)
    # The parts are float32: rounding weights to 16 bits would exceed their tolerance.
    exact = torch.promote_types(dtype, torch.float32)
    q, k, v = q.unflatten(1, (heads, q.shape[1] // heads)).to(dtype), k.to(dtype), v.to(exact)
    all_seen = attn_mask is None and window is None and (s_q == 1 or not causal) and run * num_splits == k.shape[2]
    step = max(1, LOGITS // (q.shape[:3].numel() * k.shape[2]))
    parts = []
    for first in range(0, s_q, step):
        rows = q[:, :, :, first : first + step]
        z, shift = _logits(rows, k, first, s_q, causal, scale, attn_mask, window, softcap, alibi_slopes)
        parts.append(_runs(z, v, num_splits, run, raw, shift, all_seen))
    outputs = parts[0] if len(parts) == 1 else [torch.cat(one, 3) for one in zip(*parts, strict=True)]
    # (b, h_kv, group, s_q, splits, ...) to (splits, b * s_q, h_q, ...)
    return tuple(t.flatten(1, 2).movedim(3, 0).transpose(2, 3).flatten(1, 2).float() for t in outputs)


def _readable(part, empty):
    """Clears the empty rows of a part, which may be NaN."""
    if part.device.type == "cpu" and not bool(empty.any()):
        return part
    return part.masked_fill(empty[..., None], 0)


def _with_sink(top, total, sinks):
    """Adds a sink to sums of exp(logit - top): returns their factor for a common maximum, and the denominator."""
    if sinks is None:
        return None, torch.where(total == 0, 1.0, total)
    sink = sinks.to(top.dtype)
    peak = torch.maximum(top, sink.detach())
    factor = torch.exp(top - peak)
    total = total * factor + torch.where(sink == torch.inf, 1.0, torch.exp(sink - peak))
    return factor, torch.where(total == 0, 1.0, total)


def merged(v_a, a, v_b, b):
    """Returns v_a * a + v_b * b with weights (n, h) of at least float32, rounded once."""
    a, b = a[..., None], b[..., None]
    if wants_grad(v_a, v_b, a, b):
        return (v_a * a + v_b * b).to(v_a.dtype)
    return torch.addcmul(v_a * a, v_b, b, out=torch.empty_like(v_a, memory_format=torch.contiguous_format))


def merge_attention(v_a, s_a, v_b, s_b, sinks):
    v_a, v_b = _readable(v_a, s_a == -torch.inf), _readable(v_b, s_b == -torch.inf)
    if v_a.dtype == torch.float64:
        s_a, s_b = s_a.double(), s_b.double()
    if sinks is None and not wants_grad(s_a, s_b):
        a = torch.sigmoid(s_a - s_b.clamp(min=torch.finfo(torch.float32).min))  # -inf - -inf is NaN
        return merged(v_a, a, v_b, 1 - a), torch.logaddexp(s_a, s_b).float()
    top = no_minus_inf(torch.maximum(s_a, s_b).detach())
    a, b = torch.exp(s_a - top), torch.exp(s_b - top)
    total = a + b
    factor, denominator = _with_sink(top, total, sinks)
    share = 1 / denominator if factor is None else factor / denominator
    return merged(v_a, a * share, v_b, b * share), (top + torch.log(total)).float()


def _over_parts(weights, parts):
    """Sums parts (splits, n, h, d) with weights (splits, n, h) to (n, h, d); on CUDA the parts are read once."""
    if not parts.is_cuda:
        return (weights[..., None] * parts).sum(0)
    rows = torch.bmm(weights.flatten(1).T[:, None], parts.flatten(1, 2).transpose(0, 1))
    return rows.view(parts.shape[1:])


def merge_partials(partials, part_lse, row_sum, sinks, dtype):
    output = getattr(torch, dtype)
    compute = torch.promote_types(torch.promote_types(partials.dtype, torch.float32), output)
    s = part_lse.to(compute)
    empty = s == -torch.inf
    parts = _readable(partials.to(compute), empty)
    if row_sum is None and sinks is None and not wants_grad(partials, part_lse):
        weights, lse = torch.softmax(s, 0).masked_fill_(empty, 0), torch.logsumexp(s, 0)
        return _over_parts(weights, parts).to(output), lse.masked_fill_(lse == torch.inf, torch.nan).float()
    top = no_minus_inf(s.detach().amax(0))
    weights = torch.exp(s - top)
    sums = weights if row_sum is None else weights * row_sum.to(compute).masked_fill(empty, 0)
    total = sums.sum(0)
    factor, denominator = _with_sink(top, total, sinks)
    weights = weights * (1 / denominator if factor is None else factor / denominator)
    return _over_parts(weights, parts).to(output), (top + torch.log(total)).float()
