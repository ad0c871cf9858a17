"""FlashInfer's compiled functions called directly: with their arguments in the right order, and only where these are known.

The modules are stand-ins whose functions are tvm-ffi's own, with the recorded order of arguments, in FP64. What the installed
library does is tested in tests/gpu/test_flashinfer_compiled.py.
"""

import functools
import importlib
import json
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")

import layerzero as lz  # noqa: E402
from library_rows import installed  # noqa: E402

RECORDED = json.loads((Path(__file__).parent / "support/library_signatures.json").read_text())["flashinfer_modules"]
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
}


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rmsnorm(a):
    a["out"].copy_(rms(a["input"].double(), a["weight"].double(), a["eps"]))


def fused_add_rmsnorm(a):
    a["residual"].add_(a["input"])
    a["input"].copy_(rms(a["residual"].double(), a["weight"].double(), a["eps"]))


def layernorm(a):
    x = a["input"].double()
    a["out"].copy_(torch.nn.functional.layer_norm(x, x.shape[-1:], a["gamma"].double(), a["beta"].double(), a["eps"]))


def merge(v, s, a):
    """v: (n, parts, h, d), s: (n, parts, h) to the base 2."""
    a["v_merged"].copy_((torch.softmax(s.double() * 0.6931471805599453, 1)[..., None] * v.double()).sum(1))
    a["s_merged"].copy_(torch.logsumexp(s.double() * 0.6931471805599453, 1) / 0.6931471805599453)


def merge_state(a):
    merge(torch.stack((a["v_a"], a["v_b"]), 1), torch.stack((a["s_a"], a["s_b"]), 1), a)


def merge_states(a):
    merge(a["v"], a["s"], a)


def gated(activation, a):
    gate, up = a["input"].double().chunk(2, -1)
    a["out"].copy_(ACTIVATIONS[activation](gate) * up)


WORK = {
    **{f.__name__: f for f in (rmsnorm, fused_add_rmsnorm, layernorm, merge_state, merge_states)},
    **{f"{name}_and_mul": functools.partial(gated, name) for name in ACTIVATIONS},
}


def library(calls, **facts):
    """A stand-in for flashinfer whose calls are noted as (way, function, early start)."""

    def exported(name):
        def run(*given):
            assert len(given) == len(RECORDED[name])
            a = {
                k: torch.from_dlpack(v) if hasattr(v, "shape") else v
                for k, v in zip(RECORDED[name], given, strict=True)
            }
            calls.append(("module", name, a.get("enable_pdl")))
            WORK[name](a)

        return tvm_ffi.convert(run)

    def module(*names):
        calls.append(("loaded", *names))
        return types.SimpleNamespace(**{name: exported(name) for name in names})

    def public(name, result=None):
        def run(*given, **named):
            calls.append(("public", name))
            return result(*given) if result else named.get("out")

        return run

    root = types.ModuleType("flashinfer")
    root.__version__ = facts.get("version", "0.7.2")
    norm, activation, cascade, utils, mla = (
        types.ModuleType(f"flashinfer.{n}") for n in ("norm", "activation", "cascade", "utils", "mla")
    )
    for part in (norm, activation, cascade, utils, mla):
        setattr(root, part.__name__.partition(".")[2], part)
    in_cpp = facts.get("in_cpp", True)
    if root.__version__.startswith("0.6"):
        norm._USE_CUDA_NORM = in_cpp
    else:
        norm._use_cuda_norm = lambda device: in_cpp
    norm.get_norm_module = lambda: module("rmsnorm", "fused_add_rmsnorm", "layernorm")
    cascade.get_cascade_module = lambda: module("merge_state", "merge_states")
    activation.gen_act_and_mul_module = lambda name: types.SimpleNamespace(
        build_and_load=lambda: module(f"{name}_and_mul")
    )
    utils.device_support_pdl = lambda device: facts.get("early", False)
    norm.rmsnorm, norm.fused_add_rmsnorm = public("rmsnorm"), public("fused_add_rmsnorm")
    norm.layernorm = public("layernorm", lambda x, *_: torch.zeros_like(x))
    root.merge_state = public("merge_state", lambda v, s, *_: (v, s))
    root.merge_states = public("merge_states", lambda v, s: (v[:, 0], s[:, 0]))
    for name in ACTIVATIONS:
        setattr(activation, f"{name}_and_mul", public(f"{name}_and_mul"))
    return {m.__name__: m for m in (root, norm, activation, cascade, utils, mla)}


