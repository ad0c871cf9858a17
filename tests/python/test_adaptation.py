"""What a call means and what is done to its tensors, through the bindings: layouts, casts, fallbacks, memory of policies."""

import gc
import logging
import warnings

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from operation_cases import NAMES, few  # noqa: E402


def qkv(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator).to(dtype) for _ in range(3)]


def source(*tensors, **params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lz.LayerZeroLayoutWarning)
        layout = lz.explain("attention", *tensors, **params).layout
    return layout.name, layout.source


# ---- layouts


def test_explain_says_how_a_layout_was_found():
    assert source(*qkv(1, 5, 8, 16)) == ("BSHD", "head_counts")
    assert source(*qkv(1, 8, 5, 16)) == ("BHSD", "head_counts")
    assert source(*qkv(1, 8, 5, 16), layout="BSHD") == ("BSHD", "argument")
    assert source(*(t.transpose(1, 2) for t in qkv(1, 5, 7, 16))) == ("BHSD", "strides")


def test_the_layout_that_was_found_is_the_one_that_runs():
    tensors = qkv(1, 8, 5, 16)
    want = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=True)
    torch.testing.assert_close(lz.attention(*tensors), want, rtol=1e-5, atol=1e-5)
    prepared = lz.prepare("attention", *tensors)
    torch.testing.assert_close(prepared(*tensors), want, rtol=1e-5, atol=1e-5)


def test_modes_and_gradients_mean_the_same_layout():
    tensors = qkv(1, 8, 5, 16)
    want = lz.attention(*tensors)
    mapped = torch.func.vmap(lambda q, k, v: lz.attention(q, k, v))(*(t[None] for t in tensors))
    torch.testing.assert_close(mapped[0], want, rtol=1e-5, atol=1e-5)
    wanting = [t.clone().requires_grad_() for t in tensors]
    torch.testing.assert_close(lz.attention(*wanting).detach(), want, rtol=1e-5, atol=1e-5)


def test_an_undecided_layout_warns_and_in_strict_mode_raises():
    tensors = qkv(1, 5, 7, 16)
    with pytest.warns(lz.LayerZeroLayoutWarning, match="assumed BSHD"):
        lz.attention(*tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lz.LayerZeroLayoutWarning)
        with pytest.raises(lz.LayerZeroLayoutWarning):
            lz.attention(*tensors)
        lz.attention(*tensors, layout="BSHD")
    with lz.policy(strict_mode=True), pytest.raises(lz.InvalidRequestError, match="layout"):
        lz.attention(*tensors)


# ---- mixed dtypes


@pytest.mark.parametrize("kernel", [None, "ref.attention.standard.prefill", "torch.ref.attention.standard.prefill"])
def test_mixed_dtypes_are_cast_to_their_promotion(kernel):
    q, k, v = qkv(1, 5, 8, 16)
    q = q.bfloat16()
    got = lz.attention(q, k, v, layout="BSHD", kernel=kernel)
    assert got.dtype is torch.float32
    want = lz.attention(q.float(), k, v, layout="BSHD", kernel=kernel)
    assert torch.equal(got, want)


def test_a_cast_is_visible_with_its_cost():
    q, k, v = qkv(1, 5, 8, 16)
    report = lz.explain("attention", q.half(), k.bfloat16(), v.half(), layout="BSHD")
    casts = {t.tensor: (t["from"], t.to, t.bytes) for t in report.plan.transforms if t.kind == "cast"}
    assert casts == {
        "query": ("float16", "float32", q.numel() * 4),
        "key": ("bfloat16", "float32", k.numel() * 4),
        "value": ("float16", "float32", v.numel() * 4),
    }
    assert report.plan.transform_cost_total == sum(t.cost for t in report.plan.transforms) > 0


def test_strict_mode_refuses_mixed_dtypes():
    q, k, v = qkv(1, 5, 8, 16)
    for keys in ({"strict_mode": True}, {"allow_adaptation": False}):
        with lz.policy(**keys), pytest.raises(lz.NoKernelFoundError) as error:
            lz.attention(q.double(), k, v, layout="BSHD")
        assert all("DTYPE_UNSUPPORTED" in [r.code for r in reasons] for reasons in error.value.failures.values())


def test_torch_ops_cast_too():
    q, k, v = qkv(1, 5, 8, 16)
    got = torch.ops.layerzero.attention(q.bfloat16(), k, v)
    assert torch.equal(got, lz.attention(q.bfloat16().float(), k, v, layout="BSHD"))


# ---- kernels that fail


