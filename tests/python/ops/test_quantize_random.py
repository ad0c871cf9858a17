"""Quantised formats on random values: against torch, ml_dtypes and the published tables, to the bit."""

import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")
np = pytest.importorskip("numpy")
import layerzero as lz  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SMALL = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float6_e2m3fn", "float6_e3m2fn"]
SMALL += ["float4_e2m1fn"]
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


def same_bits(a, b):
    if a.numel() == 0:
        return (a.dtype, a.shape) == (b.dtype, b.shape)
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def same(a, b):
    """Bits, but for NaN."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    return torch.equal(a.float().isnan(), b.float().isnan()) and same_bits(
        torch.where(a.float().isnan(), 0, a.float()), torch.where(b.float().isnan(), 0, b.float())
    )


def both(operation, *args, **options):
    """The result of the engine's reference, which torch's equals to the bit."""
    name = {"quantize_asymmetric": "quantize.asymmetric", "quantize_nvfp4": "quantize.nvfp4"}.get(operation, operation)
    results = [getattr(lz, operation)(*args, **options, kernel=f"{k}.{name}") for k in ("ref", "torch.ref")]
    outputs = [r if isinstance(r, tuple) else (r,) for r in results]
    assert all(same(a, b) for a, b in zip(*outputs, strict=True))
    return results[0]


def nibbles(values):
    return torch.stack([values & 15, values >> 4], -1).flatten(-2)


def spread(generator, shape, low=-30, high=30):
    """Values of many magnitudes, with zeros."""
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(low, high, shape, generator=generator))
    return torch.where(torch.rand(shape, generator=generator) < 0.05, 0, x)


seeds = st.integers(0, 2**31)
ranks = st.lists(st.integers(0, 5), min_size=0, max_size=3)
relaxed = settings(max_examples=40, deadline=None)


# ---- elements


@pytest.mark.parametrize("name", [*SMALL, "float8_e8m0fnu"])
def test_every_code_means_what_ml_dtypes_says(name):
    bits = 8 if name.startswith("float8") else int(name[5])
    codes = torch.arange(1 << bits, dtype=torch.uint8)
    want = torch.from_numpy(codes.numpy().view(getattr(ml_dtypes, name)).astype(np.float32))
    assert same(both("convert", codes, "float32", source=name), want)
    if name.startswith("float8"):
        torch_dtype = getattr(torch, name)
        assert same(both("convert", codes, "float32", source=name), codes.view(torch_dtype).float())


@pytest.mark.parametrize("name", SMALL)
@given(seed=seeds)
@relaxed
def test_rounding_is_that_of_ml_dtypes(name, seed):
    x = spread(torch.Generator().manual_seed(seed), (257,), -20, 20)
    finite = np.arange(1 << (8 if name.startswith("float8") else int(name[5])), dtype=np.uint8)
    table = np.sort(finite.view(getattr(ml_dtypes, name)).astype(np.float32))
    table = torch.from_numpy(table[np.isfinite(table)])
    ties = (table[1:] + table[:-1]) / 2
    x = torch.cat([x, table, ties, torch.nextafter(ties, torch.tensor(torch.inf)), torch.tensor([-0.0])])
    want = torch.from_numpy(x.numpy().astype(getattr(ml_dtypes, name)).view(np.uint8))
    further = {"saturate": False} if name.startswith("float8") else {}  # others have nothing else
    assert same_bits(both("convert", x, name, **further), want)
    top = table.max()
    want = torch.from_numpy(x.clamp(-top, top).numpy().astype(getattr(ml_dtypes, name)).view(np.uint8))
    assert same_bits(both("convert", x, name), want)
    if name in ("float8_e4m3fn", "float8_e5m2"):
        assert same_bits(both("convert", x, name), x.clamp(-top, top).to(getattr(torch, name)))


@given(seed=seeds)
@relaxed
def test_wide_formats_are_torchs(seed):
    x = spread(torch.Generator().manual_seed(seed), (301,), -149, 127)
    for name in ("float16", "bfloat16", "float64"):
        assert same_bits(both("convert", x, name), x.to(getattr(torch, name)))
    bits = x.view(torch.int32)
    tf32 = ((bits.long() + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).to(torch.int32).view(torch.float32)
    assert same_bits(both("convert", x, "tf32"), tf32)


# ---- quantize


@st.composite
def problems(draw):
    """An input with its granularity."""
    format = draw(
        st.sampled_from(["int8", "int4", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"])
    )
    group = {"mxfp8_e4m3": 32, "mxfp8_e5m2": 32, "mxfp4": 32, "nvfp4": 16}.get(format, 0)
    shape = [*draw(ranks), (group or 2) * draw(st.integers(0, 4))]
    options = {}
    how = "fixed" if group else draw(st.sampled_from(["tensor", "axis", "group", "block"]))
    if how == "axis":
        options["axis"] = draw(st.integers(-len(shape), len(shape) - 1))
    if how in ("group", "block"):
        options["group_size"] = draw(st.sampled_from([1, 2]))
    if how == "block" and len(shape) > 1:
        options["block_rows"] = draw(st.sampled_from([d for d in (1, 2, 3) if shape[-2] % d == 0]))
    if format.startswith("mx"):
        options["scale_rule"] = draw(st.sampled_from(["ceil", "floor"]))
    generator = torch.Generator().manual_seed(draw(seeds))
    x = spread(generator, shape, *draw(st.sampled_from([(-3, 3), (-30, 30), (-140, -100), (100, 126)])))
    if x.numel() and draw(st.booleans()):
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    if format == "nvfp4":
        options["tensor_scale"] = torch.tensor(draw(st.sampled_from([1.0, 0.001, 3e-5])))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    return x.to(dtype), format, options


@given(problem=problems(), strided=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_engine_and_torch_agree_to_the_bit(problem, strided):
    x, format, options = problem
    if strided and x.ndim > 1:
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    values, scale = both("quantize", x, format, **options)
    given_scale = {key: options[key] for key in ("tensor_scale",) if key in options}
    assert same(both("quantize", x, format, scale, **given_scale), values)
    back = both("dequantize", values, scale, format, **given_scale)
    assert back.shape == x.shape


@given(seed=seeds, format=st.sampled_from(sorted(RANGES)), axis=st.sampled_from([None, 0, 1, -1]))
@relaxed
def test_zero_points_agree_and_bound_the_error(seed, format, axis):
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)) + seed % 5 - 2
    values, scale, zero_point = both("quantize_asymmetric", x, format, axis=axis)
    assert same_bits(both("quantize", x, format, scale, zero_point=zero_point), values)
    error = (both("dequantize", values, scale, format, zero_point=zero_point) - x).abs()
    assert (error <= scale * 1.001).all()


@given(seed=seeds, rows=st.integers(0, 5), groups=st.integers(0, 4), per_row=st.booleans())
@relaxed
def test_nvfp4_agrees_and_its_scales_serve_again(seed, rows, groups, per_row):
    x = spread(torch.Generator().manual_seed(seed), (rows, 16 * groups), -4, 4)
    values, scale, tensor_scale = both("quantize_nvfp4", x, per_row=per_row)
    assert same_bits(both("quantize", x, "nvfp4", scale, tensor_scale=tensor_scale), values)


def test_int8_is_symmetric_and_saturates():
    values, scale = both("quantize", torch.tensor([[-2.0, 1.0, 2.0, 0.0]]), "int8")
    assert values.tolist() == [[-127, 64, 127, 0]]
    assert scale.item() == pytest.approx(2 / 127)
    assert both("quantize", torch.tensor([-300.0, 300.0]), "int8", torch.tensor(1.0)).tolist() == [-127, 127]


def test_int8_channels_are_those_of_torch():
    x = torch.randn(5, 64)
    _, scale = both("quantize", x, "int8", axis=0)
    want = torch.quantize_per_channel(x, scale.flatten(), torch.zeros(5, dtype=torch.int64), 0, torch.qint8)
    got = both("quantize", x, "int8", scale.flatten(), axis=0)
    assert (got.int() - want.int_repr().int()).abs().max() <= 1  # torch multiplies by the reciprocal


# ---- reasons


@pytest.mark.parametrize(
    ("format", "scale", "code", "wanted"),
    [
        ("int8", None, "QUANT_SCALES_REQUIRED", "true"),
        ("fp8_e4m3", torch.tensor(0.1), "QUANT_FORMAT_UNSUPPORTED", "int8"),
        ("int8", torch.full((5, 1), 0.1), "QUANT_GRANULARITY", "true"),
    ],
)
def test_the_kernel_for_given_scales_says_what_it_wants(format, scale, code, wanted):
    ok, reasons = lz.validate("hwy.quantize.int8", torch.ones(5, 64), dtype=format, scale=scale)
    assert not ok
    assert wanted in [str(r.wanted) for r in reasons if r.code == code]


@given(seed=seeds, scale=st.sampled_from([1.0, 0.01, 1e-30]), k=st.integers(0, 70))
@relaxed
def test_the_kernel_for_given_scales_gives_the_references_codes(seed, scale, k):
    x = spread(torch.Generator().manual_seed(seed), (3, k), -3, 9)
    got = lz.quantize(x, "int8", torch.tensor(scale), kernel="hwy.quantize.int8")
    assert same_bits(got, both("quantize", x, "int8", torch.tensor(scale)))


# ---- the published vectors (OCP MX, NVFP4)


def test_published_vectors():
    codes = both("convert", torch.arange(16, dtype=torch.uint8), "float32", source="float4_e2m1fn")
    assert codes.tolist() == E2M1
    values, scale = both("quantize", (torch.arange(32) - 16) / 4, "mxfp4")
    assert scale.view(torch.uint8).tolist() == [127]
    assert "".join(f"{c:X}" for c in nibbles(values).tolist()) == "EEEDDDCCCCBAAA980012223444455566"
    for amax, ceil, floor in ((6.0, 127, 127), (6.5, 128, 127), (8.0, 128, 128)):
        x = torch.zeros(32).index_fill(0, torch.tensor([3]), amax)
        assert both("quantize", x, "mxfp4")[1].view(torch.uint8).item() == ceil
        assert both("quantize", x, "mxfp4", scale_rule="floor")[1].view(torch.uint8).item() == floor
    values, scale, tensor_scale = both("quantize_nvfp4", torch.ones(16))
    assert (1 / tensor_scale).item() == pytest.approx(2688)
    assert scale.view(torch.uint8).tolist() == [0x7E]
    assert nibbles(values).tolist() == [7] * 16
    x = torch.tensor([0, 0.1, 0.2, 0.3, -0.4, 0.5, 0.6, 0.7, -0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5])
    values, scale, _ = both("quantize_nvfp4", torch.cat([x, torch.full((16,), 3.0)]))
    assert scale.view(torch.uint8).tolist()[0] == 0x76
    assert "".join(f"{c:X}" for c in nibbles(values).tolist()[:16]) == "0122B445D6666777"


@pytest.mark.parametrize(
    ("r", "k", "columns", "offset"),
    [(1, 0, 8, 16), (32, 0, 8, 4), (33, 5, 8, 533), (128, 0, 8, 1024), (200, 3, 8, 1163), (129, 5, 6, 1553)],
)
def test_the_swizzle_puts_scales_where_it_is_published(r, k, columns, offset):
    scale = torch.zeros(256, columns, dtype=torch.uint8)
    scale[r, k] = 1
    assert lz.swizzle_scales(scale).nonzero().flatten().tolist() == [offset]


@given(lead=st.lists(st.integers(0, 3), max_size=2), rows=st.integers(0, 300), columns=st.integers(0, 9), seed=seeds)
@relaxed
def test_unswizzling_undoes_swizzling(lead, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randint(0, 256, (*lead, rows, columns), dtype=torch.uint8, generator=generator)
    swizzled = lz.swizzle_scales(scale, kernel="ref.quantize.swizzle")
    assert torch.equal(swizzled, lz.swizzle_scales(scale, kernel="torch.ref.quantize.swizzle"))
    for kernel in ("ref.quantize.unswizzle", "torch.ref.quantize.unswizzle"):
        assert torch.equal(lz.unswizzle_scales(swizzled, rows, columns, kernel=kernel), scale)


# ---- layouts


@given(
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
    source=st.sampled_from(["BSHD", "BHSD", "NHD", "HND"]),
    target=st.sampled_from(["BSHD", "BHSD", "NHD", "HND"]),
)
@relaxed
def test_layouts_convert_both_ways(sizes, source, target):
    b, s, h, d = sizes
    logical = torch.randn(b, s, h, d)
    forms = {
        "BSHD": logical,
        "BHSD": logical.transpose(1, 2).contiguous(),
        "NHD": logical.reshape(b * s, h, d),
        "HND": logical.reshape(b * s, h, d).transpose(0, 1).contiguous(),
    }
    batch = {"batch": b} if target[0] == "B" and source[0] != "B" else {}
    for kernel in ("ref.convert.layout", "torch.ref.convert.layout"):
        got = lz.convert_layout(forms[source], source, target, **batch, kernel=kernel)
        assert got.is_contiguous()
        assert torch.equal(got, forms[target])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_has_a_simd_kernel_in_any_shape(shape):
    x, scale = torch.randn(5, 40), torch.full(shape, 0.02)
    assert lz.which("quantize", x, "int8", scale)["kernel_id"] == "hwy.quantize.int8"
    assert same_bits(lz.quantize(x, "int8", scale), both("quantize", x, "int8", scale))
    per_row = lz.explain("quantize", x, "int8", torch.full((5, 1), 0.02))
    refused = next(c for c in per_row.candidates if c.kernel_id == "hwy.quantize.int8")
    assert [(r.code, r.field) for r in refused.reasons] == [("QUANT_GRANULARITY", "scale.one_element")]