@pytest.fixture
def use():
    """Has the adapters imported over a stand-in; returns them with the list of its calls."""
    opened = []

    def make(**facts):
        calls = []
        opened.append(installed(library(calls, **facts), ("flashinfer",)))
        opened[-1].__enter__()
        rows, cascade = (importlib.import_module(f"layerzero.backends.flashinfer.{n}") for n in ("rows", "cascade"))
        return rows, cascade, calls

    yield make
    for one in opened:
        one.__exit__(None, None, None)


def called(rows, cascade):
    """{function: (found, wanted)} of a call of each adapter."""
    x, y, weight, bias = torch.randn(2, 3, 16), torch.randn(2, 3, 16), torch.randn(16), torch.randn(16)
    v_a, v_b, s_a, s_b = torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.randn(3, 2), torch.randn(3, 2)
    parts, sums = torch.randn(4, 3, 2, 8), torch.randn(4, 3, 2)
    ends = (None, None, "float32")
    results = {
        "rmsnorm": (rows.rms_norm(x, weight, 0.1), lz.rms_norm(x, weight, 0.1)),
        "fused_add_rmsnorm": (
            rows.fused_add_rms_norm(x, y, weight, 0.1),
            lz.fused_add_rms_norm(x, y, weight, 0.1),
        ),
        "layernorm": (rows.layer_norm(x, 16, weight, bias, 0.1), lz.layer_norm(x, 16, weight, bias, 0.1)),
        "silu_and_mul": (rows.silu_and_mul(x), lz.silu_and_mul(x)),
        "merge_state": (cascade.merge_attention(v_a, s_a, v_b, s_b, None), lz.merge_attention(v_a, s_a, v_b, s_b)),
        "merge_states": (cascade.merge_partials(parts, sums, *ends)[0], lz.merge_partials(parts, sums)),
    }
    for name in ("gelu", "gelu_tanh"):
        results[f"{name}_and_mul"] = (rows.gated_activation(x, name), lz.gated_activation(x, activation=name))
    return results


@pytest.mark.parametrize("version", ["0.6.13", "0.7.2", "0.7.2.post1"])
@pytest.mark.parametrize("early", [False, True])
def test_every_function_gets_its_arguments_in_its_order(use, version, early):
    rows, cascade, calls = use(version=version, early=early)
    for _ in range(2):
        for name, (found, wanted) in called(rows, cascade).items():
            wanted = wanted[0] if name == "merge_states" and isinstance(wanted, tuple) else wanted
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, msg=name)
    assert not [call for call in calls if call[0] == "public"]
    assert {call[1] for call in calls if call[0] == "module"} == set(RECORDED)
    given = {call[2] for call in calls if call[0] == "module"}
    assert given == {None, early}, "an early start is passed where the device has it"
    assert all(calls.count(call) == 1 for call in calls if call[0] == "loaded" and len(call) == 2)


@pytest.mark.parametrize("version", ["0.7.3", "0.6.14", "0.8.0", "0.7.2.dev1", ""])
def test_another_release_is_called_by_its_public_functions(use, version):
    rows, cascade, calls = use(version=version)
    called(rows, cascade)
    assert {call[0] for call in calls} == {"public"}
    assert {call[1] for call in calls} == set(RECORDED)


@pytest.mark.parametrize("variable", ["FLASHINFER_LOGLEVEL", "FLASHINFER_TRACE_DUMP"])
def test_a_user_who_watches_calls_sees_them(use, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    rows, cascade, calls = use()
    called(rows, cascade)
    assert {call[0] for call in calls} == {"public"}


@pytest.mark.parametrize("version", ["0.6.13", "0.7.2"])
def test_norms_that_flashinfer_computes_in_the_cute_dsl_stay_there(use, version):
    rows, cascade, calls = use(version=version, in_cpp=False)
    called(rows, cascade)
    norms = {"rmsnorm", "fused_add_rmsnorm", "layernorm"}
    assert {call[1] for call in calls if call[0] == "public"} == norms
    assert {call[1] for call in calls if call[0] == "module"} == set(RECORDED) - norms
