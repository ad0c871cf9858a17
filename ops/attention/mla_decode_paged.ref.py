"""Torch reference of attention.mla.decode.paged: any device, differentiable; one sequence at a time."""

from itertools import pairwise

import torch


def reference(
    q_nope,
    q_pe,
    ckv_cache,
    kpe_cache,
    kv_indptr,
    kv_indices,
    kv_last_page_len,
    sm_scale,
    *,
    return_lse=False,
):
    pages, size = ckv_cache.shape[:2]
    indptr, last = kv_indptr.tolist(), kv_last_page_len.tolist()
    counts = [b - a for a, b in pairwise(indptr)]
    if indptr[0] != 0 or min(counts, default=0) < 0 or indptr[-1] > kv_indices.shape[0]:
        raise ValueError(f"kv_indptr: wanted offsets from 0, never decreasing, to {kv_indices.shape[0]}, got {indptr}")
    compute = torch.promote_types(q_nope.dtype, torch.float32)
    out = torch.zeros_like(q_nope, dtype=compute)
    lse = q_nope.new_full(q_nope.shape[:2], -torch.inf, dtype=compute)
    rows = []
    for s, count in enumerate(counts):
        if count and not 0 <= last[s] <= size:
            raise ValueError(f"kv_last_page_len: wanted 0 to {size}, got {last[s]}")
        length = (count - 1) * size + last[s] if count else 0
        if length == 0:
            rows.append((out[s], lse[s]))
            continue
        seen = kv_indices[indptr[s] : indptr[s] + (length - 1) // size + 1].long()
        if not 0 <= int(seen.min()) <= int(seen.max()) < pages:
            raise ValueError(f"kv_indices: wanted pages below {pages}, got {seen.tolist()}")
        ckv, kpe = (cache[seen].flatten(0, 1)[:length].to(compute) for cache in (ckv_cache, kpe_cache))
        z = sm_scale * (q_nope[s].to(compute) @ ckv.T + q_pe[s].to(compute) @ kpe.T)
        rows.append((torch.softmax(z, -1) @ ckv, torch.logsumexp(z, -1)))
    if rows:
        out, lse = (torch.stack(parts) for parts in zip(*rows, strict=True))
    out = out.to(q_nope.dtype)
    return (out, lse.float()) if return_lse else out
