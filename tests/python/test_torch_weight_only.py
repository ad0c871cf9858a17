"""torch's weight-only products: what is packed and when, what is refused; the conformance cases prove the results."""

import gc

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")
from layerzero.backends.torch import weight_only  # noqa: E402

INT4, INT8 = "torch.linear_int4pack.f32.cpu", "torch.linear_int8pack"


def int4(n=16, k=64, group=32, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n + k)
    weight = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    return weight, (torch.rand(n, k // group, generator=generator) + 0.1).to(dtype)


def product(x, weight, scale, kernel=INT4, format="int4", **options):
    return lz.linear_quantized(x, weight, scale, format, kernel=kernel, **options)


def check(x, weight, scale):
    wanted = x @ lz.dequantize(weight, scale, "int4").T
    torch.testing.assert_close(product(x, weight, scale), wanted, rtol=1e-5, atol=1e-4)


def test_a_weight_is_packed_once_and_again_after_a_write():
    (weight, scale), x, before = int4(), torch.randn(3, 64), weight_only.packs
    for _ in range(3):
        check(x, weight, scale)
    assert weight_only.packs == before + 1
    weight.bitwise_xor_(0x11)
    check(x, weight, scale)
    scale.mul_(2)
    check(x, weight, scale)
    check(x, weight, scale * 3)
    assert weight_only.packs == before + 4


def test_a_packed_copy_goes_with_its_weight():
    gc.collect()
    (weight, scale), kept = int4(), len(weight_only._kept)
    product(torch.ones(1, 64), weight, scale)
    assert len(weight_only._kept) == kept + 1
    del weight
    gc.collect()
    assert len(weight_only._kept) == kept


def test_an_inference_tensor_whose_writes_are_not_counted_is_refused():
    with torch.inference_mode():
        weight, scale = int4()
    with lz.policy(fallback_enabled=False), pytest.raises(lz.KernelRefusedError, match="inference tensor"):
        product(torch.ones(1, 64), weight, scale)


REFUSED = {
    "zero points": dict(zero_point=torch.zeros(16, 2, dtype=torch.int32)),
    "a bias": dict(bias=torch.zeros(16)),
    "packed by linear_prepack": dict(packed=lz.linear_prepack(int4()[0])),
}


@pytest.mark.parametrize("what", REFUSED)
def test_int4_refuses(what):
    with pytest.raises(lz.NoKernelFoundError):
        product(torch.ones(1, 64), *int4(), **REFUSED[what])


def test_int4_refuses_other_groups_scales_and_formats():
    for weight, scale in (int4(k=48, group=16), int4(n=24), int4(dtype=torch.bfloat16)):
        with pytest.raises(lz.NoKernelFoundError):
            product(torch.ones(1, weight.shape[1] * 2), weight, scale)
    with pytest.raises(lz.NoKernelFoundError):
        product(torch.ones(1, 64), int4()[0], torch.ones(16, 2, dtype=torch.uint8), format="mxfp4")


def test_int8_refuses_groups_zero_points_and_strict_mode():
    x, weight = torch.ones(1, 64), torch.ones(8, 64, dtype=torch.int8)
    rows, groups = torch.ones(8, 1), torch.ones(8, 2)
    for options in (dict(scale=groups), dict(scale=rows, zero_point=torch.ones(8, 1, dtype=torch.int32))):
        with pytest.raises(lz.NoKernelFoundError):
            product(x, weight, kernel=INT8, format="int8", **options)
    with lz.policy(strict_mode=True), pytest.raises(lz.NoKernelFoundError, match=r"policy\.strict_mode"):
        product(x, weight, rows, kernel=INT8, format="int8")


def test_activations_are_not_rounded():
    """One that 8 bits of its row's largest would lose decides the result."""
    x, weight = torch.zeros(1, 64), torch.zeros(16, 64, dtype=torch.int8)
    x[0, 0], x[0, 1], weight[:, 1] = 1e6, 1.0, 1
    assert (product(x, weight, torch.ones(16, 1), kernel=INT8, format="int8") == 1).all()
    codes = torch.zeros(16, 32, dtype=torch.uint8)
    codes[:, 0] = 0x10
    assert (product(x, codes, torch.ones(16, 2)) == 1).all()


@pytest.mark.parametrize("kernel", [INT4, INT8, "torch.linear_int4pack", "torch.linear_int4pack.bf16.cpu"])
def test_a_row_that_is_not_measured_ranks_below_torchs_expression(kernel):
    rows = {k.kernel_id: k.priority for k in lz.list_kernels("linear_quantized")}
    assert rows[kernel] < rows["torch.linear_quantized"]


def test_the_packed_order_of_cuda_has_the_even_value_in_the_high_half(monkeypatch):
    """torch reads bytes so on CUDA (aten/src/ATen/native/cuda/int4mm.cu); codes are those of int4 plus 8."""
    seen = []
    monkeypatch.setattr(
        torch.ops.aten, "_convert_weight_to_int4pack", lambda codes, tiles: seen.append((codes, tiles)) or codes
    )

    class OnCuda(torch.Tensor):
        is_cuda = True

    weight = torch.tensor([[0x10, 0x8F]], dtype=torch.uint8)  # 0, 1, -1, -8
    _, scales = weight_only._pack(weight.as_subclass(OnCuda), torch.tensor([[0.5, 2.0]], dtype=torch.bfloat16))
    assert seen[0][0].tolist() == [[0x89, 0x70]] and seen[0][1] == 8
    assert scales.tolist() == [[[0.5, 0.0]], [[2.0, 0.0]]]
