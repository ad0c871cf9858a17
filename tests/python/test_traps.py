"""What torch puts between a call and its memory, for every operation: autocast, jit.trace, subclasses without memory of
their own, FakeTensorMode. The values are right, or the call is refused in words."""

import functools
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.torch import operators  # noqa: E402
from operation_cases import NAMES, as_tuple, copied, few, same, tensors_of  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402

every_operation = pytest.mark.parametrize("name", NAMES)
# Overloads of torch.ops that differ from the default one by a flag alone.
FLAGGED = [o for o in operators.operators() if True in o.fixed.values()] if operators.register() else []


def served(name, count):
    """(tensors by name, function of them, its results) of cases that some kernel serves; nothing that is written."""
    if any(p.get("mutated") for p in contracts()[name]["params"]):
        return
    for _, arguments in few(name, largest=5000):
        if count == 0:
            return
        tensors = tensors_of(arguments)
        rest = {k: v for k, v in arguments.items() if k not in tensors}
        function = functools.partial(getattr(lz, name), **rest)
        try:
            with torch.no_grad():
                want = as_tuple(function(**copied(tensors)))
        except lz.LayerZeroError:
            continue
        count -= 1
        yield tensors, function, want


class Wrapped(torch.Tensor):
    """No memory of its own, every aten call comes to __torch_dispatch__: as DTensor is one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, inner.stride(), dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner_args, inner_kwargs = tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapped, function(*inner_args, **inner_kwargs))


def close(got, want):
    """As two ways to compute the same may differ: by the dtype's rounding of the largest number."""
    for a, b in zip(as_tuple(got), want, strict=True):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if not b.is_floating_point() or b.dtype.itemsize == 1:
            assert (
                (a.reshape(-1).view(torch.uint8) != b.reshape(-1).view(torch.uint8)).float().mean() < 0.02
                if b.numel()
                else True
            )
            continue
        most = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-2}[b.dtype]
        scale = b[b.isfinite()].abs().max().item() if b.isfinite().any() else 1.0
        torch.testing.assert_close(a, b, rtol=most, atol=most * max(scale, 1e-30), equal_nan=True)


@every_operation
def test_a_wrapper_subclass_is_computed_by_its_own_rules_or_refused(name):
    for tensors, function, want in served(name, 2):
        with torch.no_grad():
            try:
                got = as_tuple(function(**{k: Wrapped(v) for k, v in tensors.items()}))
            except (lz.LayerZeroError, RuntimeError, NotImplementedError) as refusal:
                assert str(refusal)
                continue
        assert all(type(t) is Wrapped for t in got if t is not None)
        close(tuple(None if t is None else t.inner for t in got), want)


@every_operation
@pytest.mark.filterwarnings("ignore")  # the tracer's, of numbers that it keeps
def test_a_trace_computes_the_same_or_is_refused(name):
    for tensors, function, want in served(name, 2):
        with torch.no_grad():
            names = list(tensors)
            try:
                traced = torch.jit.trace(lambda *v: function(**dict(zip(names, v))), tuple(tensors.values()))  # noqa: B023, B905
            except (lz.LayerZeroError, RuntimeError) as refusal:
                assert str(refusal)
                continue
            close(traced(*tensors.values()), want)


@pytest.mark.parametrize("one", FLAGGED, ids=lambda one: one.qualified)
@pytest.mark.filterwarnings("ignore")  # the tracer's, of numbers that it keeps
def test_an_overload_in_a_trace_is_itself(one):
    """TorchScript finds it by its arguments, called as an operator or through the function."""
    flag = next(iter(one.fixed))
    arguments = next(a for _, a in few(one.name, largest=5000) if a.get(flag))
    tensors = tensors_of(arguments)
    rest = {k: v for k, v in arguments.items() if k not in tensors and k != flag}
    for function in (one.function, functools.partial(getattr(lz, one.name), **one.fixed)):
        with torch.no_grad():
            want = function(**tensors, **rest)
            traced = torch.jit.trace(lambda *v: function(**dict(zip(tensors, v)), **rest), tuple(tensors.values()))  # noqa: B023, B905
            assert f"layerzero::{one.name}" in str(traced.graph)
            same(traced(*tensors.values()), want)
    with pytest.raises(lz.InvalidRequestError, match=f"{one.name}: {flag}: wanted True for the overload"):
        one.function(**tensors, **rest, **{flag: False})


@pytest.mark.trap("tangents of operators")
def test_operators_keep_tangents():
    """torch.ops alone would drop them without a word."""
    forward, x, w = torch.autograd.forward_ad, torch.randn(3, 8), torch.randn(8)
    with forward.dual_level():
        dual = forward.make_dual(x, torch.ones_like(x))
        got = forward.unpack_dual(torch.ops.layerzero.rms_norm(dual, w)).tangent
        want = forward.unpack_dual(torch.nn.functional.rms_norm(dual, (8,), w, 1e-6)).tangent
    torch.testing.assert_close(got, want)


@every_operation
def test_autocast_computes_the_formula_or_is_refused(name):
    """Its matrix products in bfloat16: results are as near as that dtype."""
    for tensors, function, want in served(name, 3):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            try:
                got = as_tuple(function(**tensors))
            except lz.LayerZeroError as refusal:
                assert refusal.wanted and refusal.got
                continue
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            if b.is_floating_point() and b.dtype.itemsize > 1 and b.numel() and b.isfinite().all():
                torch.testing.assert_close(a.double(), b.double(), rtol=0.1, atol=0.1 * b.abs().max().item())


@every_operation
def test_autocast_off_inside_is_the_plain_call(name):
    for tensors, function, want in served(name, 1):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
            same(function(**tensors), want if len(want) > 1 else want[0])


UNCALIBRATED = """
import layerzero.torch.attach
layerzero.torch.attach._calibrate = lambda torch: None  # a torch whose dispatch keys cannot be read
layerzero.torch.attach._negatives = lambda torch: ((), ())  # nor its tensors' bits
import torch
import layerzero as lz
from torch.utils._python_dispatch import TorchDispatchMode

class Seen(TorchDispatchMode):
    functions = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.functions.append(function)
        return function(*args, **(kwargs or {}))

x, w = torch.randn(3, 2, 8), torch.randn(8)
want = torch.nn.functional.rms_norm(x, (8,), w, 1e-6)
close = torch.testing.assert_close
close(lz.rms_norm(x, w), want)
close(torch.func.vmap(lambda x: lz.rms_norm(x, w))(x), want)
close(torch.func.functionalize(lambda x: lz.rms_norm(x, w))(x), want)
close(*(torch.func.jvp(f, (x,), (x,))[1] for f in (
    lambda x: lz.rms_norm(x, w), lambda x: torch.nn.functional.rms_norm(x, (8,), w, 1e-6))))
with torch.inference_mode():
    close(lz.rms_norm(x, w), want)
with Seen():
    got = lz.rms_norm(x, w)
assert Seen.functions
close(got, want)
close(lz.rms_norm(torch._neg_view(x), w), -want)
leaf = x.clone().requires_grad_()
lz.rms_norm(leaf, w).sum().backward()
assert leaf.grad is not None
"""


def test_a_torch_whose_dispatch_keys_cannot_be_read_is_asked():
    subprocess.run([sys.executable, "-c", UNCALIBRATED], check=True, timeout=120)
