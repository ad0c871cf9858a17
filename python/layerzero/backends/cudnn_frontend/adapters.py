"""Attention by cuDNN through cudnn-frontend: dense calls with any strides, packed sequences, one query for each sequence over pages."""

import torch

from layerzero.backends.cudnn_frontend.graphs import Kind, run
from layerzero.backends.flash_attn.packed import pages_of, probe_of
from layerzero.backends.torch.attention import positive_scale


def _form(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(tensor.shape), tuple(tensor.stride())


def _attend(query, key, value, output, causal, scale, window, return_lse, pages=None):
    """All in (b, h, s, d), keys and values also as (pages, h, size, d). Writes `output`; returns lse (b, h, s)."""
    windowed = window is not None and window >= 0
    query, scale = positive_scale(query, scale)
    kind = Kind(
        query.dtype,
        query.device.index or 0,
        _form(query),
        _form(key),
        _form(value),
        _form(output),
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        int(window) if windowed else None,
        0 if causal or windowed else None,
        bool(return_lse),
        0 if pages is None else pages["key_table"].shape[2],
    )
    given = {"query": query, "key": key, "value": value, "output": output, **(pages or {})}
    if not return_lse:
        run(kind, given)
        return None
    stats = query.new_empty((*query.shape[:3], 1), dtype=torch.float32)
    run(kind, given | {"stats": stats})
    return stats.squeeze(-1)


def attention(
    query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, return_lse, layout
):
    q, k, v = (t.transpose(1, 2) if layout == "BSHD" else t for t in (query, key, value))
    output = query.new_empty((*query.shape[:3], value.shape[-1]))
    own = output.transpose(1, 2) if layout == "BSHD" else output
    lse = _attend(q, k, v, own, causal, scale, window, return_lse)
    return (output, lse) if return_lse else output


def cross_attention(query, key, value, scale, attn_mask, dropout_p, softcap, sinks, return_lse, layout):
    given = False, scale, None, 0.0, None, None, None, None, return_lse, layout
    return attention(query, key, value, *given)


def paged_attention(
    query, k_cache, v_cache, tables, lengths, scale, window, softcap, sinks, slopes, k_scale, v_scale, return_lse
):
    """query (b, 1, h, d), caches (blocks, size, h_kv, d). A sequence without keys is undefined in cuDNN: it reads one."""
    b, _, h, _ = query.shape
    _, _, _, _, used, table = pages_of(k_cache, v_cache, tables, lengths)
    assert used is not None and table is not None
    none = used.view(b, 1, 1) == 0
    pages = {
        "rows": torch.ones_like(used).view(b, 1, 1, 1),
        "lengths": used.clamp(min=1).view(b, 1, 1, 1),
        "key_table": table.contiguous().view(b, 1, -1, 1),
    }
    pages["value_table"] = pages["key_table"]
    output = query.new_empty((b, 1, h, v_cache.shape[-1]))
    key, value = (cache.transpose(1, 2) for cache in (k_cache, v_cache))
    lse = _attend(query.transpose(1, 2), key, value, output.transpose(1, 2), False, scale, window, return_lse, pages)
    output = output.masked_fill(torch.unsqueeze(none, -1), 0)
    return (output, lse.squeeze(-1).masked_fill(torch.squeeze(none, -1), -torch.inf)) if return_lse else output


def _packed_form(tensor, b, longest):
    """The (b, h, s, d) form of packed rows (tokens, h, d): a sequence's offset replaces the stride of the batch."""
    _, h, d = tensor.shape
    return (b, h, longest, d), (longest * h * d, d, h * d, 1)


def _offsets(given, total):
    """int32 offsets inside of the tensor that never decrease."""
    return given.to(torch.int32).clamp(0, total).cummax(0).values


def _rows_without_keys(total, cu_q, rows, lengths, causal):
    """True for each packed row that sees no key, and for those of no sequence."""
    row = torch.arange(total, device=cu_q.device)
    of = torch.searchsorted(cu_q[1:], row, right=True, out_int32=True).clamp(max=rows.shape[0] - 1)
    seen = lengths[of]
    if causal:
        seen = (seen - rows[of] + (row - cu_q[of]) + 1).clamp(max=seen)
    return (seen <= 0) | (row < cu_q[0]) | (row >= cu_q[-1])


def ragged_attention(
    query, key, value, cu_q, cu_k, causal, scale, window, softcap, sinks, slopes, max_q, max_k, return_lse
):
    """query (tokens, h, d). Rows without a key are undefined in cuDNN: such a sequence reads one, and its rows are replaced."""
    query, scale = positive_scale(query, scale)
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    (total, h, d), b = query.shape, cu_q.shape[0] - 1
    cu_q, cu_k = _offsets(cu_q, total), _offsets(cu_k, key.shape[0])
    rows, lengths = cu_q.diff(), cu_k.diff()
    windowed = window is not None and window >= 0
    longest_q, longest_k = min(max_q or total, total), min(max_k or key.shape[0], key.shape[0])
    output = query.new_zeros((total, h, value.shape[-1]))
    kind = Kind(
        query.dtype,
        query.device.index or 0,
        _packed_form(query, b, longest_q),
        _packed_form(key, b, longest_k),
        _packed_form(value, b, longest_k),
        _packed_form(output, b, longest_q),
        d**-0.5 if scale is None else float(scale),
        int(window) if windowed else None,
        0 if causal or windowed else None,
        bool(return_lse),
        packed=True,
    )
    given = {"query": query, "key": key, "value": value, "output": output}
    first = {"query": cu_q, "key": cu_k.clamp(max=key.shape[0] - 1), "output": cu_q}
    first["value"] = first["key"]
    given |= {f"{name}_starts": (at * given[name].stride(0)).view(-1, 1, 1, 1) for name, at in first.items()}
    given |= {"rows": rows.view(b, 1, 1, 1), "lengths": lengths.clamp(min=1).view(b, 1, 1, 1)}
    lse = query.new_full((total, h), -torch.inf, dtype=torch.float32)
    if return_lse:
        given |= {"stats": lse, "stats_starts": (cu_q * h).view(-1, 1, 1, 1)}
    run(kind, given)
    none = _rows_without_keys(total, cu_q, rows, lengths, causal or windowed)
    output = output.masked_fill(none.view(-1, 1, 1), 0)
    return (output, lse.masked_fill(none.view(-1, 1), -torch.inf)) if return_lse else output


probe = probe_of(attention)
