"""Dense attention by torch's FlexAttention: causality, windows, soft-caps, ALiBi, sinks, the lse, grouped heads.

The operator is compiled for a kind of calls (flex_compiled.py); numbers and lengths are inputs of the compiled code. Which
blocks of keys a block of queries sees follows from the lengths, inside of the compiled code too. Nothing is read from a
tensor. Masked values are weighted by 0.
"""

import math
from typing import Any, NamedTuple

import torch
from torch.nn.attention import flex_attention as flex

from layerzero.backends.torch.attention import as_given, heads_first
from layerzero.backends.torch.common import number
from layerzero.backends.torch.flex_compiled import compiled

BLOCK = 128  # queries, and keys, of a block of the mask: FlexAttention's own default
SHORT = 128  # fewer queries are a kind of their own: torch compares with this number when it compiles


class Kind(NamedTuple):
    """What a compiled call has, besides the dtype and the sizes of heads. The row's `jit.key` names the same."""

    layout: str
    causal: bool
    window: bool
    softcap: bool
    alibi: bool
    sinks: bool
    lse: bool


def attention(
    query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, lse, layout
):
    directed = bool(causal) or window is not None  # a window ends at the row's own position
    kind = Kind(layout, directed, window is not None, bool(softcap), alibi_slopes is not None, sinks is not None, lse)
    axis, device = (2 if layout == "BHSD" else 1), query.device
    s_q, s_kv = query.shape[axis], key.shape[axis]
    tensors = [query, key, value, number(scale, device).reshape(())]
    if directed or kind.alibi:
        tensors.append(torch.full((), s_kv - s_q, dtype=torch.int32, device=device))
    if kind.window:
        tensors.append(number(min(window, 1 << 30), device, torch.int32).reshape(()))
    if kind.softcap:
        tensors.append(number(softcap, device).reshape(()))
    tensors += [t.float().contiguous() for t in (alibi_slopes, sinks) if t is not None]
    free = {0: 2} if query.shape[0] > 1 else {}
    queries = free | {axis: 100 if s_q < SHORT else 1000}
    keys = free | {axis: 1300}
    return compiled((kind, s_q < SHORT), expression(kind), tensors, (queries, keys, keys))


def expression(kind: Kind) -> Any:
    """Returns a function of the tensors that `attention` passes."""

    def run(query, key, value, scale, *others):
        q, k, v = heads_first(kind.layout, query, key, value)
        rest = list(others)
        offset = rest.pop(0) if kind.causal or kind.alibi else None
        window = rest.pop(0) if kind.window else None
        cap = rest.pop(0) if kind.softcap else None
        slopes = rest.pop(0) if kind.alibi else None
        out, lse = _attend(kind, q, k, v, scale, offset, window, cap, slopes)
        if kind.sinks:  # a sink is a key without a value: its share of the sum is removed
            share = torch.sigmoid(lse - rest[0][:, None]).masked_fill(lse == -math.inf, 0.0)
            out = (out.float() * share[..., None]).to(out.dtype)
        out = as_given(kind.layout, out)
        return [out, lse] if kind.lse else [out]

    return run


def _attend(kind, q, k, v, scale, offset, window, cap, slopes):
    """Returns (output, natural lse); heads come first."""
    s_q, s_kv = q.shape[2], k.shape[2]

    def score(z, b, h, i, j, *buffers):
        z, rest = z * buffers[0], list(buffers[1:])
        if kind.softcap:
            c = rest.pop(0)
            z = c * torch.tanh(z / c)
        return z - rest[0][h] * (i + rest[1] - j).abs() if kind.alibi else z

    def visible(b, h, i, j, *buffers):
        distance = i + buffers[0] - j
        return (distance >= 0) & (distance < buffers[1]) if kind.window else distance >= 0

    score_buffers = tuple(t for t in (scale, cap, slopes, offset if kind.alibi else None) if t is not None)
    mask_buffers: tuple[Any, ...] = ()
    if kind.causal:
        lists, block, seen = _blocks(q, k, offset, window), BLOCK, visible
        mask_buffers = (offset,) if window is None else (offset, window)
    else:  # one block
        lists = (q.new_ones(1, 1, 1, dtype=torch.int32), q.new_zeros(1, 1, 1, 1, dtype=torch.int32), None, None)
        block, seen = flex._LARGE_SPARSE_BLOCK_SIZE, _every
    fields: dict[str, Any] = dict(zip(_LISTS, lists, strict=True)) | dict.fromkeys(_BACKWARD)
    mask = flex.BlockMask(seq_lengths=(s_q, s_kv), **fields, BLOCK_SIZE=(block, block), mask_mod=seen)
    needs_lse = kind.lse or kind.sinks
    options = flex._apply_kernel_options(q, k, v, needs_lse, {})
    found = torch.ops.higher_order.flex_attention(
        q, k, v, score, mask.as_tuple(), 1.0, options, score_buffers, mask_buffers
    )
    return found[0], found[1] * math.log(2) if needs_lse else None


def _every(b, h, i, j):
    return j >= 0


_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_BACKWARD = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")


def _blocks(q, k, offset, window):
    """Returns (count, indices) of the blocks of keys that a block of queries sees in part, and of those that it sees
    whole: (1, 1, blocks of queries[, blocks of keys]) in int32. One block of each more than there are, so that no size
    is 1, which the compiler would take as a constant."""
    s_q, s_kv = q.shape[2], k.shape[2]
    rows, columns = -(-s_q // BLOCK) + 1, -(-s_kv // BLOCK) + 1
    # int32: of int64 Inductor (torch 2.13) makes expressions of indices, and fails on their quotients
    first = torch.arange(rows, dtype=torch.int32, device=q.device) * BLOCK + offset  # position of a block's first query
    last = (first + BLOCK - 1).clamp(max=s_kv - 1)
    end = torch.where(first < s_kv, (last // BLOCK + 1).clamp(min=0), 0)
    full_end = torch.minimum((first + 1).clamp(min=0) // BLOCK, end)
    begin = full_begin = torch.zeros_like(first)
    if window is not None:
        begin = torch.minimum((first - window + 1).clamp(min=0) // BLOCK, end)
        full_begin = (last - window + BLOCK).clamp(min=0) // BLOCK
    none = full_begin >= full_end
    full_begin, full_end = torch.where(none, end, full_begin), torch.where(none, end, full_end)
    column = torch.arange(columns, dtype=torch.int32, device=q.device)
    before = (full_begin - begin)[:, None]
    full = full_begin[:, None] + column
    part = torch.where(column < before, begin[:, None] + column, full_end[:, None] + column - before)
    counts = (end - begin - (full_end - full_begin), full_end - full_begin)
    indices = (t.clamp(0, columns - 1) for t in (part, full))
    return [t.to(torch.int32)[None, None].contiguous() for pair in zip(counts, indices, strict=True) for t in pair]
