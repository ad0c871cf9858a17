"""Rotary embedding in Triton: a block for some heads of a token; computed in float32, rounded once."""

import math

import triton.language as tl

from layerzero.backends.triton.launching import ALIGNMENT, Kernel, power_of_two, warps_of

TILE = 2048  # pairs of columns of a block


def _rope(
    input,
    cos,
    sin,
    output,
    sign: tl.float32,
    tokens: tl.int64,
    all_heads: tl.int64,
    head_blocks: tl.int64,
    input_batch: tl.int64,
    input_token: tl.int64,
    input_head: tl.int64,
    output_batch: tl.int64,
    output_token: tl.int64,
    output_head: tl.int64,
    cos_batch: tl.int64,
    cos_token: tl.int64,
    cos_step: tl.int64,
    cos_second: tl.int64,
    sin_batch: tl.int64,
    sin_token: tl.int64,
    sin_step: tl.int64,
    sin_second: tl.int64,
    d: tl.constexpr,
    rotated: tl.constexpr,
    interleaved: tl.constexpr,
    input_unit: tl.constexpr,
    output_unit: tl.constexpr,
    heads: tl.constexpr,
    pairs: tl.constexpr,
    rest: tl.constexpr,
):
    """Strides of input and output are in units of input_unit and output_unit elements, by which the compiler knows what
    divides them. In a table, a pair's second column is cos_second elements after its first one, and the next pair begins
    cos_step elements after it; for the sines likewise."""
    place = tl.program_id(0).to(tl.int64)
    token = place // head_blocks
    head = place % head_blocks * heads + tl.arange(0, heads)[:, None]
    batch = token // tokens
    token = token % tokens
    source = input + (batch * input_batch + token * input_token + head * input_head) * input_unit
    target = output + (batch * output_batch + token * output_token + head * output_head) * output_unit
    cos += batch * cos_batch + token * cos_token
    sin += batch * sin_batch + token * sin_token
    if rotated > 0:
        pair = tl.arange(0, pairs)[None, :]
        known = pair < rotated // 2
        cos_j = tl.load(cos + pair * cos_step, mask=known, other=0.0).to(tl.float32)
        sin_j = tl.load(sin + pair * sin_step, mask=known, other=0.0).to(tl.float32) * sign
        cos_k = tl.load(cos + pair * cos_step + cos_second, mask=known, other=0.0).to(tl.float32)
        sin_k = tl.load(sin + pair * sin_step + sin_second, mask=known, other=0.0).to(tl.float32) * sign
        if interleaved:
            column = tl.arange(0, 2 * pairs)[None, :]
            inside = (column < rotated) & (head < all_heads)
            both = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
            x, y = tl.split(tl.reshape(both, [heads, pairs, 2]))
            both = tl.reshape(tl.join(x * cos_j - y * sin_j, y * cos_k + x * sin_k), [heads, 2 * pairs])
            tl.store(target + column, both.to(output.dtype.element_ty), mask=inside)
        else:
            inside = known & (head < all_heads)
            x = tl.load(source + pair, mask=inside, other=0.0).to(tl.float32)
            y = tl.load(source + pair + rotated // 2, mask=inside, other=0.0).to(tl.float32)
            tl.store(target + pair, (x * cos_j - y * sin_j).to(output.dtype.element_ty), mask=inside)
            y = y * cos_k + x * sin_k
            tl.store(target + pair + rotated // 2, y.to(output.dtype.element_ty), mask=inside)
    if rotated < d:
        column = rotated + tl.arange(0, rest)[None, :]
        inside = (column < d) & (head < all_heads)
        tl.store(target + column, tl.load(source + column, mask=inside, other=0.0), mask=inside)


_ROPE = Kernel(_rope, free=("cos", "sin"))


def _strides(table, step, second):
    """Returns a table's strides (batch, token, pair), and from a pair's first column to its second one."""
    batch = table.stride(0) if table.dim() == 3 and table.shape[0] > 1 else 0
    return batch, table.stride(-2), table.stride(-1) * step, table.stride(-1) * second


def _is_aligned(input):
    """Follows from d, `input.alignment >= 4` and, since what has strided columns is copied, `input.last_dim_stride1`."""
    bits = input.data_ptr() | input.shape[-1] * input.element_size()
    for size, stride in zip(input.shape[:-1], input.stride()[:-1], strict=True):
        bits |= stride * input.element_size() if size > 1 else 0
    return bits % ALIGNMENT == 0


def rope(input, cos, sin, interleaved, position_ids, inverse, rotary_dim, layout):
    """position_ids are not taken: whether they are inside the tables cannot be seen without waiting for the device."""
    output = input.new_empty(input.shape)
    if not input.numel():
        return output
    order = (0, 2, 1) if layout == "BHSD" else (0, 1, 2)
    batch, tokens, heads = (input.shape[axis] for axis in order)
    d, aligned, whole = input.shape[3], _is_aligned(input), ALIGNMENT // input.element_size()
    input_unit, output_unit = whole if aligned else 1, math.gcd(d, whole)
    step, second = 1, 0  # a value for each pair
    if cos.shape[-1] == rotary_dim:  # a value for each column
        step, second = (2, 1) if interleaved else (1, rotary_dim // 2)
    pairs, rest = power_of_two(rotary_dim // 2), power_of_two(d - rotary_dim)
    held = max(min(TILE // max(pairs, rest), 16), 1)
    head_blocks = -(-heads // held)
    _ROPE.run(
        batch * tokens * head_blocks,
        aligned,
        *(input, cos, sin, output, -1.0 if inverse else 1.0, tokens, heads, head_blocks),
        *(input.stride(axis) // input_unit for axis in order),
        *(output.stride(axis) // output_unit for axis in order),
        *_strides(cos, step, second),
        *_strides(sin, step, second),
        warps=warps_of(held * max(pairs, rest)),
        d=d,
        rotated=rotary_dim,
        interleaved=bool(interleaved),
        input_unit=input_unit,
        output_unit=output_unit,
        heads=held,
        pairs=pairs,
        rest=rest,
    )
    return output
