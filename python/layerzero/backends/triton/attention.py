"""Attention over dense keys in Triton: a block for some rows of a head, which reads the keys that these rows may see once.

Online softmax in float32 and base 2; the weights are rounded to the dtype of the values before they are multiplied with them.
Source of the method: Dao 2023, arXiv:2307.08691, algorithm 1.
"""

import torch
import triton
import triton.language as tl

from layerzero.backends.triton.launching import ALIGNMENT, Kernel, power_of_two

LOG2_E = 1.4426950408889634


@triton.jit
def _logits(q, k, scale, softcap, has_softcap: tl.constexpr):
    """Logits times log2(e): scale and softcap have that factor."""
    z = tl.dot(q, k, input_precision="tf32x3") * scale
    if has_softcap:
        y = tl.abs(z) / softcap
        e = tl.exp2(y * (-2.0 * 1.4426950408889634))
        series = y * (1.0 + y * y * (-1.0 / 3 + y * y * (2.0 / 15 + y * y * (-17.0 / 315 + y * y * (62.0 / 2835)))))
        bounded = softcap * tl.where(y < 0.25, series, (1.0 - e) / (1.0 + e))  # 1 - e of a small y has few digits
        z = tl.where(z < 0.0, -bounded, bounded)
    return z


def _attention(
    query,
    key,
    value,
    sinks,
    output,
    lse,
    scale: tl.float32,
    softcap: tl.float32,
    window: tl.int32,
    rows: tl.int32,
    keys: tl.int32,
    heads: tl.int64,
    group: tl.int64,
    row_blocks: tl.int64,
    query_batch: tl.int64,
    query_row: tl.int64,
    query_head: tl.int64,
    key_batch: tl.int64,
    key_row: tl.int64,
    key_head: tl.int64,
    value_batch: tl.int64,
    value_row: tl.int64,
    value_head: tl.int64,
    output_batch: tl.int64,
    output_row: tl.int64,
    output_head: tl.int64,
    d: tl.constexpr,
    unit: tl.constexpr,
    columns: tl.constexpr,
    block_rows: tl.constexpr,
    block_keys: tl.constexpr,
    causal: tl.constexpr,
    has_window: tl.constexpr,
    has_softcap: tl.constexpr,
    has_sinks: tl.constexpr,
    has_lse: tl.constexpr,
):
    """Strides are in units of `unit` elements, by which the compiler knows what divides them."""
    place = tl.program_id(0).to(tl.int64)
    head = place // row_blocks
    batch = head // heads
    head = head % heads
    # Of causal calls the blocks that see most keys begin first.
    first = ((row_blocks - 1 - place % row_blocks) * block_rows).to(tl.int32)
    row = first + tl.arange(0, block_rows)
    position = row + keys - rows
    column = tl.arange(0, columns)
    own = row < rows
    inside = column < d
    query += (batch * query_batch + head * query_head) * unit
    key += (batch * key_batch + head // group * key_head) * unit
    value += (batch * value_batch + head // group * value_head) * unit
    places = row.to(tl.int64)[:, None] * query_row * unit + column[None, :]
    q = tl.load(query + places, mask=own[:, None] & inside[None, :], other=0.0)
    begin, end = 0, keys
    if causal or has_window:
        end = tl.minimum(keys, first + block_rows + keys - rows)
    if has_window:
        begin = tl.maximum(begin, first + keys - rows - window + 1) // block_keys * block_keys
    top = tl.full([block_rows], float("-inf"), tl.float32)
    total = tl.zeros([block_rows], tl.float32)
    sums = tl.zeros([block_rows, columns], tl.float32)
    for start in range(begin, end, block_keys):
        seen = start + tl.arange(0, block_keys)
        known = seen < keys
        key_places = seen.to(tl.int64)[None, :] * key_row * unit + column[:, None]
        k = tl.load(key + key_places, mask=known[None, :] & inside[:, None], other=0.0)
        z = _logits(q, k, scale, softcap, has_softcap)
        visible = known[None, :]
        if causal or has_window:
            visible = visible & (seen[None, :] <= position[:, None])
        if has_window:
            visible = visible & (seen[None, :] > position[:, None] - window)
        z = tl.where(visible, z, float("-inf"))
        higher = tl.maximum(top, tl.max(z, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(z - base[:, None])
        before = tl.exp2(top - base)
        total = total * before + tl.sum(p, 1)
        value_places = seen.to(tl.int64)[:, None] * value_row * unit + column[None, :]
        v = tl.load(value + value_places, mask=known[:, None] & inside[None, :], other=0.0)
        sums = sums * before[:, None] + tl.dot(p.to(v.dtype), v, input_precision="tf32x3")
        top = higher
    whole = total
    if has_sinks:
        base = tl.where(top == float("-inf"), 0.0, top)
        whole += tl.exp2(tl.load(sinks + head).to(tl.float32) * 1.4426950408889634 - base)
    some = top != float("-inf")
    result = tl.where(some[:, None] | (total != total)[:, None], sums / whole[:, None], 0.0)
    output += (batch * output_batch + head * output_head) * unit
    places = row.to(tl.int64)[:, None] * output_row * unit + column[None, :]
    tl.store(output + places, result.to(output.dtype.element_ty), mask=own[:, None] & inside[None, :])
    if has_lse:
        natural = (tl.where(some, top, 0.0) + tl.log2(total)) * 0.6931471805599453
        tl.store(lse + (batch * heads + head) * rows + row, natural, mask=own)


_ATTENTION = Kernel(_attention, free=("sinks",))


def _tiles(columns, dtype):
    """Returns rows and keys of a block, warps and stages: they fit the shared memory of SM 8.6 and 12.0 (99 KiB)."""
    if dtype == torch.float32:
        return (64, 32, 8, 1) if columns > 64 else (64, 64, 4, 1)
    return (128, 32, 8, 2) if columns > 64 else (128, 64, 8, 2)


def attention(
    query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, return_lse, layout
):
    order = (0, 2, 1) if layout == "BHSD" else (0, 1, 2)
    batch, rows, heads = (query.shape[axis] for axis in order)
    keys, kv_heads = (key.shape[axis] for axis in order[1:])
    d, unit = query.shape[3], ALIGNMENT // query.element_size()
    output = query.new_empty(query.shape)
    lse = query.new_empty((batch, heads, rows), dtype=torch.float32) if return_lse else None
    columns = max(power_of_two(d), 16)
    block_rows, block_keys, warps, stages = _tiles(columns, query.dtype)
    row_blocks = -(-rows // block_rows)
    windowed = window is not None and window >= 0
    _ATTENTION.run(
        row_blocks * batch * heads,
        True,
        *(
            query,
            key,
            value,
            sinks,
            output,
            lse,
            scale * LOG2_E,
            (softcap or 0.0) * LOG2_E,
            min(window, keys) if windowed else 0,
        ),
        *(rows, keys, heads, heads // kv_heads, row_blocks),
        *(t.stride(axis) // unit for t in (query, key, value, output) for axis in order),
        warps=warps,
        stages=stages,
        d=d,
        unit=unit,
        columns=columns,
        block_rows=block_rows,
        block_keys=block_keys,
        causal=bool(causal),
        has_window=windowed,
        has_softcap=bool(softcap),
        has_sinks=sinks is not None,
        has_lse=bool(return_lse),
    )
    return (output, lse) if return_lse else output
