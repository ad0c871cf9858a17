"""Torch reference of attention.{standard,gqa}.decode.block_table: any device, differentiable; one sequence at a time."""

import torch


def reference(
    query,
    key_cache,
    value_cache,
    block_tables,
    context_lens,
    scale=None,
    *,
    window=None,
    softcap=None,
    sinks=None,
    return_lse=False,
):
    blocks, size = key_cache.shape[:2]
    rows = []
    for s, length in enumerate(context_lens.tolist()):
        if not 0 <= length <= block_tables.shape[1] * size:
            raise ValueError(f"context_lens: wanted 0 to {block_tables.shape[1] * size}, got {length}")
        begin = 0 if window in (None, -1) else max(length - window, 0)
        seen = (
            block_tables[s, begin // size : (length - 1) // size + 1].long() if length else block_tables[s, :0].long()
        )
        if seen.numel() and not 0 <= int(seen.min()) <= int(seen.max()) < blocks:
            raise ValueError(f"block_tables: wanted blocks below {blocks}, got {seen.tolist()}")
        first = begin // size * size if length else 0
        k, v = (cache[seen].flatten(0, 1)[begin - first : length - first] for cache in (key_cache, value_cache))
        rows.append(_decode(query[s, 0], k, v, scale, softcap, sinks))
    heads = query.shape[2]
    out = torch.stack([o for o, _ in rows]) if rows else query.new_zeros(0, heads, value_cache.shape[-1])
    lse = torch.stack([lse for _, lse in rows]) if rows else query.new_zeros(0, heads, dtype=torch.float32)
    return (out.unsqueeze(1), lse) if return_lse else out.unsqueeze(1)


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
