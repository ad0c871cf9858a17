"""Own CUDA kernels at sizes beyond the conformance cases, against torch's FP64 on the device."""

import layerzero as lz
import pytest
import torch
from layerzero.torch.references import call_reference
from torch.nn import functional as F

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
WIDTHS = [1, 7, 8, 64, 576, 1024, 1025, 1032, 4096, 16384, 20001, 40000]


def check(got, want):
    for one, expected in zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]:
        tolerance = TOLERANCE[one.dtype]
        torch.testing.assert_close(one.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=dtype)


def rms_reference(x, weight, eps, offset=0.0):
    x64 = x.double()
    gain = (1.0 if weight is None else weight.double()) + offset
    return x64 / (x64.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gain


def rms(x, weight=None, eps=1e-6, offset=0.0):
    got = lz.rms_norm(x, weight, eps, weight_offset=offset, kernel="cuda.norm.rms")
    check(got, rms_reference(x, weight, eps, offset))


def add_rms(x, residual, weight=None, eps=1e-6, offset=0.0):
    got = lz.fused_add_rms_norm(x, residual, weight, eps, weight_offset=offset, kernel="cuda.norm.rms.residual")
    total = (x.float() + residual.float()).to(x.dtype)
    check(got[0], rms_reference(total, weight, eps, offset))
    assert torch.equal(got[1], total)


def layer(x, residual, weight=None, bias=None, eps=1e-5, offset=0.0):
    options = dict(eps=eps, weight_offset=offset)
    width = x.shape[-1]
    gain = (1.0 if weight is None else weight.double()) + offset
    shift = 0.0 if bias is None else bias.double()
    total = (x.float() + residual.float()).to(x.dtype)
    want = [F.layer_norm(t.double(), (width,), None, None, eps) * gain + shift for t in (x, total)]
    check(lz.layer_norm(x, width, weight, bias, **options, kernel="cuda.norm.layer"), want[0])
    got = lz.fused_add_layer_norm(x, residual, width, weight, bias, **options, kernel="cuda.norm.layer.residual")
    check(got[0], want[1])
    assert torch.equal(got[1], total)


def activations(x):
    for function in ("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity"):
        got = lz.activation(x, function, kernel="cuda.activation.pointwise")
        check(got, call_reference("activation", {"input": x.double(), "function": function}))
        if x.shape[-1] % 2 == 0:
            for clamped in ({}, {"limit": 1.5, "up_offset": 1.0}):
                given = {"activation": function, "interleaved": bool(clamped), **clamped}
                got = lz.gated_activation(x, **given, kernel="cuda.activation.gated")
                check(got, call_reference("gated_activation", {"input": x.double(), **given}))


def silu_and_mul(x):
    n = x.shape[-1] // 2
    gate, up = x[..., :n].double(), x[..., n:].double()
    check(lz.silu_and_mul(x, kernel="cuda.activation.silu_and_mul"), F.silu(gate) * up)


def gated(gate, up):
    check(lz.swiglu(gate, up, kernel="cuda.activation.swiglu"), F.silu(gate.double()) * up.double())
    for kind in ("none", "tanh"):
        got = lz.geglu(gate, up, approximate=kind, kernel="cuda.activation.geglu")
        check(got, F.gelu(gate.double(), approximate=kind) * up.double())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 5, 257])
def test_rows_of_every_width(dtype, width, rows):
    torch.manual_seed(width)
    x, y, weight = normal(rows, width, dtype=dtype), normal(rows, width, dtype=dtype), normal(width, dtype=dtype)
    rms(x, weight, eps=1e-5)
    rms(x, weight, offset=1.0)
    rms(x)
    add_rms(x, y, weight, offset=1.0)
    layer(x, y, weight, y[0])
    layer(x, y, offset=0.5)
    gated(x, y)
    activations(x)
    silu_and_mul(torch.cat((x, y), -1))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_leading_strides_and_unaligned_bases(dtype):
    x = normal(4, 6, 256, dtype=dtype)
    other = normal(4, 6, 256, dtype=dtype)
    shifted = x.flatten()[1 : 1 + 4 * 200].view(4, 200)
    views = [x[:, ::2], x.transpose(0, 1), x[..., :200], x[..., :201], shifted, x[:, :1].expand(4, 6, 256)]
    for view in views:
        partner = other.flatten()[: view.numel()].view(view.shape)
        rms(view)
        add_rms(view, partner)
        add_rms(partner, view)
        layer(view, partner)
        gated(view, partner)
        gated(partner, view)
        if view.shape[-1] % 2 == 0:
            silu_and_mul(view)


