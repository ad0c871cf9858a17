"""Torch reference of attention.{standard,gqa}.decode.paged: any device, differentiable; one sequence at a time."""

from itertools import pairwise

import torch


def reference(
    query,
    paged_k_cache,
    paged_v_cache,
    kv_indptr,
    kv_indices,
    kv_last_page_len,
    sm_scale=None,
    *,
    window_left=-1,
    softcap=None,
    sinks=None,
    return_lse=False,
):
    page_size = paged_k_cache.shape[1]
    indptr, last = kv_indptr.tolist(), kv_last_page_len.tolist()
    _check(indptr, last, kv_indices.shape[0], page_size)
    rows = []
    for s in range(query.shape[0]):
        pages = indptr[s + 1] - indptr[s]
        length = (pages - 1) * page_size + last[s] if pages else 0
        begin = max(length - 1 - window_left, 0) if window_left >= 0 else 0
        if begin == length:
            seen = kv_indices[:0].long()
        else:
            seen = kv_indices[indptr[s] + begin // page_size : indptr[s] + (length - 1) // page_size + 1].long()
        if seen.numel() and not 0 <= int(seen.min()) <= int(seen.max()) < paged_k_cache.shape[0]:
            raise ValueError(f"kv_indices: wanted pages below {paged_k_cache.shape[0]}, got {seen.tolist()}")
        first = begin // page_size * page_size if page_size else 0
        k, v = (cache[seen].flatten(0, 1)[begin - first : length - first] for cache in (paged_k_cache, paged_v_cache))
        rows.append(_decode(query[s], k, v, sm_scale, softcap, sinks))
    heads = query.shape[1]
    out = torch.stack([o for o, _ in rows]) if rows else query.new_zeros(0, heads, paged_v_cache.shape[-1])
    lse = torch.stack([lse for _, lse in rows]) if rows else query.new_zeros(0, heads, dtype=torch.float32)
    return (out, lse) if return_lse else out


def _check(indptr, last, num_indices, page_size):
    lengths = [b - a for a, b in pairwise(indptr)]
    if indptr[0] != 0 or min(lengths, default=0) < 0 or indptr[-1] > num_indices:
        raise ValueError(f"kv_indptr: wanted offsets from 0, never decreasing, up to {num_indices}, got {indptr}")
    if any(pages and not 0 <= n <= page_size for pages, n in zip(lengths, last, strict=True)):
        raise ValueError(f"kv_last_page_len: wanted 0 to {page_size}, got {last}")


def _decode(q, k, v, scale, softcap, sinks):
    """One query (h_q, d) over keys (n, h_kv, d) and values (n, h_kv, d_v), all of them seen. With the lse."""
    compute = torch.promote_types(q.dtype, torch.float32)
    if k.shape[0] == 0:
        return q.new_zeros(q.shape[0], v.shape[-1]), q.new_full(q.shape[:1], -torch.inf, dtype=torch.float32)
    scale = scale if scale is not None else q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
    group = q.shape[0] // max(k.shape[1], 1)
    k, v = (t.to(compute).repeat_interleave(group, 1) for t in (k, v))
    z = torch.einsum("hd,nhd->hn", q.to(compute), k) * scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    lse = torch.logsumexp(z, -1)
    empty = lse == -torch.inf  # every logit is -inf
    weights = torch.softmax(torch.where(empty[:, None], 0.0, z), -1) * ~empty[:, None]
    lse = torch.where(lse == torch.inf, torch.nan, lse)
    if sinks is not None:  # one more term of the denominator
        weights = weights * torch.sigmoid(torch.where(empty, 0.0, lse) - sinks.to(compute))[:, None]
    return torch.einsum("hn,nhd->hd", weights, v).to(q.dtype), lse.float()
