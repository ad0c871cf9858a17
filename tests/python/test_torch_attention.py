"""Adapters of attention on devices, run on the CPU: against the reference, without a read value, under sdpa_kernel."""

import itertools
import random

import pytest
import torch
from layerzero.backends.torch import attention, attention_cudnn, attention_flash, attention_matmul
from layerzero.torch.references import reference_function
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

INF = torch.inf
dense = reference_function("attention")


def tensors(seed, b=2, s_q=5, s_kv=9, h_kv=2, group=2, d=16, d_v=None, dtype=torch.float32):
    torch.manual_seed(seed)
    shapes = ((b, s_q, h_kv * group, d), (b, s_kv, h_kv, d), (b, s_kv, h_kv, d_v or d))
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def call(adapter, qkv, layout="BSHD", **given):
    """The adapter's result in BSHD."""
    how = {"causal": given.get("attn_mask") is None, "scale": 0.25, "attn_mask": None, "dropout_p": 0.0}
    how |= {"window": None, "softcap": None, "sinks": None, "alibi_slopes": None, "return_lse": False} | given
    swapped = layout == "BHSD"
    result = adapter(*(t.transpose(1, 2) if swapped else t for t in qkv), *how.values(), layout)
    out, *lse = result if isinstance(result, tuple) else (result,)
    out = out.transpose(1, 2) if swapped else out
    return (out, *lse) if lse else out


def agrees(got, want, tolerance=2e-5):
    got, want = (t if isinstance(t, tuple) else (t,) for t in (got, want))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def flash_by_formula(q, k, v, causal, scale, window):
    """What aten._flash_attention_forward gives, its +inf for rows without a key included."""
    out, lse = dense(q.float(), k.float(), v.float(), causal=causal, scale=scale, window=window, return_lse=True)
    return out.to(q.dtype), torch.where(lse.isfinite(), lse, INF)


@pytest.fixture
def flash(monkeypatch):
    monkeypatch.setattr(attention_flash, "_forward", flash_by_formula)


def masks(generator, b, s_q, s_kv, h):
    shape = generator.choice([(s_kv,), (s_q, 1), (s_q, s_kv), (h, s_q, s_kv), (b, 1, 1, s_kv), (b, h, s_q, s_kv)])
    values = torch.randn(shape)
    return generator.choice([None, values > 0, values, values.masked_fill(values > 1, -INF)])


@pytest.mark.parametrize("seed", range(60))
def test_matrix_products_are_the_definition(seed, monkeypatch):
    generator = random.Random(seed)
    monkeypatch.setattr(attention_matmul, "CHUNK", generator.choice([1, 50, 1000, 1 << 24]))
    shape = {"b": generator.choice([1, 2]), "s_q": generator.choice([1, 2, 9]), "s_kv": generator.choice([1, 3, 17])}
    qkv = tensors(seed, **shape, d_v=5, dtype=generator.choice([torch.float32, torch.float64]))
    given = {"attn_mask": masks(generator, *shape.values(), 4), "scale": generator.choice([0.3, -0.5, 0.0])}
    given["causal"] = given["attn_mask"] is None and generator.random() < 0.6
    given |= {"window": generator.choice([None, 1, 3, 8]), "softcap": generator.choice([None, 2.0])}
    given["sinks"] = generator.choice([None, torch.randn(4), torch.full((4,), INF), torch.full((4,), -INF)])
    given["alibi_slopes"] = generator.choice([None, torch.randn(4)])
    for layout in ("BSHD", "BHSD"):
        got = call(attention_matmul.matmul, qkv, layout, return_lse=True, **given)
        agrees(got, dense(*qkv, return_lse=True, **given))


