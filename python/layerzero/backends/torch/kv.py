"""Operations on rows of paged caches with torch's indexing, in place. On CUDA nothing is read on the host: a slot
outside the cache stops torch's kernel. Skipped rows repeat another row's write, so no shape depends on data."""

import torch

from layerzero.backends.torch.common import check_below
from layerzero.backends.torch.positions import check_positions, swapped_of, table_of
from layerzero.errors import KernelExecutionError


def _rows(cache, layout):
    """Returns the cache as [blocks, block_size, h, d]."""
    return cache.transpose(1, 2) if layout == "HND" else cache


def _stored(rows, scale, dtype):
    """Returns rows as a cache stores them."""
    if scale is None and rows.dtype == dtype:
        return rows
    if scale is not None:
        rows = (rows.float() if rows.dtype == torch.float64 else rows) / scale.reshape(-1, 1)
    elif rows.dtype == torch.float64:
        rows = rows.float()
    if dtype == torch.int8:
        return rows.round().clamp_(-127, 127).to(dtype)  # NaN becomes 0
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        largest = torch.finfo(dtype).max
        return rows.clamp(-largest, largest).to(dtype)
    return rows.to(dtype)


def _bytes(tensor):
    """Returns 8-bit floats as bytes, which every indexing kernel supports."""
    return tensor.view(torch.uint8) if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else tensor


def append_paged(key_cache, value_cache, key, value, slots, k_scale, v_scale, layout, name="kv_append_paged"):
    blocks, size = key_cache.shape[0], key_cache.shape[2 if layout == "HND" else 1]
    check_below(f"{name}: slots", slots, blocks * size)
    if not slots.numel() or not blocks * size:
        return
    slots = slots.long()
    # A row with a negative slot writes the first row with a valid slot again; if there is none, slot 0 is unchanged.
    given = slots >= 0
    row = torch.where(given, torch.arange(slots.shape[0], device=slots.device), given.to(torch.uint8).argmax())
    place = slots[row].clamp(min=0)
    block, offset = (place // size, place % size)
    for cache, rows, scale in ((key_cache, key, k_scale), (value_cache, value, v_scale)):
        view = _bytes(_rows(cache, layout))
        stored = _bytes(_stored(rows, scale, cache.dtype)).index_select(0, row)
        kept = view[block[:1], offset[:1]]
        view.index_put_((block, offset), torch.where(given[row][:, None, None], stored, kept))


def rope_append_paged(
    query,
    key,
    value,
    cos,
    sin,
    key_cache,
    value_cache,
    slots,
    position_ids,
    interleaved,
    rotary_dim,
    k_scale,
    v_scale,
    layout,
):
    check_positions("kv_rope_append_paged", position_ids, cos.shape[0])
    wide = torch.promote_types(query.dtype, torch.float32)
    cos, sin = (table_of(t.to(wide), position_ids, rotary_dim, interleaved, 2) for t in (cos, sin))

    def turned(rows):
        x = rows[..., :rotary_dim]
        # Each product is rounded, as the definition has it: no addcmul.
        output = (x * cos[0] + swapped_of(x, interleaved).to(wide) * sin[0]).to(rows.dtype)
        return output if rotary_dim == rows.shape[-1] else torch.cat((output, rows[..., rotary_dim:]), -1)

    append_paged(
        key_cache, value_cache, turned(key), value, slots, k_scale, v_scale, layout, name="kv_rope_append_paged"
    )
    return turned(query)


def gather(cache, slots, scale, dtype, layout):
    view = _rows(cache, layout)
    check_below("kv_gather: slots", slots, view.shape[0] * view.shape[1])
    target = cache.dtype if dtype is None else getattr(torch, dtype)
    if not slots.numel() or not view.shape[0] * view.shape[1]:
        return cache.new_zeros((slots.shape[0], *view.shape[2:]), dtype=target)
    place = slots.long().clamp(min=0)
    rows = _bytes(view)[place // view.shape[1], place % view.shape[1]].view(cache.dtype)
    left_out = (slots < 0)[:, None, None]
    if scale is not None:
        rows = rows.float() * scale.reshape(-1, 1)
    elif rows.dtype != target and rows.dtype == torch.float64:
        rows = rows.float()
    if rows.dtype == target:
        return _bytes(rows).masked_fill_(left_out, 0).view(target)
    return rows.to(target).masked_fill_(left_out, 0)


def compact(key_cache, value_cache, moves):
    if not moves.is_cuda:
        _check_moves(moves, key_cache.shape[0])
    if not moves.numel() or not key_cache.shape[0]:
        return
    given = moves[:, 0] >= 0
    row = torch.where(given, torch.arange(moves.shape[0], device=moves.device), given.to(torch.uint8).argmax())
    moves = moves.long().index_select(0, row)
    # Rows without a pair to move copy block 0 to itself.
    source, target = torch.where(given.any(), moves, 0).unbind(1)
    for cache in (key_cache, value_cache):
        view = _bytes(cache)
        view.index_copy_(0, target, view.index_select(0, source))


def _check_moves(moves, blocks):
    pairs = [(a, b) for a, b in moves.tolist() if a >= 0]
    named = [n for pair in pairs for n in pair]
    if named and not 0 <= min(named) <= max(named) < blocks:
        raise KernelExecutionError("kv_compact: moves", f"blocks below {blocks}", str(moves.tolist()))
    sources, targets = {a for a, _ in pairs}, {b for _, b in pairs}
    if len(targets) < len(pairs) or sources & targets:
        raise KernelExecutionError(
            "kv_compact: moves", "targets that no other pair reads or writes", str(moves.tolist())
        )


def block_table_update(block_tables, updates):
    if not updates.is_cuda:
        _check_updates(block_tables, updates)
    if not updates.numel() or not block_tables.numel():
        return
    sequence, position, block = updates.long().unbind(1)
    # Of equal entries the last one wins: all of them write its block.
    entry, order = (sequence * block_tables.shape[1] + position).sort(stable=True)
    last = order[torch.searchsorted(entry, entry, right=True) - 1]
    limits = torch.iinfo(block_tables.dtype)
    outside = (sequence < 0) | (position < 0)  # torch would index from the end
    outside |= (block < limits.min) | (block > limits.max)  # and would truncate to the low bits
    sequence = sequence.masked_fill(outside, block_tables.shape[0])
    block_tables.index_put_((sequence[order], position[order]), block[last].to(block_tables.dtype))


def _check_updates(block_tables, updates):
    shape, limits = tuple(block_tables.shape), torch.iinfo(block_tables.dtype)
    for row, position, block in updates.tolist():
        if not (0 <= row < shape[0] and 0 <= position < shape[1] and limits.min <= block <= limits.max):
            wanted = f"places of a {shape} table"
            raise KernelExecutionError("kv_block_table_update: updates", wanted, str((row, position, block)))
