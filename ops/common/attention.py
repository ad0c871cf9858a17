"""Shared by the torch references of the attention operations: one sequence's rows, page lists, masked keys."""

from itertools import pairwise

import torch

CHUNK = 1 << 24  # logits in memory at once


def weigh(z, v, sinks=None, shift=0.0):
    """Softmax of logits z + shift (..., h, rows, keys) times v (..., h, keys, d_v); keys at -inf are skipped. Returns
    the lse too."""
    if z.shape[-1] == 0:
        return z.new_zeros(*z.shape[:-1], v.shape[-1]), z.new_full(z.shape[:-1], -torch.inf)
    top = z.detach().amax(-1, keepdim=True)
    sink = None if sinks is None else sinks.to(z.dtype)[:, None, None] - shift
    peak = top if sink is None else torch.maximum(top, sink.detach())
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    p = torch.exp(z - peak)
    total = p.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.where(sink == torch.inf, 1.0, torch.exp(sink - peak))
    total = torch.where(top == -torch.inf, 1.0, total)
    lse = torch.where(top == torch.inf, torch.nan, torch.logsumexp(z, -1, keepdim=True) + shift)
    # 0 * nan is nan: finite values first, then the others for the rows that attend to them.
    out = (p / total) @ torch.where(v.isfinite(), v, 0.0)
    seen = z != -torch.inf
    if sink is not None:  # a sink that takes all the weight leaves none for any value
        seen = seen & ~((sink == torch.inf) & top.isfinite())
    special = torch.cat([v.isnan(), v == torch.inf, v == -torch.inf], -1).to(z.dtype)
    nan, up, down = ((seen.to(z.dtype) @ special) > 0).chunk(3, -1)
    out = out + torch.where(up, torch.inf, 0.0) + torch.where(down, -torch.inf, 0.0)
    return torch.where(nan, torch.nan, out), lse.squeeze(-1)


def distances(n_q, n_kv, device):
    """Distance of each key before each row (n_q, n_kv); the rows are the last n_q positions."""
    row, column = (torch.arange(n, device=device) for n in (n_q, n_kv))
    return row[:, None] + (n_kv - n_q) - column


def hidden(distance, causal, window):
    """Keys that causality and window (keys up to the row's own; None or -1: all) mask."""
    windowed = window not in (None, -1)
    out = distance < 0 if causal or windowed else torch.zeros_like(distance, dtype=torch.bool)
    return out | (distance >= window) if windowed else out


def distance_bias(slopes, distance, gone, dtype):
    """-slopes * |distance| minus its maximum over the keys that a row attends to, (h, rows, keys), and that maximum,
    (h, rows, 1): if all keys are far away, the whole bias would round away their differences."""
    slopes, far = slopes.to(dtype)[:, None, None], distance.abs()
    if 0 in far.shape:
        return -slopes * far, 0.0
    least = far.masked_fill(gone, torch.iinfo(far.dtype).max).amin(-1, keepdim=True)
    base = torch.where(slopes < 0, far.masked_fill(gone, 0).amax(-1, keepdim=True), least)
    base = torch.where(gone.all(-1, keepdim=True) | ~slopes.isfinite(), 0, base)
    return -slopes * (far - base), torch.where(base == 0, 0.0, -slopes * base)


def in_units(stored, unit):
    """Rows (h, n, d) of a cache whose heads are stored in `unit`: (h), (1), () or None."""
    return stored if unit is None else stored * unit.to(stored.dtype).reshape(-1, 1, 1)


def default_scale(scale, d):
    return scale if scale is not None else d**-0.5 if d else 1.0


def rows(
    q, k, v, *, scale=None, causal=False, window=None, softcap=None, sinks=None, slopes=None, k_scale=None, v_scale=None
):
    """One sequence: q (n_q, h_q, d), k (n_kv, h_kv, d), v (n_kv, h_kv, d_v) to (n_q, h_q, d_v) and lse (n_q, h_q)."""
    compute = torch.promote_types(q.dtype, torch.float32)
    scale = default_scale(scale, q.shape[-1])
    group = q.shape[1] // max(k.shape[1], 1)
    q = q.transpose(0, 1).to(compute)
    k, v = (in_units(t.transpose(0, 1).to(compute), unit) for t, unit in ((k, k_scale), (v, v_scale)))
    k, v = (t.repeat_interleave(group, 0) for t in (k, v))
    distance = distances(q.shape[1], k.shape[1], q.device)
    z = q @ k.transpose(-1, -2) * scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    gone, shift = hidden(distance, causal, window), 0.0
    if slopes is not None:
        bias, shift = distance_bias(slopes, distance, gone, compute)
        z = z + bias
    out, lse = weigh(z.masked_fill(gone, -torch.inf), v, sinks, shift)
    return out.transpose(0, 1), lse.transpose(0, 1)


def logits(q, k, mask, first, n_q, *, causal, scale, window, softcap, slopes):
    """Logits of query rows from `first` on, (b, h, rows, keys), -inf where masked, and the shift to add to them;
    n_q: all
    rows. k has as many heads as q."""
    n_kv = k.shape[-2]
    distance = distances(n_q, n_kv, q.device)[first : first + q.shape[-2]]
    z = q @ k.transpose(-1, -2) * scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    gone, shift = hidden(distance, causal, window), 0.0
    if slopes is not None:
        bias, shift = distance_bias(slopes, distance, gone, z.dtype)
        z = z + bias
    if mask is not None:
        mask = mask.broadcast_to(*z.shape[:2], n_q, n_kv)[:, :, first : first + q.shape[-2]]
        if mask.dtype == torch.bool:
            gone = gone | ~mask
        else:
            z, gone = z + mask.to(z.dtype), gone | (mask == -torch.inf)
    return z.masked_fill(gone, -torch.inf), shift