@pytest.mark.parametrize("seed", range(20))
def test_gradients_of_matrix_products(seed, monkeypatch):
    """Rows without a visible key too, whose softmax has no derivative."""
    generator = random.Random(seed)
    monkeypatch.setattr(attention_matmul, "CHUNK", generator.choice([1, 1 << 20]))
    s_q, s_kv = generator.choice([(3, 5), (5, 3), (1, 4)])
    hidden = torch.zeros(s_q, s_kv, dtype=torch.bool)
    hidden[0] = True
    kind = generator.choice(["none", "bool", "float"])
    given = {"causal": kind == "none", "window": generator.choice([None, 2]), "softcap": generator.choice([None, 1.5])}
    grads = []
    for function in (lambda *t, **how: call(attention_matmul.matmul, t, **how), dense):
        leaves = [*tensors(seed, s_q=s_q, s_kv=s_kv, d=4, dtype=torch.float64)]
        torch.manual_seed(seed)
        leaves += [torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)]
        leaves += [torch.randn(s_q, s_kv, dtype=torch.float64)]
        leaves = [t.requires_grad_() for t in leaves]
        mask = {"none": None, "bool": ~hidden, "float": leaves[5].masked_fill(hidden, -INF)}[kind]
        how = given | {"attn_mask": mask, "sinks": leaves[3], "alibi_slopes": leaves[4], "scale": 0.5}
        out, lse = function(*leaves[:3], return_lse=True, **how)
        (out.square().sum() + lse[lse.isfinite()].sum()).backward()
        grads.append([t.grad for t in leaves if t.grad is not None])
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_flash_with_windows_sinks_and_lse(seed, flash):
    generator = random.Random(seed)
    qkv = tensors(seed, s_q=generator.choice([1, 2, 9]), s_kv=generator.choice([1, 3, 17, 40]))
    given = {"causal": generator.random() < 0.7, "window": generator.choice([None, 1, 3, 8])}
    given |= {"scale": generator.choice([0.25, -0.25, 0.0])}
    given["sinks"] = generator.choice([None, torch.randn(4), torch.full((4,), INF), torch.full((4,), -INF)])
    for layout in ("BSHD", "BHSD"):
        agrees(
            call(attention_flash.flash, qkv, layout, return_lse=True, **given), dense(*qkv, return_lse=True, **given)
        )
        agrees(call(attention_flash.flash, qkv, layout, **given), dense(*qkv, **given))


@pytest.fixture
def cudnn(monkeypatch):
    def by_formula(q, k, v, bias, with_lse, dropout_p, causal, debug, scale):
        assert bias is None and with_lse
        out, lse = flash_by_formula(*(t.transpose(1, 2) for t in (q, k, v)), causal, scale, None)
        return out.transpose(1, 2), lse.unsqueeze(-1)

    monkeypatch.setattr(torch, "_scaled_dot_product_cudnn_attention", by_formula)


@pytest.mark.parametrize("sinks", [None, torch.randn(4), torch.full((4,), INF), torch.full((4,), -INF)], ids=str)
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
def test_cudnn_with_sinks_and_lse(cudnn, layout, sinks):
    for causal, s_q in ((True, 9), (False, 9), (False, 3)):
        qkv, given = tensors(2, s_q=s_q), {"causal": causal, "sinks": sinks}
        expected = dense(*qkv, scale=0.25, return_lse=True, **given)
        agrees(call(attention_cudnn.cudnn, qkv, layout, return_lse=True, **given), expected)
        agrees(call(attention_cudnn.cudnn, qkv, layout, **given), expected[0])


@pytest.mark.parametrize("adapter", [attention_flash.flash, attention_cudnn.cudnn], ids=["flash", "cudnn"])
@pytest.mark.parametrize("sinks", [None, torch.ones(4)], ids=["", "sinks"])
def test_the_lse_of_a_row_of_nan_is_nan(adapter, sinks, flash, cudnn):
    q, k, v = tensors(0, s_q=9)
    q[0, 3] = torch.nan
    out, lse = call(adapter, (q, k, v), return_lse=True, sinks=sinks)
    assert out[0, 3].isnan().all() and lse[0, :, 3].isnan().all()
    assert out[0, 4].isfinite().all() and lse[0, :, 4].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("slopes", [[0.7, 0.1, 0.004, 0.0], [-0.9, 3.0, -0.01, 1e-6]], ids=str)
def test_alibi_by_columns_is_exact_among_far_keys(dtype, window, slopes, flash):
    """With queries of zeros only the bias decides: 16-bit products of slope and distance would be wrong by half."""
    q, k, v = tensors(3, b=1, s_q=70, s_kv=1500, dtype=dtype)
    given = {"alibi_slopes": torch.tensor(slopes), "window": window}
    for query in (q * 0, q):
        for layout in ("BSHD", "BHSD"):
            got = call(attention_flash.alibi, (query, k, v), layout, **given)
            agrees(got, dense(query.float(), k.float(), v.float(), scale=0.25, **given), 1e-2)


def test_columns_of_alibi_hold_every_distance():
    for dtype in (torch.bfloat16, torch.float16):
        columns = attention_flash._distance_columns(65536, dtype, "cpu").double()
        assert torch.equal(columns[:, :2].sum(1), torch.arange(-65535, 1).double())


