"""Packed and paged attention with torch's flash kernel for sequences of different lengths, on CUDA in half precision.

Listed pages are gathered in the order of the list, which is packed: sequence s begins at kv_indptr[s] * page_size, and
`seqused_k` limits it to the slots in use, so nothing is padded and no length is read on the host. Index data is clamped
to the tensors' bounds: invalid data reads other entries of the same tensors, never anything outside them.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

from layerzero.backends.torch.attention import positive_scale
from layerzero.backends.torch.common import constant
from layerzero.backends.torch.pages import window_of
from layerzero.backends.torch.partials import merged


class Keys(NamedTuple):
    """Packed keys and values (tokens, h_kv, d) and the location of each sequence."""

    key: torch.Tensor
    value: torch.Tensor
    begin: torch.Tensor  # (b + 1) int32 first token of each sequence
    used: torch.Tensor | None  # (b) int32 tokens of each sequence; None: up to the next one's first


def most_queries(most, sequences, queries):
    """Returns the bound of a sequence's queries that FlashAttention 2 may get. With 1 it reads grouped heads as rows of
    queries, one for each sequence; else the bound has no effect on results, which depend on the real lengths."""
    return most if sequences == queries else max(most, 2)


def forward(query, keys, cu_q, max_q, causal, scale, window=None):
    """Returns output (rows, h_q, d) and the kernel's own lse (rows, h_q); the window includes the own position. A row
    without a key has the output 0 and, like a row with NaN, the lse +inf."""
    query, scale = positive_scale(query, scale)  # with a scale below 0 rows become NaN
    output, sums, *_ = torch.ops.aten._flash_attention_forward(
        query,
        keys.key,
        keys.value,
        cu_q,
        keys.begin,
        most_queries(max_q, cu_q.shape[0] - 1, query.shape[0]),
        keys.key.shape[0],
        0.0,
        causal or window is not None,
        False,
        scale=scale,
        window_size_left=None if window is None else window - 1,
        window_size_right=None if window is None else 0,
        seqused_k=keys.used,
    )
    return output, sums.transpose(0, 1)


def true_lse(output, lse):
    """Corrects the lse: -inf for a row without a key, NaN for one with NaN."""
    return torch.where(lse == torch.inf, output[..., 0].float() * 0 - torch.inf, lse)


def listed(cache, page, dtype):
    """Gathers pages (n) of a cache (pages, size, h, d) as packed tokens (n * size, h, d)."""
    if cache.dtype.itemsize > 1:
        return cache.index_select(0, page).flatten(0, 1)
    return cache.view(torch.uint8).index_select(0, page).view(cache.dtype).flatten(0, 1).to(dtype)


def cached(dtype, k_cache, v_cache, pages, begin, used):
    page = pages.clamp(0, k_cache.shape[0] - 1)
    return Keys(listed(k_cache, page, dtype), listed(v_cache, page, dtype), begin, used)


def csr(query, k_cache, v_cache, indptr, indices, last_page_len):
    size = k_cache.shape[1]
    begin = indptr.clamp(0, indices.shape[0]).to(torch.int32).mul_(size)
    used = (last_page_len - size).clamp_(max=0).to(torch.int32).add_(begin[1:]).sub_(begin[:-1]).clamp_(min=0)
    return cached(query.dtype, k_cache, v_cache, indices, begin, used)


def without_hidden(keys, window, queries=1):
    """Drops the keys before every window of a sequence's last `queries` rows."""
    if window is None:
        return keys
    skipped = (keys.used - (queries + window - 1)).clamp_(min=0)
    return keys._replace(begin=keys.begin + F.pad(skipped, (0, 1)), used=keys.used - skipped)


def in_units(query, k_scale, h_kv):
    """Multiplies the query by the k_scale of its head."""
    if k_scale is None:
        return query
    return (query.unflatten(-2, (h_kv, -1)) * k_scale.reshape(-1, 1, 1)).flatten(-3, -2).to(query.dtype)


