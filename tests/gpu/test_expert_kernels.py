"""Own CUDA kernels of experts at sizes of models, against torch's FP64 on the device, in graphs too."""

import layerzero as lz
import pytest
import torch
from layerzero.torch.references import call_reference

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def check(name, values, kernel, tolerance, **options):
    """Each row within `tolerance` of its largest element."""
    got = getattr(lz, name)(**values, **options, kernel=kernel).double()
    wide = {k: v.double() if v.is_floating_point() else v for k, v in values.items()}
    want = call_reference(name, wide | options)
    least = max(
        1e-6, torch.finfo(values["input"].dtype).smallest_normal
    )  # below, float16 itself has steps of this size
    worst = ((got - want).abs() / want.abs().amax(-1, keepdim=True).clamp(min=least)).amax()
    assert worst <= tolerance, f"{name} {kernel} {options}: off by {worst}"


def kernels_of(name, dtype):
    return [name, f"{name}.fp32"] if dtype != torch.float32 else [f"{name}.fp32"]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("experts", "n", "d"), [(1, 64, 64), (8, 200, 136), (60, 1000, 1024), (300, 72, 64)])
def test_products_of_ranges(dtype, experts, n, d):
    torch.manual_seed(n)
    weight, bias = normal(experts, n, d, dtype=dtype, scale=d**-0.5), normal(experts, n, dtype=dtype)
    for rows in (1, 17, 400, 3000):
        offsets = torch.randint(0, rows + 1, (experts + 1,), device="cuda").sort().values.int()
        values = {"input": normal(rows, d, dtype=dtype), "weight": weight, "offsets": offsets, "bias": bias}
        for kernel in kernels_of("cuda.moe.grouped_gemm", dtype):
            check("grouped_gemm", values, kernel, TOLERANCE[dtype])


def block(experts, d, n, m, dtype, form):
    weights = {"down_weight": normal(experts, m, n, dtype=dtype, scale=n**-0.5)}
    if form == "separate":
        weights["up_weight"] = normal(experts, n, d, dtype=dtype, scale=d**-0.5)
    rows = 2 * n if form in ("packed", "interleaved") else n
    return weights | {"gate_weight": normal(experts, rows, d, dtype=dtype, scale=d**-0.5)}


FORMS = {
    "separate": {"activation": "silu"},
    "packed": {"activation": "gelu_tanh", "weighted": "input"},
    "interleaved": {"limit": 7.0, "alpha": 1.702, "up_offset": 1.0, "interleaved": True},
    "one": {"activation": "relu2"},
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_experts(dtype, form):
    torch.manual_seed(7)
    for experts, k, d, n, m in ((8, 2, 512, 1024, 512), (64, 6, 264, 200, 264), (128, 8, 64, 72, 96)):
        weights = block(experts, d, n, m, dtype, form)
        for tokens in (1, 5, 130, 1000):
            ids = torch.randint(-1, experts + 1, (tokens, k), device="cuda")
            values = {"input": normal(tokens, d, dtype=dtype), "expert_ids": ids, **weights}
            values["expert_weights"] = torch.rand(tokens, k, device="cuda")
            for kernel in kernels_of("cuda.moe.fused", dtype):
                check("fused_moe", values, kernel, 2 * TOLERANCE[dtype], **FORMS[form])


@pytest.mark.parametrize("scale", [1e-5, 1.0, 300.0])
def test_hidden_rows_that_float16_does_not_hold(scale):
    """Hidden rows up to 1e5 or down to 1e-10."""
    torch.manual_seed(1)
    weights = block(4, 256, 512, 256, torch.float16, "separate") | {
        "down_weight": normal(4, 256, 512, scale=1e-3).half()
    }
    values = {"input": normal(40, 256, scale=scale).half(), "expert_ids": torch.randint(0, 4, (40, 2), device="cuda")}
    values |= weights | {"expert_weights": torch.rand(40, 2, device="cuda")}
    check("fused_moe", values, "cuda.moe.fused", 4e-3)
    one = {k: v[0] for k, v in weights.items()} | {"input": values["input"]}
    check("fused_mlp", one, "torch.fused_mlp.f16", 4e-3)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_calls_in_graphs_wait_for_nothing(dtype):
    torch.manual_seed(3)
    values = {"input": normal(9, 256, dtype=dtype), **block(8, 256, 128, 256, dtype, "separate")}
    values |= {
        "expert_ids": torch.randint(0, 8, (9, 2), device="cuda"),
        "expert_weights": torch.rand(9, 2, device="cuda"),
    }
    for kernel in kernels_of("cuda.moe.fused", dtype):
        call = lambda kernel=kernel: lz.fused_moe(**values, kernel=kernel)  # noqa: E731
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = call()
        values["expert_ids"].copy_(torch.randint(0, 8, (9, 2), device="cuda"))
        graph.replay()
        torch.testing.assert_close(got, call(), rtol=0, atol=0)


def test_float16_is_served_by_no_reference():
    values = {"input": normal(9, 256).half(), **block(8, 256, 128, 256, torch.float16, "separate")}
    values |= {
        "expert_ids": torch.randint(0, 8, (9, 2), device="cuda"),
        "expert_weights": torch.rand(9, 2, device="cuda"),
    }
    assert not lz.which("fused_moe", **values)["kernel_id"].startswith(("ref.", "torch.ref."))
    one = {k: v[0] if v.ndim == 3 else v for k, v in values.items() if not k.startswith("expert")}
    assert not lz.which("fused_mlp", **one)["kernel_id"].startswith(("ref.", "torch.ref."))
