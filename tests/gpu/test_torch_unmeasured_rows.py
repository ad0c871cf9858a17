"""Rows of torch that no device has run before: FlexAttention and weight-only products, beyond the conformance cases' sizes."""

import layerzero as lz
import pytest
import torch
from layerzero.backends.torch import flex_compiled, weight_only

FLEX = "torch.flex"
NEW = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="torch.flex needs torch 2.13 for CUDA"
)


def qkv(b, s_q, s_kv, dtype=torch.bfloat16, h_q=8, h_kv=2, d=128):
    torch.manual_seed(s_q)
    shapes = ((b, s_q, h_q, d), (b, s_kv, h_kv, d), (b, s_kv, h_kv, d))
    return [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]


OPTIONS = {
    "causal": dict(causal=True),
    "window": dict(causal=True, window=300),
    "softcap": dict(causal=False, softcap=20.0),
    "alibi": dict(causal=True, alibi_slopes=2.0 ** -torch.arange(1.0, 9.0)),
    "lse": dict(causal=True, return_lse=True),
    "all": dict(
        causal=True, window=1000, softcap=30.0, alibi_slopes=torch.rand(8), sinks=torch.randn(8), return_lse=True
    ),
}


@NEW
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_flex_agrees_at_every_length_with_few_compilations(options, dtype):
    options = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    before = len(flex_compiled._made)
    for size in ((2, 1024, 1024), (2, 300, 4097), (3, 2000, 700), (2, 40, 1500), (2, 127, 129), (2, 2, 5000)):
        given = qkv(*size, dtype)
        got = lz.attention(*given, layout="BSHD", kernel=FLEX, **options)
        want = lz.attention(*given, layout="BSHD", kernel="torch.attention.matmul", **options)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            torch.testing.assert_close(a.float(), b.float(), rtol=2e-2, atol=2e-2)
    assert len(flex_compiled._made) <= before + 2  # fewer than 128 queries, and more


@NEW
def test_flex_does_not_wait_for_the_device():
    given = qkv(2, 512, 512)
    lz.attention(*given, layout="BSHD", kernel=FLEX)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        lz.attention(*given, layout="BSHD", kernel=FLEX)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def int4(n, k, group):
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
    return weight, (torch.rand(n, k // group, device="cuda") * 0.05 + 0.01).bfloat16()


@pytest.mark.parametrize("rows", [1, 7, 16, 65])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_int4_agrees_and_packs_once(rows, group):
    weight, scale = int4(4096, 2048, group)
    x, before = torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16), weight_only.packs
    want = x.double() @ lz.dequantize(weight, scale, "int4").double().T
    for _ in range(2):
        got = lz.linear_quantized(x, weight, scale, "int4", kernel="torch.linear_int4pack")
        torch.testing.assert_close(got.double(), want, rtol=1e-2, atol=1e-2 * float(want.abs().max()))
    assert weight_only.packs == before + 1


def test_int4_weights_are_those_of_dequantize_bit_for_bit():
    weight, scale = int4(256, 256, 32)
    got = lz.linear_quantized(
        torch.eye(256, device="cuda", dtype=torch.bfloat16), weight, scale, "int4", kernel="torch.linear_int4pack"
    )
    assert torch.equal(got.T, lz.dequantize(weight, scale, "int4", dtype="bfloat16"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_int8_agrees(dtype):
    weight = torch.randint(-127, 128, (1000, 1024), dtype=torch.int8, device="cuda")
    scale = torch.rand(1000, 1, device="cuda") * 0.01
    x, bias = torch.randn(33, 1024, device="cuda", dtype=dtype), torch.randn(1000, device="cuda", dtype=dtype)
    got = lz.linear_quantized(x, weight, scale, "int8", bias, kernel="torch.linear_int8pack")
    want = x.double() @ (weight * scale).double().T + bias.double()
    bound = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    torch.testing.assert_close(got.double(), want, rtol=bound, atol=bound * float(want.abs().max()))