@pytest.fixture
def raising():
    name = "tests.raising"

    @lz.register_kernel("sampling.softmax", name, supported_dtypes=["float32"], priority=0)
    def kernel(logits):
        raise RuntimeError("out of luck")

    return name


def test_a_failing_host_kernel_falls_back_visibly(raising, caplog):
    x = torch.randn(2, 9)
    before = lz.doctor().counters.fallbacks
    with lz.policy(rules=[{"match": {"operation": "sampling.softmax"}, "allowlist": [raising, "ref.*"]}]):
        assert lz.which("softmax", x)["kernel_id"] == raising
        with caplog.at_level(logging.WARNING, logger="layerzero"):
            for _ in range(3):
                torch.testing.assert_close(lz.softmax(x), torch.softmax(x, -1))
    assert lz.doctor().counters.fallbacks == before + 3
    lines = [r.message for r in caplog.records if raising in r.message]
    assert len(lines) == 1 and "out of luck" in lines[0]


def test_a_locked_host_kernel_raises(raising):
    with pytest.raises(RuntimeError, match="out of luck"):
        lz.softmax(torch.randn(2, 9), kernel=raising)


def test_interrupts_are_not_failures():
    @lz.register_kernel("sampling.softmax", "tests.interrupted", supported_dtypes=["float64"], priority=0)
    def kernel(logits):
        raise KeyboardInterrupt

    with (
        lz.policy(rules=[{"match": {"operation": "sampling.softmax"}, "allowlist": ["tests.interrupted", "ref.*"]}]),
        pytest.raises(KeyboardInterrupt),
    ):
        lz.softmax(torch.randn(2, 9, dtype=torch.float64))


# ---- what policies keep


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_unknown_kernels_are_refused_and_keep_nothing():
    x, w = torch.ones(2, 8), torch.ones(8)

    def refused(i):
        with pytest.raises(lz.NoKernelFoundError, match="no kernel of that id"):
            lz.rms_norm(x, w, kernel=f"no.such.kernel.{i}")

    for i in range(200):
        refused(i)
    gc.collect()
    before = resident()
    for i in range(3000):
        refused(1000 + i)
    gc.collect()
    assert resident() - before < 4 << 20


def test_locks_and_unlocks_keep_nothing():
    x, w = torch.ones(2, 8), torch.ones(8)

    def cycle():
        lz.lock("norm.rms", "torch.rms_norm")
        lz.rms_norm(x, w)
        lz.unlock("norm.rms")
        lz.rms_norm(x, w)

    for _ in range(200):
        cycle()
    gc.collect()
    before = resident()
    for _ in range(3000):
        cycle()
    gc.collect()
    assert resident() - before < 4 << 20


def test_locks_on_no_operation_are_refused():
    with pytest.raises(lz.ConfigError, match=r"norm\.rsm"):
        lz.lock("norm.rsm", "torch.rms_norm")
    with pytest.raises(lz.ConfigError, match=r"norm\.rsm"), lz.policy(locks={"norm.rsm": None}):
        pass


# ---- every operation


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_answers_questions(name):
    for _, arguments in few(name, 2):
        try:
            which = lz.which(name, **arguments)
        except lz.NoKernelFoundError:
            continue  # the report below would say why: nothing here can serve this case
        report = lz.explain(name, **arguments)
        assert report.kernel_id == report.plan.kernel_id == which["kernel_id"]
        assert report.plan.transform_cost_total == sum(t.cost for t in report.plan.transforms)
        assert lz.validate(report.kernel_id, operation=name, **arguments) == (True, [])


# ---- lists


def test_operations_say_what_they_are():
    from layerzero.contracts import contracts

    specs = {o["id"]: o for c in contracts().values() for o in c["operations"]}
    assert all(o["has_fallback"] and o["fallback_impl"] == f"ref.{i}" for i, o in specs.items())
    assert specs["sampling.topk"]["op_kind"] == "sampling"
    assert specs["norm.rms"]["op_kind"] == "tensor"


def test_every_reason_code_has_its_docs():
    import json
    from pathlib import Path

    from layerzero import _layerzero

    root = Path(__file__).resolve().parents[2]
    text = (root / "docs/reasons.md").read_text()
    sections = {s.split("\n", 1)[0]: s for s in text.split("\n## ")[1:]}
    codes = json.loads(_layerzero.reason_codes())
    assert [c["code"] for c in codes] == list(sections)
    for code in codes:
        section = sections[code["code"]]
        assert f"Cause: {code['cause']}" in section and f"Fix: {code['fix']}" in section
