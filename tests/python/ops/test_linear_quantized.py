"""Linear with quantised weights: against torch, packed and not; reasons of kernels; the cache of packed weights."""

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402

LOOK_UPS = "x86.mlp.linear.quantized.avx512bf16"  # where the CPU has them
GEMV, GEMM = "hwy.mlp.linear.quantized.gemv", "hwy.mlp.linear.quantized.gemm"


def quantised(format, n=64, k=256, group=32):
    """Arguments of linear_quantized after the input, and the weights that they mean."""
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(1))
    options = {}
    if format == "nvfp4":
        values, scale, options["tensor_scale"] = lz.quantize_nvfp4(w)
    elif format == "uint4":
        values, scale, options["zero_point"] = lz.quantize_asymmetric(w, format, group_size=group)
    else:
        values, scale = lz.quantize(w, format, group_size=0 if format.startswith("mx") else group)
    return (values, scale, format), options, lz.dequantize(values, scale, format, **options)


def reasons(kernel, *args, **options):
    ok, found = lz.validate(kernel, *args, operation="mlp.linear.quantized", **options)
    assert ok == (not found)
    return {r.code for r in found}


FORMATS = ["int8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp4", "nvfp4"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_equals_a_product_with_dequantised_weights(format, rows):
    args, options, w = quantised(format)
    x, bias = torch.randn(rows, 256), torch.randn(64)
    want = torch.nn.functional.linear(x.double(), w.double(), bias.double())
    packed = {"packed": lz.linear_prepack(args[0])} if args[0].dtype == torch.uint8 else {}
    for given in (options, options | packed):
        for kernel in (None, "ref.mlp.linear.quantized", "torch.ref.mlp.linear.quantized"):
            got = lz.linear_quantized(x, *args, bias, **given, kernel=kernel)
            assert (got - want).abs().max() <= 1e-5 * want.abs().max()


def test_few_rows_pick_the_kernel_for_them_whatever_the_granularity_allows():
    x = torch.randn(1, 256)
    args, options, _ = quantised("int8", group=8)
    assert reasons(GEMV, x, *args) == {"QUANT_GRANULARITY"}
    assert lz.which("linear_quantized", x, *args)["kernel_id"] == GEMM
    for format in FORMATS:
        args, options, _ = quantised(format)
        assert reasons(GEMV, x, *args, **options) == set()
        assert lz.which("linear_quantized", x, *args, **options)["kernel_id"] in (LOOK_UPS, GEMV)
        assert lz.which("linear_quantized", torch.randn(5, 256), *args, **options)["kernel_id"] in (LOOK_UPS, GEMM)
        assert lz.which("linear_quantized", torch.randn(9, 256), *args, **options)["kernel_id"] == GEMM


def test_the_cache_packs_once_and_stays_within_its_bound():
    calls = []

    def prepack(weight):
        calls.append(weight)
        return lz.linear_prepack(weight)

    weights = [torch.randint(0, 256, (4, 32), dtype=torch.uint8) for _ in range(3)]
    cache = lz.PackedWeights(256, prepack)
    first = cache.get("a", weights[0])
    assert cache.get("a", weights[0]) is first
    cache.get("b", weights[1])
    cache.get("a", weights[0])
    cache.get("c", weights[2])  # b was used least recently
    assert ("a" in cache, "b" in cache, "c" in cache, cache.nbytes, len(cache)) == (True, False, True, 256, 2)
    assert len(calls) == 3
    cache.get("large", torch.zeros(16, 32, dtype=torch.uint8))
    assert "large" not in cache
    with pytest.raises(lz.InvalidRequestError, match="packed_weights_id"):
        cache.get("a", torch.zeros(8, 32, dtype=torch.uint8))
    cache.discard("a")
    cache.discard("a")
    assert cache.nbytes == 128
    cache.clear()
    assert (cache.nbytes, len(cache)) == (0, 0)
    with pytest.raises(lz.InvalidRequestError, match="max_bytes"):
        lz.PackedWeights(-1)
