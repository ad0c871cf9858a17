"""FlexAttention's row: its expression by the operator without a compiler, its lists of blocks by counting, what is compiled
and when. The full tier compiles it for the CPU; tests/gpu/test_conformance.py runs the row on a device."""

import json
import math

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.backends.torch import flex, flex_compiled  # noqa: E402
from library_rows import failures_of, rows, served  # noqa: E402

(ROW,) = (row for name, row in rows("torch", {"attention"}) if row["kernel_id"] == "torch.flex")


def plain(kind, expression, tensors, free):
    outputs = expression(*tensors)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


@pytest.mark.full
def test_the_expression_agrees_with_fp64_in_every_case(monkeypatch):
    """Without negative slopes, whose logits of hundreds leave float32, which the row does not take, five digits."""
    monkeypatch.setattr(flex, "compiled", plain)
    failures, ran = [], 0
    for line, arguments, values in served("attention", ROW):
        axis = 2 if arguments.get("layout") == "BHSD" else 1
        slopes = arguments.get("alibi_slopes")
        if min(values[0].shape[axis], values[1].shape[axis]) < 2 or (slopes is not None and bool((slopes < 0).any())):
            continue
        values[7] = None if values[7] == -1 else values[7]  # the window, as the engine passes it
        ran += 1
        failures += failures_of(ROW, "attention", line, flex.attention(*values))
    assert not failures, f"{len(failures)} of {ran}\n" + "\n".join(failures[:20])
    assert ran > 20


def wanted(q, k, v, **options):
    return lz.attention(q, k, v, layout="BSHD", scale=0.2, kernel="ref.attention.gqa.prefill", **options)


def call(q, k, v, causal=True, window=None, softcap=None, sinks=None, alibi_slopes=None, return_lse=False):
    return flex.attention(q, k, v, causal, 0.2, None, 0.0, window, softcap, sinks, alibi_slopes, return_lse, "BSHD")


def tensors(b, s_q, s_kv, h_q=4, h_kv=2, d=16):
    generator = torch.Generator().manual_seed(s_q)
    return [torch.randn(b, s, h, d, generator=generator) for s, h in ((s_q, h_q), (s_kv, h_kv), (s_kv, h_kv))]


OPTIONS = {
    "causal": dict(),
    "lse": dict(causal=False, return_lse=True),
    "all": dict(window=7, softcap=5.0, sinks=torch.randn(4), alibi_slopes=torch.rand(4), return_lse=True),
    "window": dict(causal=False, window=3),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_expression_agrees_with_the_reference(monkeypatch, options):
    monkeypatch.setattr(flex, "compiled", plain)
    q, k, v = tensors(2, 20, 31)
    want, got = wanted(q, k, v, **{"causal": True, **options}), call(q, k, v, **options)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    flat = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    given = [options.get(name) for name in ("window", "softcap", "sinks", "alibi_slopes")]
    turned = flex.attention(*flat, options.get("causal", True), 0.2, None, 0.0, *given, False, "BHSD")
    torch.testing.assert_close(turned.transpose(1, 2), got[0] if isinstance(got, tuple) else got)


@pytest.mark.parametrize("sinks", [-math.inf, math.inf])
def test_rows_without_a_key_are_zero_whatever_the_sink(monkeypatch, sinks):
    monkeypatch.setattr(flex, "compiled", plain)
    q, k, v = tensors(1, 9, 5)
    options = dict(sinks=torch.full((4,), sinks), return_lse=True)
    for got, want in zip(call(q, k, v, **options), wanted(q, k, v, **options), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 1, 2, 127, 128, 129, 300, 5000])
