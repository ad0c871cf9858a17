"""Paged attention as torch expressions on any device: keys in blocks, partial results, one merge.

A sequence's keys are gathered into blocks of equal length, so nothing is padded to the longest sequence, whose length
the host does not know. Each block yields its largest logit, its sum of exponentials and its weighted values; the
adjacent blocks of a sequence are merged.
"""

from typing import NamedTuple

import torch

from layerzero.backends.torch import pages
from layerzero.backends.torch.common import counting
from layerzero.backends.torch.expressions import HALF, no_minus_inf, product, products_dtype, weighted

_EXACT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)  # their values are exact in both half precision dtypes


class Parts(NamedTuple):
    """Partial attention of rows over some keys, before the final division."""

    top: torch.Tensor  # (..., rows) the largest logit; -inf: no key
    total: torch.Tensor  # (..., rows) sum of exp(logit - top)
    values: torch.Tensor  # (..., rows, d) sum of exp(logit - top) value


def dtype_of_products(query, cache):
    """Returns half precision only if the cache's values are exact in it."""
    dtype = products_dtype(query)
    return dtype if dtype not in HALF or cache.dtype == dtype or cache.dtype in _EXACT else torch.float32


def rows_of(query, h_kv):
    """Reshapes (b, n, h_q, d) to (b, h_kv, n * group, d)."""
    b, n, h_q, d = query.shape
    return query.unflatten(2, (h_kv, h_q // h_kv)).transpose(1, 2).reshape(b, h_kv, n * h_q // h_kv, d)


def queries_of(rows, n):
    """Reshapes (b, h_kv, n * group, ...) to (b, n, h_q, ...)."""
    return rows.unflatten(2, (n, rows.shape[2] // n)).transpose(1, 2).flatten(2, 3)


def by_head(block, heads):
    """Returns (blocks, heads, length): row indices of a cache whose first three axes are flattened."""
    if heads == 1:
        return block.row[:, None]
    return torch.add(counting(heads, block.row.device)[:, None], block.row[:, None], alpha=heads)


def gathered(cache, row, dtype):
    """Gathers rows (blocks, h, length) of a cache (pages, size, h, d) as (blocks, h, length, d)."""
    if not cache.is_contiguous():
        size, heads = cache.shape[1:3]
        entry = row // heads
        return cache[entry // size, entry % size, row % heads].to(dtype)
    stored = cache.view(-1, cache.shape[3])
    bits = stored.view(torch.uint8) if stored.dtype.itemsize == 1 else stored  # torch cannot index FP8 on the CPU
    return bits.index_select(0, row.flatten()).view(stored.dtype).unflatten(0, row.shape).to(dtype)


def exponentials(z, value, seen=None):
    """Returns the parts of logits (..., rows, keys), -inf where hidden, and values (..., keys, d)."""
    top = z.amax(-1)
    p = torch.exp(z - no_minus_inf(top)[..., None])
    return Parts(top, p.sum(-1), weighted(p, seen, value))


def over_blocks(z, read, block, lse=True):
    """Returns the parts of sequences from logits (blocks, h, rows, length), overwritten, and the values read(). Without
    `lse` the sums are those of the weights as rounded for the product, which takes fewer passes."""

    def of_sequences(x, how):
        if block.ends is None:
            return x
        return torch.segment_reduce(x, how, offsets=block.ends, axis=0, unsafe=True)

    top = of_sequences(z.masked_fill_(block.hidden[:, None, None], -torch.inf).amax(-1), "max")
    z = z.sub_(block.of(no_minus_inf(top))[..., None])
    value = read()
    p = z.exp_() if lse else torch.exp(z, out=torch.empty_like(z, dtype=value.dtype))
    total = of_sequences(p.sum(-1, dtype=z.dtype), "sum")
    values = product(p.to(value.dtype), value)
    if block.ends is None:  # a sequence without entries has read another's, which may hold NaN
        values = values.masked_fill_(block.hidden[:, :1, None, None], 0)
    return Parts(top, total, of_sequences(values, "sum"))


def joined(a, b):
    """Merges the parts of the same rows over two sets of keys."""
    top = torch.maximum(a.top, b.top)
    by_a, by_b = (torch.exp(part.top - no_minus_inf(top)) for part in (a, b))
    values = a.values * by_a[..., None] + b.values * by_b[..., None]
    return Parts(top, a.total * by_a + b.total * by_b, values)


def finished(parts, sinks=None, shift=None, v_scale=None):
    """Returns output and lse. sinks, shift, v_scale: broadcast to (b, h_kv, rows); shift: added to all logits."""
    top, total, values = parts
    base = no_minus_inf(top)
    lse = base + torch.log(total)
    lse = lse if shift is None else lse + shift
    nothing = top == -torch.inf
    if sinks is not None:
        sinks = sinks.to(top.dtype) if shift is None else sinks.to(top.dtype) - shift
        peak = torch.maximum(base, sinks)
        by = torch.exp(base - peak)
        total = total * by + torch.where(sinks == torch.inf, 1.0, torch.exp(sinks - peak))
        values = values * by[..., None]
        nothing = nothing | ((sinks == torch.inf) & top.isfinite())
    return quotient(values, total, nothing, v_scale), lse


def quotient(values, total, nothing, v_scale=None):
    """Returns values / total, times v_scale, 0 where `nothing`."""
    output = values / total[..., None]
    output = output if v_scale is None else output * v_scale.to(output.dtype)[..., None]
    return output.masked_fill(nothing[..., None], 0)


class Logits:
    """Applies scale factors, soft-cap and distance bias to products (b, h_kv, rows, keys) of one row per head."""

    def __init__(self, h_kv, scale, softcap, slopes, k_scale, furthest):
        """slopes: (h_q); furthest: (b) distance of each row's first visible key."""
        self.scale, self.softcap, self.slopes, self.shift = scale, softcap, None, None
        self.k_scale = None if k_scale is None else k_scale.reshape(-1, 1, 1)
        if slopes is not None:
            # If all keys are far, the whole bias would round away their differences: it is relative to the largest.
            self.slopes = slopes.view(h_kv, -1, 1)
            growing = (self.slopes < 0) & self.slopes.isfinite()
            self.start = torch.where(growing, furthest.clamp(min=0)[:, None, None, None], 0)
            self.shift = torch.where(self.start == 0, 0.0, -self.slopes.float() * self.start)[..., 0]

    def __call__(self, z, distance, of=lambda tensor: tensor):
        """distance: (b, keys) from each key to the row; `of` selects sequences; z is overwritten."""
        z = z.mul_(self.scale)
        z = z if self.k_scale is None else z * self.k_scale.to(z.dtype)
        z = self.softcap * torch.tanh(z / self.softcap) if self.softcap else z
        if self.slopes is None:
            return z
        return z - self.slopes.to(z.dtype) * (distance[:, None, None] - of(self.start))


def prefix_parts(rows, key, value, logits, last, begin):
    """Returns parts over a prefix (n, h_kv, d) that all sequences share. last: (b) position of each row; begin: (b)
    first visible key, None: all are."""
    position = torch.arange(key.shape[0], device=key.device)
    b, h_kv, group, d = rows.shape
    z = product(rows.transpose(0, 1).reshape(h_kv, b * group, d), key.permute(1, 2, 0))
    z = logits(z.unflatten(1, (b, group)).transpose(0, 1), last[:, None] - position)
    seen = None if begin is None else position >= begin[:, None]
    z = z if seen is None else z.masked_fill(~seen[:, None, None], -torch.inf)
    together = (z.transpose(0, 1).flatten(1, 2), value.transpose(0, 1))
    if seen is not None:
        seen = seen[:, None].expand(b, group, -1).flatten(0, 1).expand(h_kv, -1, -1)
    parts = exponentials(*together, seen)
    return Parts(*(t.unflatten(1, (b, group)).transpose(0, 1) for t in parts))


def attend(operation, query, k_cache, v_cache, entries, scale, softcap, sinks, slopes, k_scale, v_scale, prefix=None):
    """Attends with (b, n, h_q, d) over each sequence's entries: output (b, n, h_q, d_v) and lse (b, n, h_q).

    prefix: keys, values and the first visible key (b), or None. n is 1 with slopes or a prefix.
    """
    h_kv, shared, n = k_cache.shape[2], 0 if prefix is None else prefix[0].shape[0], query.shape[1]
    dtype = dtype_of_products(query, k_cache)
    rows = rows_of(query, h_kv).to(dtype)
    furthest = None
    if slopes is not None:  # distance of each sequence's first visible key
        hidden = entries.begin if prefix is None else prefix[2]
        hidden = hidden if prefix is None or hidden is None or entries.begin is None else hidden + entries.begin
        furthest = entries.end + (shared - 1) - (0 if hidden is None else hidden)
    logits = Logits(h_kv, scale, softcap, slopes, k_scale, furthest)
    block = pages.blocks(operation, entries, k_cache.shape[0])
    row = by_head(block, h_kv)
    z = product(block.of(rows), gathered(k_cache, row, dtype).transpose(-1, -2))
    z = logits(z, block.before - 1 if slopes is not None else None, block.of)
    parts = over_blocks(z, lambda: gathered(v_cache, row, dtype), block)
    if prefix is not None:
        key, value, begin = prefix
        last = entries.end + (shared - 1)
        parts = joined(prefix_parts(rows, key.to(dtype), value.to(dtype), logits, last, begin), parts)
    sinks = None if sinks is None else sinks.view(h_kv, 1, -1).expand(-1, n, -1).flatten(1)
    v_scale = None if v_scale is None else v_scale.reshape(-1, 1)
    output, lse = finished(parts, sinks, logits.shift, v_scale)
    return queries_of(output, n).to(query.dtype), queries_of(lse, n).float()


def _results(output, lse, return_lse):
    return (output, lse) if return_lse else output


def paged_decode_attention(
    q, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, window_left, softcap, sinks, slopes, k_scale, v_scale,
    return_lse,
):  # fmt: skip
    operation = "paged_decode_attention"
    entries = pages.csr(operation, indptr, indices, last_page_len, k_cache.shape[1])
    entries = pages.windowed(entries, pages.window_of(window_left))
    how = (sm_scale, softcap, sinks, slopes, k_scale, v_scale)
    output, lse = attend(operation, q.unsqueeze(1), k_cache, v_cache, entries, *how)
    return _results(output.squeeze(1), lse.squeeze(1), return_lse)


def paged_attention(
    query, k_cache, v_cache, tables, lengths, scale, window, softcap, sinks, slopes, k_scale, v_scale, return_lse
):
    operation = "paged_attention"
    entries = pages.windowed(pages.block_table(operation, tables, lengths, k_cache.shape[1]), window)
    output, lse = attend(operation, query, k_cache, v_cache, entries, scale, softcap, sinks, slopes, k_scale, v_scale)
    return _results(output, lse.squeeze(1), return_lse)


def paged_cross_attention(
    query, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, softcap, sinks, k_scale, v_scale, return_lse
):
    operation = "paged_cross_attention"
    entries = pages.csr(operation, indptr, indices, last_page_len, k_cache.shape[1])
    output, lse = attend(operation, query, k_cache, v_cache, entries, sm_scale, softcap, sinks, None, k_scale, v_scale)
    return _results(output, lse.transpose(1, 2), return_lse)


def cascade_decode_attention(
    query, shared_k, shared_v, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, window_left, softcap, sinks,
    slopes, k_scale, v_scale, return_lse,
):  # fmt: skip
    operation, window, shared = "cascade_decode_attention", pages.window_of(window_left), shared_k.shape[0]
    whole = pages.csr(operation, indptr, indices, last_page_len, k_cache.shape[1])
    entries = pages.windowed(whole, window)
    begin = None if window is None else (whole.end + (shared - window)).clamp(0, shared)
    how = (sm_scale, softcap, sinks, slopes, k_scale, v_scale)
    output, lse = attend(operation, query.unsqueeze(1), k_cache, v_cache, entries, *how, (shared_k, shared_v, begin))
    return _results(output.squeeze(1), lse.squeeze(1), return_lse)


def block_sparse_attention(q, k, v, indptr, indices, R, C, sm_scale, return_lse):  # noqa: N803
    """Treats a block of queries as a sequence whose pages are the listed blocks of keys."""
    operation = "block_sparse_attention"
    pages.refuse_offsets(operation, "indptr", indptr, indices.shape[0])
    keys, values = (t.unflatten(0, (-1, C)) for t in (k, v))
    full = torch.full_like(indptr[1:], C)
    entries = pages.csr(operation, indptr, indices, full, C)._replace(name="indices")
    output, lse = attend(operation, q.unflatten(0, (-1, R)), keys, values, entries, sm_scale, *[None] * 5)
    return _results(output.flatten(0, 1), lse.flatten(0, 1), return_lse)
