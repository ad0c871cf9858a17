"""cache.enabled: false: every call selects anew, by every way in; counted where kernels are chosen."""

import json

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
from layerzero.program import ProgramBuilder, Rows  # noqa: E402

X, W = torch.randn(3, 64), torch.ones(64)
CALLS = 5


def program():
    make = ProgramBuilder()
    x, between, y = make.input(), make.rows(64, "float32"), make.output(64, "float32")
    make.add("rms_norm", [Rows(between, (64,))], input=x, weight=make.weight(W), eps=1e-6)
    make.add("rms_norm", [Rows(y, (64,))], input=Rows(between, (64,)), weight=make.weight(W), eps=1e-6)
    return make.build()


def ways():
    prepared, built = lz.prepare("rms_norm", X, W), program()
    x, y = X[None], torch.empty(1, 3, 64)
    return {  # each with how many selections one call makes
        "function": (lambda: lz.rms_norm(X, W), 1),
        "torch_ops": (lambda: torch.ops.layerzero.rms_norm(X, W), 1),
        "prepared": (lambda: prepared(X, W), 1),
        "kernel=": (lambda: lz.rms_norm(X, W, kernel="hwy.norm.rms"), 1),
        "program": (lambda: built.run((x,), (y,)), 2),
    }


def selections():
    return json.loads(lz._layerzero.stats())["selections"]


def made(call):
    before = selections()
    for _ in range(CALLS):
        call()
    return selections() - before


@pytest.fixture
def configured():
    yield lambda **keys: lz.configure(**keys)
    lz.configure(cache={"enabled": True})


@pytest.mark.parametrize("way", list(ways()))
def test_every_call_selects_where_the_cache_is_off(way, configured):
    call, each = ways()[way]
    call()
    assert made(call) == 0  # the control: choices are kept
    configured(cache={"enabled": False})
    assert made(call) == CALLS * each
    configured(cache={"enabled": True})
    call()
    assert made(call) == 0


@pytest.mark.parametrize("way", ["function", "torch_ops", "program"])
def test_a_scope_may_have_it_off(way):
    call, each = ways()[way]
    call()
    with lz.policy(cache={"enabled": False}):  # proves: cache.enabled
        assert made(call) == CALLS * each
    assert made(call) <= each  # a place keeps one choice, of the scope that called last
    assert made(call) == 0
