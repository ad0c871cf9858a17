"""A layout that a call does not give: which reading is taken, and that every guess is said, once to each place and shape."""

import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402


def tensors(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def sdpa(q, k, v, causal=True):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


@pytest.fixture
def said():
    """The layout warnings so far, each with file and line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: [w for w in caught if issubclass(w.category, lz.LayerZeroLayoutWarning)]


def source(*given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lz.LayerZeroLayoutWarning)
        layout = lz.explain("attention", *given, **options).layout
    return layout.name, layout.source


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        # As BSHD causal would have more queries than keys: 8 query heads over 2.
        (((2, 8, 64, 32), (2, 2, 64, 32)), ("BHSD", "plausibility")),
        (((2, 64, 8, 32), (2, 64, 2, 32)), ("BSHD", "plausibility")),
        (((2, 32, 48, 16), (2, 4, 48, 16)), ("BHSD", "plausibility")),
        (((1, 300, 20, 16), (1, 300, 20, 16)), ("BSHD", "plausibility")),  # nobody has 300 heads
        (((1, 20, 300, 16), (1, 20, 300, 16)), ("BHSD", "plausibility")),
        (((1, 5, 6, 8), (1, 5, 4, 8)), ("BHSD", "schema")),  # 6 heads over 4 do not divide
        (((1, 5, 8, 16), (1, 5, 8, 16)), ("BSHD", "head_counts")),
        (((1, 28, 8, 16), (1, 28, 8, 16)), ("BSHD", "head_counts")),
        (((1, 8, 28, 16), (1, 8, 28, 16)), ("BHSD", "head_counts")),
        (((1, 7, 9, 16), (1, 7, 9, 16)), ("BSHD", "assumed")),
        (((1, 16, 16, 16), (1, 16, 16, 16)), ("BSHD", "assumed")),
    ],
)
def test_which_reading_is_taken(shapes, found, said):
    q, k, v = tensors(shapes[0], shapes[1], shapes[1])
    assert source(q, k, v) == found
    got = lz.attention(q, k, v)
    guessed = found[1] in ("head_counts", "assumed")
    assert len(said()) == guessed
    want = lz.attention(q, k, v, layout=found[0])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    with lz.policy(strict_mode=True):
        if guessed:
            with pytest.raises(lz.InvalidRequestError, match="layout: wanted BSHD or BHSD, in strict mode"):
                lz.attention(q, k, v)
        else:
            torch.testing.assert_close(lz.attention(q, k, v), got)


def test_more_queries_than_keys_are_plausible_where_nothing_is_hidden(said):
    q, k, v = tensors((2, 8, 64, 32), (2, 2, 64, 32), (2, 2, 64, 32))
    assert source(q, k, v, causal=False)[1] in ("head_counts", "assumed")
    lz.attention(q, k, v, causal=False)
    assert len(said()) == 1
    mask = torch.ones(64, 64, dtype=torch.bool)
    assert source(q, k, v, attn_mask=mask) == ("BHSD", "mask")


# ---- strides


def test_strides_never_override_the_argument(said):
    q, k, v = (t.transpose(1, 2) for t in tensors(*[(1, 12, 128, 16)] * 3))
    want = sdpa(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)
    torch.testing.assert_close(lz.attention(q, k, v, layout="BSHD"), want, rtol=1e-4, atol=1e-5)
    assert source(q, k, v, layout="BSHD") == ("BSHD", "argument")
    assert not said()


def test_strides_alone_do_not_decide_without_a_word(said):
    """A view of (1, 12, 128, 16) as (1, 128, 12, 16): a turned BHSD tensor means 12 heads, a projection's 128."""
    q, k, v = (t.transpose(1, 2) for t in tensors(*[(1, 12, 128, 16)] * 3))
    lz.attention(q, k, v)
    assert len(said()) == 1
    with lz.policy(strict_mode=True), pytest.raises(lz.InvalidRequestError, match="layout"):
        lz.attention(q, k, v)


@pytest.mark.parametrize("shape", [(1, 5, 8, 16), (1, 40, 12, 16), (1, 77, 32, 16), (1, 100, 7, 16)])
def test_strides_that_sizes_agree_with_decide(shape, said):
    """What a model does: projections as (batch, positions, heads, dim), turned for torch's attention."""
    q, k, v = (t.transpose(1, 2) for t in tensors(*[shape] * 3))
    assert source(q, k, v) == ("BHSD", "strides")
    torch.testing.assert_close(lz.attention(q, k, v), sdpa(q, k, v), rtol=1e-4, atol=1e-5)
    assert not said()


# ---- who hears of it


def test_each_place_and_each_shape_hears_of_it_once(said):
    small, large = tensors(*[(1, 7, 9, 16)] * 3), tensors(*[(1, 7, 11, 16)] * 3)
    for _ in range(3):
        lz.attention(*small)
        lz.attention(*small)
    places = {w.lineno for w in said()}
    assert len(said()) == len(places) == 2 and all(w.filename == __file__ for w in said())
    assert "query [1, 7, 9, 16]" in str(said()[0].message) and "may be BHSD too" in str(said()[0].message)
    for _ in range(3):
        lz.attention(*large)
        lz.attention(*small)
    assert len(said()) == 4


def test_every_way_in_says_where_the_program_calls(said):
    def line():
        return sys._getframe(1).f_lineno

    q, k, v = tensors(*[(1, 7, 13, 16)] * 3)
    lines = []
    lines.append(line()), lz.attention(q.clone().requires_grad_(), k, v)
    lines.append(line()), torch.func.vmap(lz.attention)(q[None], k[None], v[None])
    lines.append(line()), lz.prepare("attention", q, k, v)
    lines.append(line()), lz.run("attention", q, k, v)
    lines.append(line()), torch.ops.layerzero.attention(q, k, v, layout="")
    assert [w.lineno for w in said()] == lines
    assert {w.filename for w in said()} == {__file__}


def test_the_interval_is_of_one_place_and_shape(said):
    q, k, v = tensors(*[(1, 7, 15, 16)] * 3)
    lz.configure(layout={"warn_interval_s": 0})  # proves: layout.warn_interval_s
    try:
        for _ in range(3):
            lz.attention(q, k, v)
        assert len(said()) == 3
    finally:
        lz.configure(layout={"warn_interval_s": 60})


def test_a_warning_that_is_an_error_stays_one():
    q, k, v = tensors(*[(1, 7, 17, 16)] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lz.LayerZeroLayoutWarning)
        for _ in range(2):
            with pytest.raises(lz.LayerZeroLayoutWarning):
                lz.attention(q, k, v)


def test_by_default_the_second_call_site_of_a_process_hears_of_it():
    """As a user has it: no filter, a fresh process, an earlier warning about something else."""
    program = """
import torch, layerzero as lz
q = torch.randn(1, 7, 9, 16)
lz.attention(q, q, q)
q = torch.randn(1, 11, 9, 16)
lz.attention(q, q, q)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stderr.count("LayerZeroLayoutWarning") == 2, run.stderr