@pytest.mark.parametrize("seed", range(40))
def test_torch_s_own_choice(seed):
    generator = random.Random(seed)
    s_q, s_kv = generator.choice([(1, 1), (1, 9), (6, 6), (3, 7), (7, 3)])
    qkv = tensors(seed, s_q=s_q, s_kv=s_kv)
    given = {"scale": generator.choice([0.25, -0.25, 0.0])}
    mask = masks(generator, 2, s_q, s_kv, 4)
    for layout in ("BSHD", "BHSD"):
        if s_q in (1, s_kv):
            agrees(call(attention.sdpa_auto, qkv, layout, **given), dense(*qkv, **given))
        agrees(call(attention.sdpa_auto, qkv, layout, causal=False, **given), dense(*qkv, causal=False, **given))
        for adapter in (attention.sdpa_auto_mask, attention.sdpa_auto_unaligned):
            agrees(call(adapter, qkv, layout, attn_mask=mask, **given), dense(*qkv, attn_mask=mask, **given))
        for window in (1, 3, 20):
            want = dense(*qkv, window=window, **given)
            agrees(call(attention.sdpa_auto_band, qkv, layout, window=window, **given), want)
            if s_q == 1:
                agrees(call(attention.sdpa_auto_window, qkv, layout, window=window, **given), want)


@pytest.mark.parametrize("shift", [0, 1, 8])
@pytest.mark.parametrize("d", [16, 12])
def test_copies_are_made_where_16_bytes_do_not_fit(shift, d):
    tensor = torch.zeros(2 * 3 * 4 * d + shift, dtype=torch.bfloat16)[shift:].view(2, 3, 4, d)
    copied = attention.aligned(tensor) is not tensor
    assert copied == (shift == 1 and d == 16)  # rows of 24 bytes are torch's to pad


# ---- nothing is read from the device