def heads_first(query, key, value):
    """(b, s, h, d) tensors as (b, h_q, s, d) in the dtype of the computation."""
    compute = torch.promote_types(query.dtype, torch.float32)
    group = query.shape[2] // max(key.shape[2], 1)
    q, k, v = (t.transpose(1, 2).to(compute) for t in (query, key, value))
    return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def dense(
    query, key, value, attn_mask=None, *, causal, scale, window=None, softcap=None, sinks=None, slopes=None, lse=False
):
    """Dense attention of (b, s, h, d) tensors, some rows at a time."""
    window = None if window in (None, -1) else window
    s_q, s_kv = query.shape[1], key.shape[1]
    # Torch's own function weights a masked key by 0 instead of skipping it, and on CPUs returns 0 for a row of NaN.
    whole = attn_mask is None and window is None and (not causal or s_q == 1) and 0 not in (query.numel(), key.numel())
    plain = whole and query.device.type != "cpu"
    if plain and not softcap and sinks is None and slopes is None and not lse:
        # Dense, because torch's choice of a kernel supports few strides of CUDA tensors.
        q, k, v = (t.transpose(1, 2).contiguous() for t in (query, key, value))
        grouped = bool(q.shape[1] != k.shape[1])
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2)
    how = {"causal": causal, "window": window, "softcap": softcap, "slopes": slopes}
    q, k, v = heads_first(query, key, value)
    how["scale"] = default_scale(scale, q.shape[-1])
    step = max(1, CHUNK // max(q.shape[0] * q.shape[1] * s_kv, 1))
    parts = []
    for i in range(0, s_q, step):
        z, shift = logits(q[:, :, i : i + step], k, attn_mask, i, s_q, **how)
        parts.append(weigh(z, v, sinks, shift))
    if not parts:
        parts = [(v.new_zeros(*q.shape[:2], 0, v.shape[-1]), q.new_zeros(*q.shape[:2], 0))]
    out = torch.cat([o for o, _ in parts], 2).transpose(1, 2).to(query.dtype)
    return (out, torch.cat([one for _, one in parts], 2).float()) if lse else out


def offsets(tensor, limit, name, longest=None):
    """A tensor of offsets as a list, checked."""
    values = tensor.tolist()
    lengths = [b - a for a, b in pairwise(values)]
    if values[:1] != [0] or min(lengths, default=0) < 0 or values[-1] > limit:
        raise ValueError(f"{name}: wanted offsets from 0, never decreasing, up to {limit}, got {values}")
    if longest is not None and max(lengths, default=0) > longest:
        raise ValueError(f"{name}: wanted sequences of at most {longest} tokens, got one of {max(lengths)}")
    return values


def page_lists(kv_indptr, kv_indices, kv_last_page_len, page_size):
    """(page numbers, entries) of each sequence of a CSR page list."""
    indptr, last = offsets(kv_indptr, kv_indices.shape[0], "kv_indptr"), kv_last_page_len.tolist()
    lists = []
    for s, (begin, end) in enumerate(pairwise(indptr)):
        if end > begin and not 0 <= last[s] <= page_size:
            raise ValueError(f"kv_last_page_len: wanted 0 to {page_size}, got {last[s]}")
        lists.append((kv_indices[begin:end], (end - begin - 1) * page_size + last[s] if end > begin else 0))
    return lists


def entries(caches, pages, length, n_q, window, name="kv_indices"):
    """The entries of paged caches that n_q rows at the end of a sequence may see, in order."""
    windowed = window not in (None, -1) and window <= length - n_q
    begin = min(length - n_q - window + 1, length) if windowed else 0
    size, count = caches[0].shape[1], caches[0].shape[0]
    if begin >= length or n_q == 0:
        return [cache[:0].flatten(0, 1) for cache in caches]
    seen = pages[begin // size : (length - 1) // size + 1].long()
    if not 0 <= int(seen.min()) <= int(seen.max()) < count:
        raise ValueError(f"{name}: wanted pages below {count}, got {seen.tolist()}")
    first = begin // size * size
    return [cache[seen].flatten(0, 1)[begin - first : length - first] for cache in caches]


def window_of(window_left):
    """Number of visible keys per row, its own included, for the number of keys before it."""
    return None if window_left < 0 else window_left + 1


def packed(parts, q, rest, d_v, return_lse):
    """Results of the sequences one after another, followed by `rest` rows that belong to no sequence."""
    heads = q.shape[1]
    compute = torch.promote_types(q.dtype, torch.float32)
    parts = [
        *parts,
        (q.new_zeros(rest, heads, d_v, dtype=compute), q.new_full((rest, heads), -torch.inf, dtype=compute)),
    ]
    out = torch.cat([o for o, _ in parts]).to(q.dtype)
    return (out, torch.cat([lse for _, lse in parts]).float()) if return_lse else out
