"""Gated products in Triton: a block for some columns of a row; computed in float32, rounded once."""

import torch
import triton
import triton.language as tl

from layerzero.backends.triton.launching import Kernel, are_aligned, power_of_two, warps_of

BLOCK = 1024  # columns of a row at most
LARGEST = 3.4028234663852886e38  # of float32: a bound of it changes infinities alone


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """Near 0, where 1 - exp(-2 |x|) cancels, by its series."""
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 - s * (17.0 / 315.0))))
    return tl.where(s < 0.01, near, tl.where(x < 0.0, -far, far))


@triton.jit
def _activated(x, name: tl.constexpr, alpha):
    """The functions of ops/common/activation.h."""
    if name == "silu":
        y = x * _sigmoid(alpha * x)
    elif name == "gelu":
        y = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif name == "gelu_tanh":
        y = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif name == "relu":
        y = tl.where(x < 0.0, 0.0, x)
    elif name == "relu2":
        y = tl.where(x < 0.0, 0.0, x * x)
    elif name == "quick_gelu":
        y = x * _sigmoid(1.702 * x)
    elif name == "sigmoid":
        y = _sigmoid(x)
    elif name == "tanh":
        y = _tanh(x)
    else:
        tl.static_assert(name == "identity")
        y = x
    return y


def _gated(
    gate,
    up,
    output,
    limit: tl.float32,
    alpha: tl.float32,
    up_offset: tl.float32,
    width: tl.constexpr,
    row: tl.constexpr,
    blocks: tl.constexpr,
    block: tl.constexpr,
    name: tl.constexpr,
    has_limit: tl.constexpr,
    interleaved: tl.constexpr,
):
    """width: columns of the output; row: elements from a row of gate and up to the next. Interleaved ones are read at once."""
    place = tl.program_id(0).to(tl.int64)
    columns = place % blocks * block + tl.arange(0, block)
    inside = columns < width
    first = place // blocks
    if interleaved:
        pairs = place % blocks * 2 * block + tl.arange(0, 2 * block)
        both = tl.load(gate + first * row + pairs, mask=pairs < 2 * width, other=0.0).to(tl.float32)
        g, u = tl.split(tl.reshape(both, [block, 2]))
    else:
        g = tl.load(gate + first * row + columns, mask=inside, other=0.0).to(tl.float32)
        u = tl.load(up + first * row + columns, mask=inside, other=0.0).to(tl.float32)
    if has_limit:
        g = tl.where(g > limit, limit, g)
        u = tl.where(u > limit, limit, tl.where(u < -limit, -limit, u))
    y = _activated(g, name, alpha) * (u + up_offset)
    tl.store(output + first * width + columns, y.to(output.dtype.element_ty), mask=inside)


_GATED = Kernel(_gated)


def _product(gate, up, output, aligned, row, name, limit=None, alpha=1.0, up_offset=0.0, interleaved=False):
    if output.numel():
        width = output.shape[-1]
        block = min(power_of_two(width), BLOCK)
        blocks = -(-width // block)
        bound = LARGEST if limit is None else min(float(limit), LARGEST)
        _GATED.run(
            output.numel() // width * blocks,
            aligned,
            *(gate, up, output, bound, float(alpha), float(up_offset)),
            warps=warps_of(block),
            width=width,
            row=row,
            blocks=blocks,
            block=block,
            name=name,
            has_limit=limit is not None,
            interleaved=bool(interleaved),
        )
    return output


def silu_and_mul(input):
    return gated_activation(input, "silu", None, 1.0, 0.0, False)


def gated_activation(input, activation, limit, alpha, up_offset, interleaved):
    n = input.shape[-1] // 2
    output = input.new_empty(*input.shape[:-1], n)
    up = input if interleaved else input.view(-1)[n:]
    aligned = are_aligned(2 * n if interleaved else n, input)
    return _product(input, up, output, aligned, 2 * n, activation, limit, alpha, up_offset, interleaved)


def swiglu(gate, up):
    return _product(gate, up, torch.empty_like(gate), are_aligned(gate.shape[-1], gate, up), gate.shape[-1], "silu")


def geglu(gate, up, approximate):
    name = "gelu_tanh" if approximate == "tanh" else "gelu"
    return _product(gate, up, torch.empty_like(gate), are_aligned(gate.shape[-1], gate, up), gate.shape[-1], name)