class NoReads(TorchFunctionMode):
    """Refuses what waits for a device to learn a value."""

    READS = frozenset({"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "nonzero", "equal", "numpy"})

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in self.READS:
            raise AssertionError(f"{function.__name__} reads a tensor's value")
        return function(*args, **(kwargs or {}))


ADAPTERS = {
    "auto": (attention.sdpa_auto, {"causal": False}),
    "mask": (attention.sdpa_auto_mask, {"attn_mask": torch.rand(5, 9) > 0.3}),
    "bias": (attention.sdpa_auto_mask, {"attn_mask": torch.randn(4, 5, 9)}),
    "triangle": (attention.sdpa_auto_mask, {}),
    "unaligned": (attention.sdpa_auto_unaligned, {"attn_mask": torch.rand(9) > 0.3}),
    "band": (attention.sdpa_auto_band, {"window": 3}),
    "window": (attention_flash.flash, {"window": 3}),
    "lse": (attention_flash.flash, {"window": 3, "sinks": torch.ones(4), "return_lse": True}),
    "alibi": (attention_flash.alibi, {"alibi_slopes": torch.ones(4)}),
    "matmul": (attention_matmul.matmul, {"softcap": 2.0, "sinks": torch.ones(4), "alibi_slopes": torch.ones(4)}),
    "matmul, mask": (attention_matmul.matmul, {"attn_mask": torch.rand(5, 9) > 0.3, "return_lse": True}),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_no_adapter_of_a_device_reads_a_value(name, flash):
    adapter, given = ADAPTERS[name]
    qkv = tensors(1)
    want = call(adapter, qkv, **given)
    with NoReads():
        got = call(adapter, qkv, **given)
    agrees(got, want)


def test_the_guard_against_reads_sees_them():
    with pytest.raises(AssertionError, match="reads a tensor's value"), NoReads():
        bool(torch.ones(1).isfinite())


# ---- torch.nn.attention.sdpa_kernel and the flags of torch.backends.cuda


BACKENDS = {
    "flash": (SDPBackend.FLASH_ATTENTION, attention.sdpa_flash, "_scaled_dot_product_flash_attention"),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, attention.sdpa_efficient, "_scaled_dot_product_efficient_attention"),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, attention.sdpa_cudnn, "_scaled_dot_product_cudnn_attention"),
    "math": (SDPBackend.MATH, attention.sdpa_math, "_scaled_dot_product_attention_math"),
}


@pytest.fixture
def seen(monkeypatch):
    """Names of torch's functions as they are called; those of one backend return nothing but their mark."""
    calls = []

    def record(name, result):
        return lambda *args, **kwargs: calls.append(name) or result(*args)

    for _, _, name in BACKENDS.values():
        monkeypatch.setattr(torch, name, record(name, lambda q, k, v, *rest: (torch.zeros_like(q),)))
    plain = attention._sdpa
    monkeypatch.setattr(attention, "_sdpa", lambda *args, **kwargs: calls.append("choice") or plain(*args, **kwargs))
    return calls


@pytest.mark.parametrize(("name", "allowed"), list(itertools.product(BACKENDS, BACKENDS)))
@pytest.mark.parametrize("given", [{}, {"causal": False}, {"attn_mask": torch.rand(5, 9) > 0.3}], ids=["c", "", "m"])
def test_a_backend_that_sdpa_kernel_forbids_is_not_run(name, allowed, given, seen):
    _, adapter, function = BACKENDS[name]
    with sdpa_kernel([BACKENDS[allowed][0], SDPBackend.MATH if name != "math" else BACKENDS[allowed][0]]):
        if name == "math" and allowed != "math":  # torch's choice on a CPU: flash, or none
            try:
                call(adapter, tensors(1), **given)
            except RuntimeError as error:
                assert "No viable backend" in str(error)
        else:
            call(adapter, tensors(1), **given)
    assert seen[0] == (function if name == allowed else "choice")


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
@pytest.mark.parametrize("given", [{}, {"causal": False}, {"attn_mask": torch.rand(5, 9) > 0.3}], ids=["c", "", "m"])
def test_rows_of_one_backend_read_no_value(name, given, seen):
    with NoReads():
        call(BACKENDS[name][1], tensors(1), **given)
    assert seen == [BACKENDS[name][2]]


@pytest.mark.parametrize("given", [{"window": 3}, {"sinks": torch.ones(4), "return_lse": True}], ids=str)
def test_flash_with_more_obeys_sdpa_kernel(given, monkeypatch):
    monkeypatch.setattr(attention_flash, "_forward", lambda *args: pytest.fail("flash was run"))
    qkv = tensors(1)
    with sdpa_kernel(SDPBackend.MATH):
        agrees(call(attention_flash.flash, qkv, **given), dense(*qkv, scale=0.25, **given))
        slopes = {"alibi_slopes": torch.ones(4)}
        agrees(call(attention_flash.alibi, qkv, **slopes), dense(*qkv, scale=0.25, **slopes))


def test_cudnn_is_left_out_under_deterministic_algorithms_and_for_gradients_of_masks(seen):
    torch.use_deterministic_algorithms(True)
    try:
        call(attention.sdpa_cudnn, tensors(1))
    finally:
        torch.use_deterministic_algorithms(False)
    mask = torch.randn(5, 9, requires_grad=True)
    call(attention.sdpa_cudnn, tensors(1), attn_mask=mask).sum().backward()
    assert mask.grad is not None and seen == ["choice", "choice"]
    call(attention.sdpa_cudnn, tensors(1), attn_mask=mask.detach())
    assert seen[-1] == "_scaled_dot_product_cudnn_attention"


# ---- what torch says about its backends


def test_explain_has_torch_s_choice_and_its_reasons_against_the_others(monkeypatch):
    import warnings

    from layerzero.backends.torch import can_use

    def refuses(params, debug):
        warnings.warn("head_dim should be no more than 128 (Triggered internally at /x/sdp_utils.cpp:1.)", stacklevel=1)
        return False

    checks = {"flash": lambda params, debug: True, "cudnn": refuses, "efficient": lambda params, debug: False}
    monkeypatch.setattr(can_use, "_CHECKS", checks)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *args, **kwargs: int(SDPBackend.FLASH_ATTENTION))
    for layout, mask in (("BSHD", None), ("BHSD", torch.ones(9))):
        assert can_use.notes(*tensors(1), True, mask, 0.0, layout) == [
            "torch chooses flash_attention",
            "torch refuses cudnn: head_dim should be no more than 128",
            "torch refuses efficient: no reason given",
        ]


def test_notes_are_those_of_the_call(monkeypatch):
    import json

    import layerzero as lz
    from layerzero import inspection
    from layerzero.backends.torch import can_use

    asked = []
    monkeypatch.setattr(can_use, "notes", lambda *args: asked.append(args) or ["torch chooses math"])
    q, k, v = tensors(1)
    plain = lz.explain("attention", q, k, v, layout="BSHD")
    assert "notes" not in plain.to_dict()
    answer = inspection._layerzero.explain

    def on_a_device(*args):
        return json.dumps(json.loads(answer(*args)) | {"kernel_id": "torch.sdpa.auto"})

    monkeypatch.setattr(inspection._layerzero, "explain", on_a_device)
    report = lz.explain("attention", q, k, value=v, layout="BSHD", causal=False, dropout_p=0.25)
    assert report.notes == ["torch chooses math"] and str(report).endswith("torch chooses math")
    assert [a is b for a, b in zip(asked[0], (q, k, v), strict=False)] == [True] * 3
    assert asked[0][3:] == (False, None, 0.25, "BSHD")
