"""torch's own choice of an attention backend and the rows beside it on the device: right, without a wait, as torch allows."""

import random

import layerzero as lz
import pytest
import torch
from torch.backends import cuda
from torch.nn.attention import SDPBackend, sdpa_kernel

INF = torch.inf
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
TOLERANCE = {F64: 1e-10, F32: 1e-4, F16: 2e-3, BF16: 1.6e-2}


def tensors(b=2, s_q=40, s_kv=40, h_q=4, h_kv=2, d=64, d_v=None, dtype=BF16, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = ((b, s_q, h_q, d), (b, s_kv, h_kv, d), (b, s_kv, h_kv, d_v or d))
    return tuple(torch.randn(shape, device="cuda", generator=generator).to(dtype) for shape in shapes)


def exact(q, k, v, causal=None, scale=None, attn_mask=None, window=None, softcap=None, sinks=None, alibi_slopes=None):
    """(output, lse) by the definition in float64."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    group, s_q, s_kv = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    z = q @ k.repeat_interleave(group, 1).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    z = softcap * torch.tanh(z / softcap) if softcap else z
    distance = torch.arange(s_q, device="cuda")[:, None] + s_kv - s_q - torch.arange(s_kv, device="cuda")
    if alibi_slopes is not None:
        z = z - alibi_slopes.double()[:, None, None] * distance.abs()
    if attn_mask is not None:
        hides = attn_mask.dtype == torch.bool
        z = z.masked_fill(~attn_mask, -INF) if hides else z + attn_mask.double()
    if (attn_mask is None if causal is None else causal) or window:
        z = z.masked_fill(distance < 0, -INF)
    z = z.masked_fill(distance >= window, -INF) if window else z
    lse = torch.logsumexp(z, -1)
    p = torch.exp(z - torch.where(lse == -INF, 0.0, lse).unsqueeze(-1))
    out = p @ v.repeat_interleave(group, 1)
    if sinks is not None:
        out = out * torch.sigmoid(lse - sinks.double()[:, None]).unsqueeze(-1)
    return out.transpose(1, 2), lse


def check(qkv, kernel=None, **given):
    """By both layouts; the second call of a kernel may not wait for the device."""
    want, want_lse = exact(*qkv, **given)
    bound = TOLERANCE[qkv[0].dtype]
    for layout in ("BSHD", "BHSD"):
        placed = qkv if layout == "BSHD" else tuple(t.transpose(1, 2) for t in qkv)
        how = {"layout": layout, "kernel": f"torch.{kernel}" if kernel else None, **given}
        for lse in {False, "lse" in (kernel or "") or kernel == "attention.matmul"}:
            lz.attention(*placed, return_lse=lse, **how)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                got = lz.attention(*placed, return_lse=lse, **how)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            out, *found = got if lse else (got,)
            out = out if layout == "BSHD" else out.transpose(1, 2)
            torch.testing.assert_close(out.double(), want, rtol=bound, atol=bound)
            for one in found:
                torch.testing.assert_close(one.double(), want_lse, rtol=1e-3, atol=1e-3)


@pytest.fixture(autouse=True)
def torch_alone():
    """By priorities: what a machine has measured is not what is tested here."""
    with lz.policy(perfdb={"enabled": False}, rules=[{"deny": ["cuda.*"]}]):
        yield


def chosen(qkv, **given):
    return lz.which("attention", *qkv, layout="BSHD", **given)["kernel_id"].removeprefix("torch.")


# ---- what is chosen is torch's own choice, and right


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64])
@pytest.mark.parametrize(("s_q", "s_kv"), [(1, 1), (1, 513), (40, 40), (300, 300)])
def test_plain_calls(dtype, s_q, s_kv):
    for h_kv in (4, 2):
        qkv = tensors(s_q=s_q, s_kv=s_kv, h_kv=h_kv, dtype=dtype)
        assert chosen(qkv) == "sdpa.auto"
        for scale in (None, 0.3, -0.3, 0.0):
            check(qkv, scale=scale)
        check(qkv, causal=False)


def test_triangles_that_are_not_square():
    for s_q, s_kv in ((8, 100), (100, 8), (2, 3), (16, 4096)):
        for dtype in (BF16, F32):
            check(tensors(s_q=s_q, s_kv=s_kv, dtype=dtype))
        assert chosen(tensors(s_q=s_q, s_kv=s_kv)) == "sdpa.flash"


@pytest.mark.parametrize("d", [1, 4, 8, 12, 20, 65, 72, 128, 136, 192, 256, 264, 512])
def test_head_dims(d):
    for dtype in (BF16, F32):
        for h_kv in (4, 2):
            check(tensors(d=d, h_kv=h_kv, dtype=dtype))
    check(tensors(d=d, d_v=2 * d, h_kv=4))


def test_tensors_that_are_not_aligned():
    q, k, v = tensors()
    for moved in range(3):
        qkv = [q, k, v]
        qkv[moved] = torch.cat((q.new_zeros(1), qkv[moved].flatten()))[1:].view(qkv[moved].shape)
        assert chosen(qkv) == "sdpa.auto.unaligned"
        check(qkv)
        check(qkv, attn_mask=torch.rand(40, 40, device="cuda") > 0.3)
        check(qkv, softcap=3.0)


def test_strides():
    q, k, v = tensors()
    for change in (
        lambda t: t[:1].expand(2, -1, -1, -1),
        lambda t: t.repeat(1, 2, 1, 1)[:, ::2],
        lambda t: torch.cat((t, t), -1)[..., :64],
        lambda t: torch.cat((t, t), -1)[..., ::2],
        lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    ):
        check(tuple(change(t) for t in (q, k, v)))
    check(torch.randn(2, 65, 3, 4, 64, device="cuda", dtype=BF16).unbind(2))


# ---- masks


def forms(dtype, s_q=40, s_kv=40, b=2, h=4):
    random_ = torch.randn(b, h, s_q, s_kv, device="cuda")
    values = random_ > -0.5 if dtype == torch.bool else random_.to(dtype)
    odd = torch.randn(s_q + 1, s_kv + 1, device="cuda")
    odd = odd > -0.5 if dtype == torch.bool else odd.to(dtype)
    square = values[0, 0, :, :s_q]
    yield from (values, values[:, :1], values[:1], values[0], values[0, 0], values[0, 0, 0], values[:, :, :1])
    yield from (values[..., :1], values[0, 0, :1, :1], values[0, 0, :, :1], odd[1:, 1:], odd[:-1, :-1])
    yield from (square.T,) if s_q == s_kv else ()
    yield values[:1, :1].expand(b, h, s_q, s_kv)


@pytest.mark.parametrize("dtype", [torch.bool, BF16, F16, F32])
@pytest.mark.parametrize("query", [BF16, F32])
def test_masks_of_every_form(dtype, query):
    for s_q, s_kv in ((40, 40), (40, 37), (1, 64), (1, 65)):
        for h_kv in (4, 2):
            for mask in forms(dtype, s_q, s_kv):
                check(tensors(s_q=s_q, s_kv=s_kv, h_kv=h_kv, dtype=query), attn_mask=mask)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_rows_that_see_no_key_are_zero(dtype):
    for s_q, s_kv in ((33, 65), (33, 64), (1, 64), (1, 65)):
        for h_kv in (4, 2):
            seen = torch.rand(2, 1, s_q, s_kv, device="cuda") > 0.3
            seen[0, :, 0] = False
            bias = torch.zeros(seen.shape, device="cuda", dtype=dtype).masked_fill_(~seen, -INF)
            qkv = tensors(s_q=s_q, s_kv=s_kv, h_kv=h_kv, dtype=dtype)
            for mask in (seen, bias):
                check(qkv, attn_mask=mask)
                check(qkv, "attention.matmul", attn_mask=mask)
                for backend in ("efficient", "efficient.f32", "cudnn.mask", "cudnn.bias", "auto.mask", "auto.bias"):
                    how = {"operation": "attention", "layout": "BSHD", "attn_mask": mask}
                    if lz.validate(f"torch.sdpa.{backend}", *qkv, **how)[0]:
                        check(qkv, f"sdpa.{backend}", attn_mask=mask)


# ---- windows, sinks, lse, ALiBi, soft-caps


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(("s_q", "s_kv"), [(1, 300), (40, 40), (7, 300), (300, 300), (9, 4)])
def test_what_torch_s_function_has_not(dtype, s_q, s_kv):
    slopes = torch.tensor([0.5, 0.1, -0.02, 0.0], device="cuda")
    sinks = torch.tensor([-3.0, 0.0, 2.0, 9.0], device="cuda")
    qkv = tensors(s_q=s_q, s_kv=s_kv, dtype=dtype)
    for given in (
        *({"window": w} for w in (1, 8, 64, 1000)),
        {"sinks": sinks},
        {"sinks": sinks, "window": 8},
        {"sinks": sinks, "causal": False},
        {"alibi_slopes": slopes},
        {"alibi_slopes": slopes, "window": 50},
        {"alibi_slopes": slopes, "causal": False},
        {"softcap": 3.0},
        {"softcap": 3.0, "window": 8, "sinks": sinks},
        {"sinks": sinks, "attn_mask": torch.rand(s_q, s_kv, device="cuda") > 0.2},
    ):
        assert ".ref." not in chosen(qkv, **given)
        check(qkv, **given)
        check(qkv, "attention.matmul", **given)
        if dtype != F32 and set(given) <= {"window", "sinks", "causal"}:
            check(qkv, "sdpa.flash.lse", **given)


def test_lse():
    for dtype in (BF16, F32):
        for s_q, s_kv in ((1, 300), (40, 40), (7, 300), (9, 4)):
            qkv = tensors(s_q=s_q, s_kv=s_kv, dtype=dtype)
            for window in (None, 8):
                out, lse = lz.attention(*qkv, layout="BSHD", window=window, return_lse=True)
                want, want_lse = exact(*qkv, window=window)
                torch.testing.assert_close(out.double(), want, rtol=1.6e-2, atol=1.6e-2)
                torch.testing.assert_close(lse.double(), want_lse, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_cudnn_with_sinks_and_lse(layout, causal):
    for s in (128, 333):
        q, k, v = tensors(b=2, s_q=s, s_kv=s)
        sinks = torch.randn(q.shape[2], device="cuda")
        own = (q, k, v) if layout == "BSHD" else tuple(t.transpose(1, 2).contiguous() for t in (q, k, v))
        for scale in (None, -0.1):
            given = {"causal": causal, "scale": scale, "layout": layout}
            out, lse = lz.attention(*own, **given, return_lse=True, kernel="torch.sdpa.cudnn.lse")
            sunk, sunk_lse = lz.attention(*own, **given, sinks=sinks, return_lse=True, kernel="torch.sdpa.cudnn.lse")
            want, want_lse = exact(q, k, v, causal=causal, scale=scale)
            want_sunk, _ = exact(q, k, v, causal=causal, scale=scale, sinks=sinks)
            for got, expected in ((out, want), (sunk, want_sunk)):
                got = got if layout == "BSHD" else got.transpose(1, 2)
                torch.testing.assert_close(got.double(), expected, rtol=1.6e-2, atol=1.6e-2)
            torch.testing.assert_close(lse.double(), want_lse, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(sunk_lse, lse)


def test_alibi_of_long_sequences_is_exact_among_far_keys():
    q, k, v = tensors(b=1, s_q=128, s_kv=20000)
    for slopes in ([0.7, 0.1, 0.004, 0.0], [-0.9, 3.0, -0.01, 1e-6]):
        slopes = torch.tensor(slopes, device="cuda")
        assert chosen((q, k, v), alibi_slopes=slopes) == "sdpa.flash.alibi"
        for query in (q * 0, q):
            check((query, k, v), alibi_slopes=slopes)


def test_chunks_of_matrix_products_are_the_whole():
    from layerzero.backends.torch import attention_matmul

    qkv, given = tensors(s_q=100, s_kv=300), {"softcap": 3.0, "window": 70}
    whole = lz.attention(*qkv, layout="BSHD", **given)
    kept, attention_matmul.CHUNK = attention_matmul.CHUNK, 5000
    try:
        parts = lz.attention(*qkv, layout="BSHD", **given)
    finally:
        attention_matmul.CHUNK = kept
    torch.testing.assert_close(parts, whole, rtol=1.6e-2, atol=1.6e-2)


# ---- gradients


@pytest.mark.parametrize("given", [{}, {"window": 8}, {"softcap": 3.0}, {"causal": False}, {"lse": True}], ids=str)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_gradients(given, dtype):
    lse = "lse" in given
    given = {k: v for k, v in given.items() if k != "lse"}
    for s_q in (40, 7):
        leaves = [t.requires_grad_() for t in tensors(s_q=s_q, dtype=dtype)]
        twins = [t.detach().double().requires_grad_() for t in leaves]
        got = lz.attention(*leaves, layout="BSHD", return_lse=lse, **given)
        out, want = (got if lse else (got, torch.zeros(()))), exact(*twins, **given)
        (out[0].float().square().sum() + out[1].sum()).backward()
        (want[0].square().sum() + (want[1].sum() if lse else 0)).backward()
        for leaf, twin in zip(leaves, twins, strict=True):
            error = (leaf.grad.double() - twin.grad).norm() / twin.grad.norm()
            assert error < (2e-2 if dtype == BF16 else 1e-3), error


def test_gradients_of_masks():
    for dtype in (BF16, F32):
        qkv = tensors(dtype=dtype)
        mask = torch.randn(40, 40, device="cuda", dtype=dtype).requires_grad_()
        twin = mask.detach().double().requires_grad_()
        lz.attention(*qkv, layout="BSHD", attn_mask=mask).float().square().sum().backward()
        exact(*qkv, attn_mask=twin)[0].square().sum().backward()
        assert (mask.grad.double() - twin.grad).norm() / twin.grad.norm() < 3e-2


# ---- captured graphs


@pytest.mark.parametrize(
    "given",
    [{}, {"mask": True}, {"window": 8}, {"sinks": True}, {"alibi_slopes": True}, {"softcap": 3.0}, {"s_q": 1}],
    ids=str,
)
def test_captured_calls_replay(given):
    given = dict(given)
    q, k, v = tensors(s_q=given.pop("s_q", 80), s_kv=80)
    if given.pop("mask", None):
        given["attn_mask"] = torch.rand(80, 80, device="cuda") > 0.3
    given = {n: torch.tensor([0.5, 0.1, 0.0, 2.0], device="cuda") if g is True else g for n, g in given.items()}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        lz.attention(q, k, v, layout="BSHD", **given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lz.attention(q, k, v, layout="BSHD", **given)
    for t in (q, k, v):
        t.normal_()
    graph.replay()
    torch.testing.assert_close(y.double(), exact(q, k, v, **given)[0], rtol=1.6e-2, atol=1.6e-2)


# ---- what rows admit, torch can run; what torch's context forbids is not run


CAN_USE = {
    "flash": cuda.can_use_flash_attention,
    "efficient": cuda.can_use_efficient_attention,
    "cudnn": cuda.can_use_cudnn_attention,
}


def random_call(generator):
    pick = generator.choice
    d = pick([4, 8, 12, 64, 72, 128, 136, 192, 256, 264])
    shape = {"b": pick([1, 2]), "s_q": pick([1, 2, 33, 64]), "s_kv": pick([1, 2, 33, 64]), "h_q": 4, "d": d}
    shape |= {"h_kv": pick([1, 2, 4]), "d_v": pick([d, d, 64]), "dtype": pick([BF16, F16, F32, F64])}
    qkv = [*tensors(**shape)]
    for i, t in enumerate(qkv):
        change = pick(["as it is", "as it is", "heads first", "rows apart", "last apart", "shifted"])
        if change == "heads first":
            qkv[i] = t.transpose(1, 2).contiguous().transpose(1, 2)
        elif change == "rows apart":
            qkv[i] = torch.cat((t, t), 1)[:, ::2]
        elif change == "last apart":
            qkv[i] = torch.cat((t, t), -1)[..., ::2]
        elif change == "shifted":
            qkv[i] = torch.cat((t.new_zeros(1), t.flatten()))[1:].view(t.shape)
        qkv[i].requires_grad_(pick([True, False, False]))
    given = {"dropout_p": pick([0.0, 0.0, 0.1])}
    mask = pick([None, None, torch.bool, shape["dtype"], F32])
    if mask is not None:
        given["attn_mask"] = torch.ones(pick([1, shape["s_q"]]), shape["s_kv"], device="cuda", dtype=mask)
    else:
        given["causal"] = pick([True, False])
    return qkv, given


@pytest.mark.parametrize("seed", range(300))
def test_what_a_row_admits_torch_can_use(seed):
    qkv, given = random_call(random.Random(seed))
    report = lz.explain("attention", *qkv, layout="BSHD", **given)
    q, k, v = (t.transpose(1, 2) if t.stride(-1) == 1 else t.transpose(1, 2).contiguous() for t in qkv)
    square = q.shape[2] in (1, k.shape[2])
    causal = bool(given.get("causal")) and square and q.shape[2] > 1  # flash's own function aligns any other
    mask = given.get("attn_mask")
    params = cuda.SDPAParams(q, k, v, mask, given["dropout_p"], causal, q.shape[1] != k.shape[1])
    for candidate in report.candidates:
        parts = candidate.kernel_id.split(".")
        if candidate.kernel_id.startswith("torch.sdpa.") and candidate.admissible and parts[2] in CAN_USE:
            assert CAN_USE[parts[2]](params, True), (candidate.kernel_id, given, [(t.shape, t.stride()) for t in qkv])


def kernels_run(function):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return " ".join(event.key for event in profile.key_averages()).lower()


@pytest.mark.parametrize("kernel", ["sdpa.flash", "sdpa.efficient", "sdpa.cudnn", "sdpa.math", "sdpa.auto"])
@pytest.mark.parametrize("allowed", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"])
def test_sdpa_kernel_is_obeyed(kernel, allowed):
    qkv = tensors(s_q=128, s_kv=128, h_kv=4)
    marks = {"FLASH_ATTENTION": "flash_fwd", "EFFICIENT_ATTENTION": "fmha_cutlass", "CUDNN_ATTENTION": "cudnn"}
    with sdpa_kernel(getattr(SDPBackend, allowed)):
        check(qkv, kernel, causal=False)
        ran = kernels_run(lambda: lz.attention(*qkv, layout="BSHD", kernel=f"torch.{kernel}", causal=False))
    for name, mark in marks.items():
        assert (mark in ran) == (name == allowed), ran


def test_explain_says_what_torch_chooses():
    report = lz.explain("attention", *tensors(d=264, h_kv=4), layout="BSHD")
    assert report.notes[0] == "torch chooses efficient_attention"
    assert any(note.startswith("torch refuses flash: ") for note in report.notes)
    with sdpa_kernel(SDPBackend.MATH):
        report = lz.explain("attention", *tensors(), layout="BSHD")
    assert report.notes[0] == "torch chooses math"  # torch gives each reason once in a process
    assert sum(note.startswith("torch refuses ") for note in report.notes) == 3
