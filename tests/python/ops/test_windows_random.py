"""Convolution and pooling on random shapes and steps, every kernel against torch in float64."""

import torch
from every_kernel import assert_close, every_kernel
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
AXES = {1: [""], 2: ["_h", "_w"], 3: ["_d", "_h", "_w"]}


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3), st.sampled_from(DTYPES), st.integers(1, 3), st.booleans(), st.data())
def test_convolution(axes, dtype, groups, bias, data):
    def each(low, high):
        return [data.draw(st.integers(low, high)) for _ in range(axes)]

    window, stride, padding, dilation = each(1, 3), each(1, 3), each(0, 2), each(1, 2)
    size = [
        max(1, d * (w - 1) + 1 - 2 * p) + extra
        for w, p, d, extra in zip(window, padding, dilation, each(0, 6), strict=True)
    ]
    size[-1] += 4 * stride[-1]  # errors are relative to the largest value of a row
    c_group, c_out = data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    random = torch.Generator().manual_seed(sum(size))
    x = torch.randn(2, groups * c_group, *size, generator=random).to(dtype)
    w = torch.randn(c_out, c_group, *window, generator=random).to(dtype)
    b = torch.randn(c_out, generator=random).to(dtype) if bias else None
    conv = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    want = conv(x.double(), w.double(), b.double() if bias else None, stride, padding, dilation, groups)
    steps = {}
    for name, values in (("stride", stride), ("padding", padding), ("dilation", dilation)):
        steps |= {name + axis: value for axis, value in zip(AXES[axes], values, strict=True)}
    extra = {"bias": b} if bias else {}
    for kernel, (got,) in every_kernel(f"conv{axes}d", input=x, weight=w, groups=groups, **steps, **extra):
        assert_close(kernel, got, want, row_max=True)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 2), st.sampled_from(DTYPES), st.sampled_from(["max", "mean"]), st.booleans(), st.data())
def test_pooling(axes, dtype, mode, count_include_pad, data):
    window = [data.draw(st.integers(1, 4)) for _ in range(axes)]
    stride = [data.draw(st.integers(1, 3)) for _ in range(axes)]
    padding = [data.draw(st.integers(0, w // 2)) for w in window]
    size = [w + data.draw(st.integers(0, 7)) for w in window]
    leading = data.draw(st.lists(st.integers(0, 3), max_size=2))
    x = torch.randn(*leading, *size, generator=torch.Generator().manual_seed(sum(size))).to(dtype)
    flat = x.double().reshape(x.shape[:-axes].numel(), 1, *size)
    if mode == "max":
        want = (F.max_pool1d, F.max_pool2d)[axes - 1](flat, window, stride, padding)
    else:
        want = (F.avg_pool1d, F.avg_pool2d)[axes - 1](flat, window, stride, padding, False, count_include_pad)
    steps = {}
    for name, values in (("window", window), ("stride", stride), ("padding", padding)):
        steps |= {name + axis: value for axis, value in zip(AXES[axes], values, strict=True)}
    call = {"input": x, **steps, "mode": mode}
    if mode == "mean":
        call["count_include_pad"] = count_include_pad
    for kernel, (got,) in every_kernel(f"pool{axes}d", **call):
        assert_close(kernel, got, want.reshape(*leading, *want.shape[2:]))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 4),
    st.integers(0, 6),
    st.integers(0, 9),
    st.sampled_from(["mean", "first", "last", "max"]),
    st.sampled_from(["none", "mask", "lengths"]),
    st.sampled_from(DTYPES),
)
def test_sequence_pool(b, s, d, mode, valid, dtype):
    assume(s > 0 or valid != "mask")
    random = torch.Generator().manual_seed(b + 10 * s + 100 * d)
    x = torch.randn(b, s, d, generator=random).to(dtype)
    mask = torch.ones(b, s, dtype=torch.bool)
    extra = {}
    if valid == "mask":
        mask = torch.rand(b, s, generator=random) < 0.5
        extra["mask"] = mask
    elif valid == "lengths":
        extra["lengths"] = torch.randint(0, s + 1, (b,), generator=random)
        mask = torch.arange(s) < extra["lengths"][:, None]
    x = x.masked_fill(~mask[..., None], float("nan"))  # never read
    want = torch.zeros(b, d, dtype=torch.float64)
    for i in range(b):
        rows = x[i, mask[i]].double()
        if len(rows):
            want[i] = {"mean": rows.mean(0), "first": rows[0], "last": rows[-1], "max": rows.amax(0)}[mode]
    for kernel, (got,) in every_kernel("sequence_pool", input=x, mode=mode, **extra):
        assert_close(kernel, got, want)
