"""Calls with other axes than the contract's shapes: several normalised axes, heads without a batch or with many, in place."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402

F = torch.nn.functional
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SHAPES = {"a tuple": tuple, "a list": list, "torch.Size": torch.Size}
CLOSE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


def close(got, want, dtype):
    assert got.shape == want.shape and got.dtype == want.dtype
    torch.testing.assert_close(got, want, **CLOSE[dtype])


def made(dtype, *shape):
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_normalized_axes_are_torchs(axes, kind, dtype):
    x, residual = made(dtype, 3, 2, 4, 6), made(dtype, 3, 2, 4, 6)
    sizes = SHAPES[kind](x.shape[-axes:])
    w, b = made(dtype, *sizes), made(dtype, *sizes)
    close(lz.layer_norm(x, sizes, w, b), F.layer_norm(x, sizes, w, b), dtype)
    close(lz.layer_norm(x, sizes), F.layer_norm(x, sizes), dtype)
    close(lz.rms_norm(x, w, 1e-5, normalized_shape=sizes), F.rms_norm(x, sizes, w, 1e-5), dtype)
    total = x + residual
    output, stream = lz.fused_add_layer_norm(x, residual, sizes, w, b)
    close(output, F.layer_norm(total, sizes, w, b), dtype)
    assert torch.equal(stream, total)
    output, stream = lz.fused_add_rms_norm(x, residual, w, 1e-5, normalized_shape=sizes)
    close(output, F.rms_norm(total, sizes, w, 1e-5), dtype)
    assert torch.equal(stream, total)


def test_an_integer_is_the_last_axis():
    x, w = torch.randn(3, 4), torch.randn(4)
    assert torch.equal(lz.rms_norm(x, w, normalized_shape=4), lz.rms_norm(x, w))
    assert torch.equal(lz.layer_norm(x, 4), lz.layer_norm(x, (4,)))


def test_every_kernel_serves_several_axes():
    x, w = torch.randn(5, 4, 6), torch.randn(4, 6)
    kernels = [c.kernel_id for c in lz.explain("layer_norm", x, (4, 6), w).candidates if c.admissible]
    assert len(kernels) > 2
    for kernel in kernels:
        close(lz.layer_norm(x, (4, 6), w, kernel=kernel), F.layer_norm(x, (4, 6), w), torch.float32)
    rows = [c.kernel_id for c in lz.explain("layer_norm", x.reshape(5, 24), 24, w.flatten()).candidates if c.admissible]
    assert kernels == rows


@pytest.mark.parametrize(
    "turn", [lambda t: t, lambda t: t.transpose(0, 1).contiguous().transpose(0, 1), lambda t: t.mT]
)
def test_any_strides(turn):
    x = turn(torch.randn(4, 5, 5))
    close(lz.layer_norm(x, (5, 5)), F.layer_norm(x, (5, 5)), torch.float32)


def test_several_axes_with_gradient_out_and_a_graph():
    x, w = torch.randn(3, 4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    want = torch.autograd.grad(F.layer_norm(x, (4, 6), w).square().sum(), (x, w))
    got = torch.autograd.grad(lz.layer_norm(x, (4, 6), w).square().sum(), (x, w))
    for a, b in zip(got, want, strict=True):
        close(a, b, torch.float32)
    x, w = x.detach(), w.detach()
    out = torch.empty_like(x)
    assert lz.layer_norm(x, (4, 6), w, out=out) is out
    close(out, F.layer_norm(x, (4, 6), w), torch.float32)
    with pytest.raises(lz.InvalidRequestError, match="out"):
        lz.layer_norm(x, (4, 6), w, out=torch.empty(3, 6, 4).mT)
    graph = torch.compile(lambda x, w: lz.layer_norm(x, (4, 6), w), backend="eager", fullgraph=True)
    close(graph(x, w), F.layer_norm(x, (4, 6), w), torch.float32)


@pytest.mark.parametrize("sizes", [(), (6, 4), (4,), (2, 4, 6), (3, 5, 4, 6), (4.0, 6), ("4", "6"), (True, 6)])
def test_sizes_that_do_not_fit_are_refused(sizes):
    with pytest.raises(lz.InvalidRequestError, match="layer_norm"):
        lz.layer_norm(torch.randn(5, 4, 6), sizes)


def test_a_weight_of_other_axes_is_refused():
    for weight in (torch.randn(24), torch.randn(6, 4), torch.randn(5, 4, 6)):
        with pytest.raises(lz.InvalidRequestError, match=r"weight.*\[4, 6\]"):
            lz.layer_norm(torch.randn(5, 4, 6), (4, 6), weight)


def test_arrays_of_other_libraries():
    np = pytest.importorskip("numpy")
    x = np.ones((2, 3, 4), np.float32)
    assert isinstance(lz.layer_norm(x, (3, 4)), np.ndarray) and lz.layer_norm(x, (3, 4)).shape == (2, 3, 4)


def test_every_operation_with_such_an_argument_is_tested_here():
    folds = {n for n, c in contracts().items() if any(p.get("folds") for p in c["params"])}
    batched = {n for n, c in contracts().items() if any(p.get("batched_rank") for p in c["params"])}
    assert folds == {"layer_norm", "rms_norm", "fused_add_layer_norm", "fused_add_rms_norm"} and batched == {"rope"}


@pytest.mark.parametrize("sizes", [(6,), (4, 6), [4, 6], torch.Size([2, 4, 6])], ids=str)
def test_prepared_calls_take_several_axes(sizes):
    first, x = torch.randn(3, 2, 4, 6), torch.randn(5, 2, 4, 6)
    w, b = torch.randn(*sizes), torch.randn(*sizes)
    prepared = lz.prepare("layer_norm", first, sizes, w, b)
    for tensor in (first, x, x.transpose(0, 1).contiguous().transpose(0, 1)):
        close(prepared(tensor, w, b), F.layer_norm(tensor, sizes, w, b), torch.float32)
    close(
        lz.prepare("rms_norm", first, w, normalized_shape=sizes)(x, w),
        lz.rms_norm(x, w, normalized_shape=sizes),
        w.dtype,
    )
    prepared = lz.prepare("fused_add_rms_norm", first, first, w, normalized_shape=sizes)
    for got, want in zip(prepared(x, x, w), lz.fused_add_rms_norm(x, x, w, normalized_shape=sizes), strict=True):
        close(got, want, torch.float32)
    with pytest.raises(lz.InvalidRequestError, match="layer_norm: "):
        lz.prepare("layer_norm", first, sizes, w, b)(torch.randn(3, 5), w, b)


def test_operators_say_what_takes_several_axes():
    with pytest.raises(lz.InvalidRequestError, match=r"Python's layerzero.layer_norm takes"):
        torch.ops.layerzero.layer_norm(torch.randn(5, 4, 6), 24)
    with pytest.raises(lz.InvalidRequestError, match=r"Python's layerzero.layer_norm takes"):
        torch.ops.layerzero.layer_norm(torch.randn(5, 4, 6), 24, torch.randn(24))
    with pytest.raises(lz.InvalidRequestError, match=r"Python's layerzero.rms_norm takes"):
        torch.ops.layerzero.rms_norm(torch.randn(5, 4, 6), torch.randn(4, 6))


# ---- rope

COS, SIN = torch.randn(7, 8), torch.randn(7, 8)  # 7 positions, half of 16 columns


def rope_of(x, cos=COS, sin=SIN, **options):
    """The definition, on (..., s, h, d)."""
    cos, sin = (torch.cat((t, t), -1).unsqueeze(-2) for t in (cos, sin))
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 3), (2, 3, 1)], ids=str)
@pytest.mark.parametrize("layout", [None, "BSHD"])
def test_rope_of_any_batch(lead, layout):
    x = torch.randn(*lead, 7, 4, 16)
    close(lz.rope(x, COS, SIN, layout=layout), rope_of(x), torch.float32)
    if lead:
        cos, sin = (t.expand(*lead, 7, 8).contiguous() for t in (COS, SIN))
        close(lz.rope(x, cos, sin, layout=layout), rope_of(x, cos, sin), torch.float32)
    ids = torch.randint(0, 7, (*lead, 7))
    for dtype in (torch.int32, torch.int64):
        got = lz.rope(x, COS, SIN, position_ids=ids.to(dtype), layout=layout)
        close(got, rope_of(x, COS[ids], SIN[ids]), torch.float32)


def test_rope_with_heads_first_and_of_one_token():
    x = torch.randn(4, 7, 16)
    close(lz.rope(x, COS, SIN, layout="BHSD"), rope_of(x.transpose(0, 1)).transpose(0, 1), torch.float32)
    token = torch.randn(4, 16)
    close(lz.rope(token, COS[3], SIN[3]), rope_of(token[None], COS[3:4], SIN[3:4])[0], torch.float32)
    close(lz.rope(token, COS[3:4], SIN[3:4]), rope_of(token[None], COS[3:4], SIN[3:4])[0], torch.float32)
    with pytest.raises(lz.InvalidRequestError, match="rope: input"):
        lz.rope(token, COS[3], SIN[3], layout="BHSD")
    with pytest.raises(lz.InvalidRequestError, match="rope: input"):
        lz.rope(torch.randn(16), COS[3], SIN[3])


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_questions_gradients_and_graphs_take_the_same(lead):
    x = torch.randn(*lead, 7, 4, 16)
    assert lz.which("rope", x, COS, SIN).kernel_id == lz.explain("rope", x, COS, SIN).kernel_id
    assert lz.validate("ref.posenc.rope", x, COS, SIN) == (True, [])
    wanted = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(lz.rope(wanted, COS, SIN).square().sum(), wanted)
    (want,) = torch.autograd.grad(rope_of(wanted).square().sum(), wanted)
    close(got, want, torch.float32)
    graph = torch.compile(lambda x: lz.rope(x, COS, SIN), backend="eager", fullgraph=True)
    close(graph(x), rope_of(x), torch.float32)


@pytest.mark.parametrize("layout", [None, "BSHD"])
def test_prepared_rope_of_any_batch(layout):
    shapes = [(7, 4, 16), (1, 7, 4, 16), (3, 7, 4, 16), (2, 3, 7, 4, 16)]
    for first in shapes:
        prepared = lz.prepare("rope", torch.randn(first), COS, SIN, layout=layout)
        for shape in shapes:
            x = torch.randn(shape)
            close(prepared(x, COS, SIN), rope_of(x), torch.float32)
        token = torch.randn(4, 16)
        close(prepared(token, COS[3], SIN[3]), lz.rope(token, COS[3], SIN[3]), torch.float32)
        with pytest.raises(lz.InvalidRequestError, match="rope: input"):
            prepared(torch.randn(16), COS[3], SIN[3])
    prepared = lz.prepare("rope", torch.randn(4, 7, 16), COS, SIN, layout="BHSD")
    for shape in [(4, 7, 16), (2, 4, 7, 16), (2, 3, 4, 7, 16)]:
        x = torch.randn(shape)
        close(prepared(x, COS, SIN), rope_of(x.transpose(-2, -3)).transpose(-2, -3), torch.float32)
    with pytest.raises(lz.InvalidRequestError, match="rope: input"):
        prepared(torch.randn(4, 16), COS[3], SIN[3])


def test_operators_say_what_takes_any_batch():
    with pytest.raises(lz.InvalidRequestError, match=r"Python's layerzero.rope takes any number"):
        torch.ops.layerzero.rope(torch.randn(2, 3, 7, 4, 16), COS, SIN)


KERNELS = ["ref.posenc.rope", "torch.ref.posenc.rope", "hwy.posenc.rope", None]


@pytest.mark.parametrize(("kernel", "interleaved"), [*itertools.product(KERNELS, (False, True))])
@pytest.mark.parametrize("shape", [(2, 7, 4, 16), (7, 4, 16), (2, 3, 7, 4, 16)], ids=str)
def test_rope_in_place(shape, kernel, interleaved):
    x = torch.randn(shape)
    if kernel is not None and not lz.validate(kernel, x, COS, SIN, interleaved)[0]:
        pytest.skip("not for this call")
    want = lz.rope(x, COS, SIN, interleaved)
    before = x._version
    assert lz.rope(x, COS, SIN, interleaved, kernel=kernel, out=x) is x
    close(x, want, torch.float32)
    assert x._version > before


@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_every_kernel_rotates_in_place(layout):
    x = torch.randn(2, 7, 4, 16) if layout == "BSHD" else torch.randn(2, 4, 7, 16)
    want = lz.rope(x, COS, SIN, layout=layout)
    for candidate in lz.explain("rope", x, COS, SIN, layout=layout).candidates:
        if candidate.admissible:
            mine = x.clone()
            lz.rope(mine, COS, SIN, layout=layout, kernel=candidate.kernel_id, out=mine)
            close(mine, want, torch.float32)


def test_other_memory_of_the_input_is_refused():
    memory = torch.randn(3, 7, 4, 16)
    with pytest.raises(lz.InvalidRequestError, match="memory of its own"):
        lz.rope(memory[:2], COS, SIN, out=memory[1:])
    square = torch.randn(1, 7, 16, 16)
    with pytest.raises(lz.InvalidRequestError):
        lz.rope(square, COS, SIN, out=square.mT)
    with pytest.raises(lz.InvalidRequestError, match="memory of its own"):
        lz.rms_norm(square, out=square)  # an operation that does not allow it