@pytest.mark.parametrize(
    ("s_q", "s_kv"), [(2, 2), (130, 130), (256, 256), (300, 700), (700, 300), (5, 1000), (129, 385)]
)
def test_blocks_are_those_that_see_a_key(s_q, s_kv, window):
    q, k, offset = torch.empty(1, 1, s_q, 1), torch.empty(1, 1, s_kv, 1), torch.tensor(s_kv - s_q, dtype=torch.int32)
    given = None if window is None else torch.tensor(window, dtype=torch.int32)
    part_count, part, full_count, full = (t[0, 0] for t in flex._blocks(q, k, offset, given))
    distance = torch.arange(s_q)[:, None] + s_kv - s_q - torch.arange(s_kv)
    seen = (distance >= 0) & (distance < (window or s_kv + s_q))
    for row in range(-(-s_q // flex.BLOCK)):
        queries = seen[row * flex.BLOCK : (row + 1) * flex.BLOCK]
        blocks = [queries[:, at : at + flex.BLOCK] for at in range(0, s_kv, flex.BLOCK)]
        some = {at for at, block in enumerate(blocks) if block.any()}
        found = part[row, : part_count[row]].tolist() + full[row, : full_count[row]].tolist()
        assert len(found) == len(set(found)) and some <= set(found)
        assert len(set(found) - some) <= 1  # at most one block too many, which the mask hides
        assert all(blocks[at].all() for at in full[row, : full_count[row]].tolist())
    assert int(part.min()) >= 0 and int(full.max()) <= -(-s_kv // flex.BLOCK)


def test_a_call_that_may_not_wait_is_refused_with_the_way_to_compile_it():
    with pytest.raises(lz.KernelRefusedError, match="allow_jit_compile"):
        call(*tensors(2, 20, 30, d=24))


def test_a_kind_is_compiled_once_and_serves_what_its_guards_admit(monkeypatch):
    made = []

    def compile_(expression, tensors, free):
        made.append(len(tensors))
        return expression, lambda tensors: tensors[0].shape[1] != 21

    monkeypatch.setattr(flex_compiled, "_compile", compile_)
    monkeypatch.setattr(flex_compiled, "_made", {})
    with lz.policy(allow_jit_compile=True):
        call(*tensors(2, 20, 30))
    for b, s_q, s_kv in ((2, 20, 30), (3, 99, 30), (2, 127, 1000)):  # of the same kind: none may compile now
        call(*tensors(b, s_q, s_kv))
    with pytest.raises(lz.KernelRefusedError, match="as it was compiled for"):
        call(*tensors(2, 21, 30))
    for other in (dict(window=3), dict(softcap=2.0), dict(alibi_slopes=torch.ones(4)), dict(return_lse=True)):
        with pytest.raises(lz.KernelRefusedError, match="a kind that is compiled"):
            call(*tensors(2, 20, 30), **other)
    for sizes in ((1, 20, 30), (2, 128, 30)):  # a batch of one, and as many queries as a block has
        with pytest.raises(lz.KernelRefusedError, match="a kind that is compiled"):
            call(*tensors(*sizes))
    assert made == [5]


def test_the_engine_distinguishes_the_same_kinds():
    """What is not in the row's key is an optional tensor, an option or the dtype, which every key has."""
    key = [
        part if isinstance(part, str) else f"{part['field']} {part['relation']} {part['operand']}"
        for part in ROW["jit"]["key"]
    ]
    assert {"h_q", "h_kv", "d_qk", "d_v", "causal", "softcap.given", "return_lse"} < set(key)
    assert {"b >= 2", f"s_q < {flex.SHORT}", "window >= 0"} < set(key)
    kernels = [k for k in json.loads(_layerzero.kernels("attention", False)) if k["kernel_id"] == "torch.flex"]
    assert {k["operation"] for k in kernels} == {"attention.standard.prefill", "attention.gqa.prefill"}
    assert {k["jit"] for k in kernels} == {"first_call"} and {k["priority"] for k in kernels} == {5}


COMPILED = [
    (dict(), [(2, 300, 400), (3, 130, 1000), (2, 500, 200)]),
    (dict(window=70, softcap=5.0, alibi_slopes=torch.tensor([0.5, 0.25, 0.1, 0.7])), [(2, 300, 400), (2, 700, 130)]),
    (dict(causal=False, softcap=3.0), [(2, 20, 700), (2, 5, 9)]),
]


@pytest.mark.full
@pytest.mark.parametrize(("options", "sizes"), COMPILED, ids=["causal", "window, cap, slopes", "cap"])
def test_what_inductor_compiles_for_the_cpu_agrees_at_every_length(options, sizes, monkeypatch):
    monkeypatch.setattr(flex_compiled, "_made", {})
    for size in sizes:
        q, k, v = tensors(*size)
        with lz.policy(allow_jit_compile=True):
            got = call(q, k, v, **options)
        torch.testing.assert_close(got, wanted(q, k, v, **options), rtol=1e-4, atol=1e-4)
    assert len(flex_compiled._made) == 1
    with pytest.raises(lz.KernelRefusedError, match="as it was compiled for"):
        call(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, **options)