def test_many_rows_and_no_rows():
    rms(normal(5_000_000, 8))
    add_rms(normal(2_000_000, 8), normal(2_000_000, 8))
    silu_and_mul(normal(3_000_000, 6))
    gated(normal(50_000_000), normal(50_000_000))
    assert lz.rms_norm(torch.empty(0, 64, device="cuda")).shape == (0, 64)
    assert lz.rms_norm(torch.empty(3, 0, device="cuda")).shape == (3, 0)


def test_a_nan_stays_in_its_row():
    x = torch.ones(3, 64, device="cuda")
    x[1, 5] = float("nan")
    y = lz.rms_norm(x, kernel="cuda.norm.rms")
    assert y[1].isnan().all() and not y[0].isnan().any() and not y[2].isnan().any()


def rope_reference(x, cos, sin, interleaved=False, r=None):
    """(b, s, h, d) with tables (b or 1, s, w)."""
    x, cos, sin = x.double(), cos.double()[..., None, :], sin.double()[..., None, :]
    r = r or x.shape[-1]
    head, rest = x[..., :r], x[..., r:]
    if cos.shape[-1] == r // 2:
        spread = (lambda t: t.repeat_interleave(2, -1)) if interleaved else (lambda t: torch.cat((t, t), -1))
        cos, sin = spread(cos), spread(sin)
    if interleaved:
        turned = torch.stack((-head[..., 1::2], head[..., ::2]), -1).flatten(-2)
    else:
        turned = torch.cat((-head[..., r // 2 :], head[..., : r // 2]), -1)
    return torch.cat((head * cos + turned * sin, rest), -1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("d", "r"), [(64, 64), (128, 128), (128, 64), (96, 96), (80, 40), (6, 6), (256, 256)])
def test_rope(dtype, interleaved, d, r):
    torch.manual_seed(d)
    for b, s, h in ((1, 1, 32), (2, 37, 5), (3, 512, 8)):
        for width in (r, r // 2):
            for tables in (dtype, torch.float32):
                angle = torch.rand(b, s, width, device="cuda") * 6.0
                cos, sin = angle.cos().to(tables), angle.sin().to(tables)
                options = {"interleaved": interleaved, "rotary_dim": r, "kernel": "cuda.posenc.rope"}
                x = normal(b, s, h, d, dtype=dtype)
                check(lz.rope(x, cos, sin, **options), rope_reference(x, cos, sin, interleaved, r))
                heads = normal(b, h, s, d, dtype=dtype)
                got = lz.rope(heads, cos, sin, layout="BHSD", **options).transpose(1, 2)
                check(got, rope_reference(heads.transpose(1, 2), cos, sin, interleaved, r))


def test_rope_by_position_ids_and_positions_outside_the_tables():
    x = normal(2, 5, 4, 64)
    angle = torch.rand(9, 64, device="cuda")
    ids = torch.tensor([[0, 8, 3, 3, 1], [2, 2, 7, 0, 5]], device="cuda")
    for index in (torch.int64, torch.int32):
        got = lz.rope(x, angle.cos(), angle.sin(), position_ids=ids.to(index), kernel="cuda.posenc.rope")
        check(got, rope_reference(x, angle.cos()[ids], angle.sin()[ids]))
    ids[1, 2], ids[0, 0] = 9, -1
    got = lz.rope(x, angle.cos(), angle.sin(), position_ids=ids, kernel="cuda.posenc.rope")
    outside = torch.zeros(2, 5, dtype=torch.bool, device="cuda")
    outside[1, 2] = outside[0, 0] = True
    assert got[outside].isnan().all() and not got[~outside].isnan().any()


def test_many_rows_take_other_forms():
    """From 512 rows on lanes and loads are others; each width of them, and what one row holds beyond them."""
    for dtype in TOLERANCE:
        for width in (64, 512, 1000, 2048, 4096, 5120, 8192, 16384, 40000):
            x, y = normal(600, width, dtype=dtype), normal(600, width, dtype=dtype)
            rms(x, y[0])
            add_rms(x, y, y[0])
            layer(x, y, y[0], y[1])


@pytest.mark.parametrize("length", [8, 32, 48, 64, 128, 1000, 4096, 20000])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_runs_of_every_length_are_quantised_to_the_bit(dtype, length):
    torch.manual_seed(length)
    x = normal(70, length, dtype=dtype)
    x[3, 5], x[4, 6] = torch.nan, torch.inf
    for format in ("int8", "int4", "fp8_e4m3", "fp8_e5m2"):
        for options, kernel in (({"axis": 0}, "rows"), ({"group_size": length}, "groups")):
            kernel += ".int4" if (format, kernel) == ("int4", "groups") else ""
            got = lz.quantize(x, format, **options, kernel=f"cuda.quantize.{kernel}")
            same(got, call_reference("quantize", {"input": x.cpu(), "dtype": format, **options}))
    if length % 32 == 0:
        for format in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"):
            for rule in ("ceil", "floor"):
                given = {"dtype": format, "scale_rule": rule}
                got = lz.quantize(x, **given, kernel="cuda.quantize.powers")
                same(got, call_reference("quantize", {"input": x.cpu(), **given}))


def same(got, want):
    for one, expected in zip(got, want, strict=True):
        a, b = (t.cpu().float() for t in (one, expected))
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_routes_of_many_tokens():
    for experts, k, groups in ((8, 2, 1), (128, 8, 1), (256, 8, 8), (512, 10, 1), (60, 4, 1)):
        for scoring in ("softmax", "sigmoid", "sqrt_softplus"):
            for ties in (False, True):
                logits = normal(1030, experts)
                logits = logits.round() if ties else logits
                options = {"scoring": scoring, "renormalize": True, "scale": 2.5}
                if groups > 1:
                    options |= {"num_groups": groups, "top_groups": 4, "group_score": "top2_sum"}
                weights, ids = lz.moe_route(logits, k, bias=logits[0], **options, kernel="cuda.moe.route")
                given = {"logits": logits.cpu(), "k": k, "bias": logits[0].cpu(), **options}
                want_weights, want_ids = call_reference("moe_route", given)
                assert torch.equal(ids.cpu(), want_ids)
                check(weights.cpu(), want_weights)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1000), (70, 2049), (5, 128256)])
def test_softmax(dtype, rows, width):
    torch.manual_seed(width)
    x, colder = normal(rows, width, dtype=dtype) * 4, torch.rand(rows, device="cuda") + 0.1
    got = lz.softmax(x, 0.7, kernel="cuda.sampling.softmax")
    torch.testing.assert_close(got.double(), (x.double() / 0.7).softmax(-1), rtol=1e-5, atol=1e-6)
    got = lz.softmax(x, row_temperature=colder, kernel="cuda.sampling.softmax")
    torch.testing.assert_close(got.double(), (x.double() / colder[:, None].double()).softmax(-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [2, 16, 128, 1000, 20000])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_zero_points_and_nvfp4_to_the_bit(dtype, length):
    torch.manual_seed(length)
    x = normal(70, length, dtype=dtype)
    for format in ("int8", "uint8", "int4", "uint4"):
        paired = ".paired" if format.endswith("4") else ""
        for options, kernel in (({"axis": 0}, "rows"), ({"group_size": length}, "groups" + paired)):
            got = lz.quantize_asymmetric(x, format, **options, kernel=f"cuda.quantize.asymmetric.{kernel}")
            same(got, call_reference("quantize_asymmetric", {"input": x.cpu(), "dtype": format, **options}))
    if length % 16 == 0:
        for per_row in (False, True):
            got = lz.quantize_nvfp4(x, per_row=per_row, kernel="cuda.quantize.nvfp4")
            same(got, call_reference("quantize_nvfp4", {"input": x.cpu(), "per_row": per_row}))


def test_large_moves_tables_and_casts():
    cache = torch.randint(-128, 128, (300, 16, 8, 128), dtype=torch.int8, device="cuda")
    moves = torch.stack((torch.arange(150, 300), torch.arange(150)), 1).cuda()
    keys, values = cache.clone(), cache.flip(0).contiguous()
    want = [t.clone().index_copy_(0, moves[:, 1], t[150:]) for t in (keys, values)]
    lz.kv_compact(keys, values, moves, kernel="cuda.kv.compact")
    assert torch.equal(keys, want[0]) and torch.equal(values, want[1])
    table = torch.randint(0, 99, (64, 512), dtype=torch.int32, device="cuda")
    updates = torch.stack((torch.randint(0, 64, (5000,)), torch.randint(0, 9, (5000,)), torch.arange(5000)), 1).cuda()
    want = table.cpu()
    call_reference("kv_block_table_update", {"block_tables": want, "updates": updates.cpu()})
    lz.kv_block_table_update(table, updates, kernel="cuda.kv.block_table_update")
    assert torch.equal(table.cpu(), want)
    for a in TOLERANCE:
        for b in (*TOLERANCE, torch.float64):
            x = normal(1023, 1001, dtype=a)
            assert torch.equal(lz.cast(x, str(b).removeprefix("torch."), kernel="cuda.elementwise.cast"), x.to(b))
