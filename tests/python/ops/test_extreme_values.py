"""Finite inputs of extreme size: sums, squares and differences that leave float32 may not leave the result."""

import layerzero as lz
import pytest
import torch
from every_kernel import assert_close, every_kernel

LARGE = [0.0, 30.0, 1e4, 1e7, 1e8, 1e30, -1e8, -1e30]


def merged_by_hand(parts, lse, sinks):
    """(output, lse) of parts (t, n, h, d) in float64: the largest term is subtracted first."""
    parts, lse, sinks = parts.double(), lse.double(), sinks.double()
    peak = torch.maximum(lse.amax(0), sinks)
    weights = torch.exp(lse - peak)
    total = weights.sum(0) + torch.exp(sinks - peak)
    return (weights[..., None] * parts).sum(0) / total[..., None], torch.logsumexp(lse, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", LARGE)
def test_a_sink_and_parts_of_equal_size_share_alike(dtype, size):
    """Three equal terms are a third each, however large their logits are."""
    parts = torch.randn(2, 3, 4, 8, dtype=dtype)
    lse, sinks = torch.full((2, 3, 4), size), torch.full((4,), size, dtype=dtype)
    lse[:, 1] = sinks.float()  # as bfloat16 rounds it
    lse[:, 0], lse[:, 2] = lse[:, 1], lse[:, 1]
    want, _ = merged_by_hand(parts, lse, sinks)
    calls = {
        "merge_attention": {"v_a": parts[0], "s_a": lse[0], "v_b": parts[1], "s_b": lse[1]},
        "merge_partials": {"partials": parts, "part_lse": lse},
    }
    for name, arguments in calls.items():
        for kernel, (got, *_) in every_kernel(name, **arguments, sinks=sinks):
            assert_close(kernel, got, want)


@pytest.mark.parametrize("spread", [1.0, 1e3, 1e20])
def test_merges_with_sinks_of_any_size(spread):
    generator = torch.Generator().manual_seed(7)
    parts = torch.randn(2, 16, 4, 8, generator=generator)
    lse, sinks = (torch.randn(s, generator=generator) * spread for s in ((2, 16, 4), (4,)))
    want, want_lse = merged_by_hand(parts, lse, sinks)
    call = {"v_a": parts[0], "s_a": lse[0], "v_b": parts[1], "s_b": lse[1], "sinks": sinks}
    for kernel, (got, got_lse) in every_kernel("merge_attention", **call):
        assert_close(kernel, got, want)
        assert_close(kernel, got_lse, want_lse, row_max=True)


def test_merging_with_a_sink_has_gradients_without_nan():
    leaves = [torch.randn(2, 3, 4), torch.randn(2, 3), torch.randn(2, 3, 4), torch.randn(2, 3)]
    sinks = torch.tensor([0.5, float("inf"), -1e8]).requires_grad_()
    leaves = [t.requires_grad_() for t in leaves]
    out, _ = lz.merge_attention(*leaves, sinks=sinks)
    for gradient in torch.autograd.grad(out.sum(), [*leaves, sinks]):
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "sqrt_softplus"])
@pytest.mark.parametrize("low", [-100.0, -720.0, -744.0, -900.0])
def test_routed_weights_are_finite_and_sum_to_the_scale(scoring, low):
    """The bias chooses experts whose scores are subnormal or 0: weights stay finite, and sum to 1 unless all are 0."""
    logits = torch.tensor([[0.0, low, -2000.0, -2000.0]], dtype=torch.float64)
    bias = torch.tensor([-50.0, 5.0, 5.0, 5.0], dtype=torch.float64)
    for k in (2, 3):
        call = {"k": k, "bias": bias, "scoring": scoring, "renormalize": True, "scale": 2.0}
        for kernel, (weights, _) in every_kernel("moe_route", logits=logits, **call):
            assert bool(weights.isfinite().all()), (kernel, weights)
            total = float(weights.sum())
            assert total == 0 or abs(total - 2) < 1e-5, (kernel, weights)


def norms(x, residual, weight, eps):
    """Each norm's call, the tensor that it normalises, and whether it centres it."""
    summed = x + residual
    yield "rms_norm", lambda: lz.rms_norm(x, weight, eps), x, False
    yield "layer_norm", lambda: lz.layer_norm(x, x.shape[-1], weight, None, eps), x, True
    yield "fused_add_rms_norm", lambda: lz.fused_add_rms_norm(x, residual, weight, eps)[0], summed, False
    yield (
        "fused_add_layer_norm",
        lambda: lz.fused_add_layer_norm(x, residual, x.shape[-1], weight, None, eps)[0],
        summed,
        True,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 7, 64, 1000])
@pytest.mark.parametrize("size", [1e-25, 1e17, 1e18, 1e19, 3e19, 1e30, 1e37])
def test_norms_of_rows_whose_squares_leave_float32(dtype, width, size):
    generator = torch.Generator().manual_seed(width)
    x, residual = (torch.randn(3, width, generator=generator).mul(size).to(dtype) for _ in range(2))
    weight = torch.randn(width, generator=generator).to(dtype)
    for eps in (1e-5, 0.0) if size < 1 and width > 1 else (1e-5,):
        for name, call, of, centred in norms(x, residual, weight, eps):
            wide = of.double()
            wide = wide - wide.mean(-1, keepdim=True) if centred else wide
            want = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()
            assert_close(name, call(), want, dtype)