def completed(output, lse, sinks, v_scale, h_kv):
    """Applies sinks and v_scale, which are factors of the output (rows, h_q, d)."""
    if v_scale is not None:
        output = (output.unflatten(-2, (h_kv, -1)) * v_scale.reshape(-1, 1, 1)).flatten(-3, -2)
    empty, whole = lse == -torch.inf, output.float()
    if sinks is not None:
        whole = whole / (1 + torch.exp(sinks.float() - lse.masked_fill(empty, 0)))[..., None]
        empty = empty | ((sinks == torch.inf) & lse.isfinite())
    return whole.masked_fill(empty[..., None], 0)


def each(batch, rows, device):
    """Returns offsets of sequences with equally many rows."""
    stop = (batch + 1) * rows
    return constant(("offsets", stop, rows), device, lambda d: torch.arange(0, stop, rows, dtype=torch.int32, device=d))


def attend(query, keys, cu_q, max_q, causal, scale, window, sinks, k_scale, v_scale, return_lse):
    """Returns output, and lse on request, with everything applied that the kernel does not support itself."""
    h_kv, extra = keys.key.shape[1], sinks is not None or v_scale is not None
    scaled = in_units(query, k_scale, h_kv)
    output, lse = forward(scaled, keys, cu_q, max_q, causal, scale, window)
    lse = true_lse(output, lse) if return_lse or extra else lse
    return completed(output, lse, sinks, v_scale, h_kv).to(query.dtype) if extra else output, lse


def decode(query, keys, n, scale, sinks, k_scale, v_scale, return_lse):
    """Attends with n rows per sequence (b * n, h_q, d), all of which see all its keys."""
    cu_q = each(keys.used.shape[0], n, query.device)
    return attend(query, keys, cu_q, n, False, scale, None, sinks, k_scale, v_scale, return_lse)


def _results(both, return_lse):
    return both if return_lse else both[0]


def paged_decode_attention(
    q, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, window_left, softcap, sinks, slopes, k_scale, v_scale,
    return_lse,
):  # fmt: skip
    keys = csr(q, k_cache, v_cache, indptr, indices, last_page_len)
    keys = without_hidden(keys, window_of(window_left))
    return _results(decode(q, keys, 1, sm_scale, sinks, k_scale, v_scale, return_lse), return_lse)


def paged_attention(
    query, k_cache, v_cache, tables, lengths, scale, window, softcap, sinks, slopes, k_scale, v_scale, return_lse
):
    most = tables.shape[1] * k_cache.shape[1]
    begin = each(tables.shape[0], most, query.device)
    keys = cached(query.dtype, k_cache, v_cache, tables.flatten(), begin, lengths.clamp(0, most))
    keys = without_hidden(keys, window)
    output, lse = decode(query.squeeze(1), keys, 1, scale, sinks, k_scale, v_scale, return_lse)
    return _results((output.unsqueeze(1), lse), return_lse)


def paged_cross_attention(
    query, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, softcap, sinks, k_scale, v_scale, return_lse
):
    b, n = query.shape[:2]
    keys = csr(query, k_cache, v_cache, indptr, indices, last_page_len)
    output, lse = decode(query.flatten(0, 1), keys, n, sm_scale, sinks, k_scale, v_scale, return_lse)
    output = output.unflatten(0, (b, n))
    return (output, lse.unflatten(0, (b, n)).transpose(1, 2)) if return_lse else output


