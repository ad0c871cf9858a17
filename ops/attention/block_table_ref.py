"""Torch reference of attention.{standard,gqa}.decode.block_table: any device, differentiable; one sequence at a time."""

from ..common import attention as _attention


def reference(
    query, key_cache, value_cache, block_tables, context_lens, scale=None, *, window=None, softcap=None, sinks=None,
    alibi_slopes=None, k_scale=None, v_scale=None, return_lse=False,
):  # fmt: skip
    most = block_tables.shape[1] * key_cache.shape[1]
    how = {"softcap": softcap, "sinks": sinks, "slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale}
    parts = []
    for s, length in enumerate(context_lens.tolist()):
        if not 0 <= length <= most:
            raise ValueError(f"context_lens: wanted 0 to {most}, got {length}")
        k, v = _attention.entries((key_cache, value_cache), block_tables[s], length, 1, window, "block_tables")
        parts.append(_attention.rows(query[s], k, v, scale=scale, **how))
    result = _attention.packed(parts, query.squeeze(1), 0, value_cache.shape[-1], return_lse)
    return (result[0].unsqueeze(1), result[1]) if return_lse else result.unsqueeze(1)
