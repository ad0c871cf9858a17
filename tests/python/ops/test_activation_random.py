"""Activations and element-wise arithmetic on random shapes, strides and dtypes, every kernel against float64."""

import math

import pytest
import torch
from every_kernel import assert_close, every_kernel, memory
from hypothesis import given, settings
from hypothesis import strategies as st

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FUNCTIONS = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "gelu": lambda x: x / 2 * (1 + (x / math.sqrt(2)).erf()),
    "gelu_tanh": lambda x: x / 2 * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()),
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "quick_gelu": lambda x: x / (1 + (-1.702 * x).exp()),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "tanh": torch.tanh,
    "identity": lambda x: x,
}
ARITHMETIC = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
shapes = st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple)
widths = st.integers(0, 70)
layouts = st.sampled_from(["plain", "padded", "transposed"])


def normal(seed, shape, dtype, scale=3.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(FUNCTIONS)), shapes, widths, st.sampled_from(DTYPES), layouts, st.integers(0, 99))
def test_activation(function, leading, width, dtype, layout, seed):
    x = memory(normal(seed, (*leading, width), dtype), layout)
    want = FUNCTIONS[function](x.double())
    for kernel, (got,) in every_kernel("activation", input=x, function=function):
        assert got.dtype == dtype
        assert_close(kernel, got, want)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(sorted(FUNCTIONS)),
    shapes,
    widths,
    st.sampled_from(DTYPES),
    layouts,
    st.one_of(st.none(), st.floats(0.1, 10)),
    st.booleans(),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 99),
)
def test_gated_activation(activation, leading, width, dtype, layout, limit, interleaved, up_offset, seed):
    x = memory(normal(seed, (*leading, 2 * width), dtype), layout)
    alpha = 1.702 if activation == "silu" and limit is not None else 1.0
    g, u = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :width], x[..., width:])
    g, u = g.double(), u.double()
    if limit is not None:
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    act = g / (1 + (-alpha * g).exp()) if activation == "silu" else FUNCTIONS[activation](g)
    how = {"activation": activation, "alpha": alpha, "up_offset": up_offset, "interleaved": interleaved}
    if limit is not None:
        how["limit"] = limit
    for kernel, (got,) in every_kernel("gated_activation", input=x, **how):
        assert_close(kernel, got, act * (u + up_offset))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(ARITHMETIC)),
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4),
    st.integers(0, 3),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from([1.0, -0.5]),
    layouts,
    st.integers(0, 99),
)
def test_elementwise(function, axes, missing, dtype, other_dtype, scale, layout, seed):
    x = memory(normal(seed, [size for size, _ in axes], dtype), layout)
    y = normal(seed + 1, [1 if one else size for size, one in axes][missing:], other_dtype).abs() + 0.5
    want = ARITHMETIC[function](x.double(), scale * y.double())
    for kernel, (got,) in every_kernel("elementwise", input=x, other=y, function=function, scale=scale):
        assert_close(kernel, got, want)


@settings(deadline=None, max_examples=40)
@given(shapes, widths, st.sampled_from(DTYPES), st.sampled_from(DTYPES), layouts, st.integers(0, 99))
def test_cast_is_exact(leading, width, dtype, target, layout, seed):
    x = memory(normal(seed, (*leading, width), dtype, 1e3), layout)
    name = str(target).removeprefix("torch.")
    want = x.to(target)
    for kernel, (got,) in every_kernel("cast", input=x, dtype=name):
        if dtype == torch.float64 and target.itemsize == 2:  # torch rounds twice
            assert bool(((got.double() - x.double()).abs() <= (want.double() - x.double()).abs()).all()), kernel
        else:
            assert torch.equal(got, want), kernel


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_reduce_tree_does_not_depend_on_the_number_of_ranks(ranks):
    import layerzero as lz

    x = torch.randn(16, 3, 65, generator=torch.Generator().manual_seed(1)).bfloat16()
    whole = lz.reduce_tree(x)
    parts = torch.stack([lz.reduce_tree(part, dtype="float32") for part in x.chunk(ranks)])
    assert torch.equal(lz.reduce_tree(parts, dtype="bfloat16"), whole)
    for kernel, (got,) in every_kernel("reduce_tree", input=x):
        assert torch.equal(got, whole), kernel