def cascade_decode_attention(
    query, shared_k, shared_v, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, window_left, softcap, sinks,
    slopes, k_scale, v_scale, return_lse,
):  # fmt: skip
    """Treats all queries as rows of one sequence over the prefix, and merges the two results."""
    h_kv, dtype, (b, n) = shared_k.shape[1], query.dtype, (query.shape[0], shared_k.shape[0])
    scaled, whole = in_units(query, k_scale, h_kv), each(1, n, query.device)
    prefix = Keys(shared_k.to(dtype), shared_v.to(dtype), whole, whole[1:])
    first, lse_a = forward(scaled, prefix, each(1, b, query.device), b, False, sm_scale)
    suffix = csr(query, k_cache, v_cache, indptr, indices, last_page_len)
    second, lse_b = forward(scaled, suffix, each(b, 1, query.device), 1, False, sm_scale)
    extra = sinks is not None or v_scale is not None
    if return_lse or extra:
        lse_a, lse_b = true_lse(first, lse_a), true_lse(second, lse_b)
    else:  # NaN propagates through the outputs, whatever their weights
        lse_b = lse_b.masked_fill(lse_b == torch.inf, -torch.inf)
    share = torch.sigmoid(lse_a - lse_b)
    output, lse = merged(first, share, second, 1 - share), None
    if return_lse or extra:
        lse = torch.logaddexp(lse_a, lse_b)
        output = completed(output, lse, sinks, v_scale, h_kv).to(dtype) if extra else output
    return _results((output, lse), return_lse)


def packed_offsets(offsets, total):
    """Returns offsets clamped to [0, total] that never decrease, with one more sequence for the rest: (b + 2)."""
    return F.pad(offsets, (0, 1), value=total).clamp_(0, total).cummax(0).values


def paged_prefill_attention(
    query, k_cache, v_cache, qo_indptr, indptr, indices, last_page_len, sm_scale, causal, window_left, softcap, sinks,
    slopes, k_scale, v_scale, return_lse,
):  # fmt: skip
    window, cu_q = window_of(window_left), packed_offsets(qo_indptr, query.shape[0])
    keys = csr(query, k_cache, v_cache, indptr, indices, last_page_len)
    keys = keys if window is None else without_hidden(keys, window, cu_q.diff()[:-1])
    keys = keys._replace(begin=F.pad(keys.begin, (0, 1)), used=F.pad(keys.used, (0, 1)))
    how = (query.shape[0], causal, sm_scale, window, sinks, k_scale, v_scale)
    return _results(attend(query, keys, cu_q, *how, return_lse), return_lse)


def ragged(query, key, value, cu_q, cu_k, causal, scale, window, sinks, return_lse):
    """Returns output and lse. Two more sequences hold the queries of none, without keys, and the keys of none."""
    total = query.shape[0]
    cu_q, begin = packed_offsets(cu_q, total), packed_offsets(cu_k, key.shape[0])
    cu_q, begin = F.pad(cu_q, (0, 1), value=total), torch.cat([begin[:-1], begin[-2:]])
    keys = Keys(key, value, begin, None)
    return attend(query, keys, cu_q, total, causal, scale, window, sinks, None, None, return_lse)


def ragged_attention(
    query, key, value, cu_q, cu_k, causal, scale, window, softcap, sinks, slopes, max_q, max_k, return_lse
):
    return _results(ragged(query, key, value, cu_q, cu_k, causal, scale, window, sinks, return_lse), return_lse)


def pod_attention(
    query_p, key_p, value_p, cu_q, cu_k, query_d, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, causal,
    window_left, softcap, sinks, return_lse,
):  # fmt: skip
    window = window_of(window_left)
    output_p, lse_p = ragged(query_p, key_p, value_p, cu_q, cu_k, causal, sm_scale, window, sinks, return_lse)
    keys = without_hidden(csr(query_d, k_cache, v_cache, indptr, indices, last_page_len), window)
    output_d, lse_d = decode(query_d, keys, 1, sm_scale, sinks, None, None, return_lse)
    return (output_p, output_d, lse_p, lse_d) if return_lse else (output_p, output_d)


def block_sparse_attention(q, k, v, indptr, indices, R, C, sm_scale, return_lse):  # noqa: N803
    """Treats a block of queries as a sequence whose pages are the listed blocks of keys."""
    keys, values = (t.unflatten(0, (-1, C)) for t in (k, v))
    found = csr(q, keys, values, indptr, indices, torch.full_like(indptr[1:], C))
    return _results(decode(q, found, R, sm_scale, None, None, None, return_lse), return_lse)
