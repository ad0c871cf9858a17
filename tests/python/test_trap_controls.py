"""Positive controls of the binding's traps: a binding that lacks one guard fails the tests of that trap, and of no other.

A trap's tests carry `@pytest.mark.trap("its name")`. Each must have a fault here, so a trap without a control is an error.
"""

import contextlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero, backends, errors  # noqa: E402
from layerzero.host import log, memory  # noqa: E402
from layerzero.host.policy import scope_of_context  # noqa: E402
from layerzero.torch import attach, operators, random, slow_path  # noqa: E402
from layerzero.torch.slow_path import slow_call  # noqa: E402
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402

if not operators.register():
    pytest.skip("this build has no torch operators", allow_module_level=True)


def module(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


MODULES = [module(name) for name in ("test_fast_path", "test_slow_path", "test_traps", "test_torch_ops")]


# ---- faults in what the C binding knows of torch


@contextlib.contextmanager
def attached(states=None, negatives=None):
    """A binding that has learned something else of torch."""
    try:
        yield _layerzero.attach(torch, states or attach._calibrate(torch), negatives or attach._negatives(torch))
    finally:
        _layerzero.attach(torch, attach._calibrate(torch), attach._negatives(torch))


def taken_for_plain(state):
    """The thread's dispatch keys as they are in `state` count as those of eager code."""
    plain, _ = attach._calibrate(torch)
    with state:
        keys = _layerzero.dispatch_key_state()
    assert keys != plain
    return attached(states=(plain, keys))


@contextlib.contextmanager
def traced():
    seen = []
    before = _layerzero.dispatch_key_state()
    torch.jit.trace(
        lambda x: seen.append(_layerzero.dispatch_key_state()) or x + 1, (torch.ones(1),), check_trace=False
    )
    assert seen[0] != before
    with attached(states=(before, seen[0])):
        yield


@contextlib.contextmanager
def another_bit():
    """The conjugate bit in place of the negative one."""
    base = torch.zeros(4, 6, dtype=torch.complex64)
    plain = (base, base[1:], base.t(), base[0], base[:, 1:])
    with attached(negatives=(plain, tuple(t.conj() for t in (*plain[1:], plain[-1])))) as found:
        assert found
        yield


@contextlib.contextmanager
def patched(where, name, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, value)
        yield


@contextlib.contextmanager
def versions_stay():
    with patched(torch._C, "_increment_version", lambda tensors: None), attached():
        yield
    _layerzero.attach(torch, attach._calibrate(torch), attach._negatives(torch))


# ---- faults of calls that need the slow path and are computed on memory, as plain ones are


@contextlib.contextmanager
def unguarded(holds, as_plain):
    """A binding without one guard: where `holds`, `as_plain(call, arguments)` gives what memory holds."""

    def slow(name, args, kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        with torch._C.DisableTorchFunction():
            held = holds(tensors)
        if not held:
            return slow_call(name, args, kwargs)
        return as_plain(lambda given: _layerzero.ops[name](*given[0], **given[1]), (args, kwargs))

    set_slow(slow)
    try:
        yield
    finally:
        set_slow(slow_call)


def set_slow(slow):
    _layerzero.set_hooks(
        errors.raise_engine_error,
        slow,
        backends.resolve,
        scope_of_context,
        log.log_selection,
        log.log_failure,
        log.warn_guessed_layout,
        random.draw,
        backends.proof.prove,
        backends.begin,
        memory.free_bytes,
    )


def wants_gradient(tensors):
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    exact = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)
    return exact and torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def without_gradient(call, given):
    with torch.no_grad():
        return call(given)


def is_dual(tensors):
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return not transformed and forward_ad._current_level >= 0


def without_level(call, given):
    with patched(forward_ad, "_current_level", -1), torch.no_grad():
        return call(given)


def in_function_mode(tensors):
    return torch._C._len_torch_function_stack() > 0 and torch._C._len_torch_dispatch_stack() == 0


def without_function_mode(call, given):
    with torch._C.DisableTorchFunction():
        return call(given)


def is_subclass(tensors):
    kinds = {type(t) for t in tensors} - {torch.Tensor, torch.nn.Parameter}
    return bool(kinds) and not any(issubclass(kind, torch._subclasses.FakeTensor) for kind in kinds)


def of_memory(call, given):
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return call(tree_map_only(torch.Tensor, lambda t: getattr(t, "inner", t).as_subclass(torch.Tensor), given))


def is_transformed(tensors):
    return torch._C._functorch.peek_interpreter_stack() is not None


def of_the_inner(call, given):
    functorch = torch._C._functorch

    def inner(t):
        wrapped = functorch.is_batchedtensor(t) or functorch.is_gradtrackingtensor(t)
        return functorch.get_unwrapped(t) if wrapped else t

    with temporarily_pop_interpreter_stack(), patched(forward_ad, "_current_level", -1), torch.no_grad():
        return call(tree_map_only(torch.Tensor, inner, given))


def is_zero(tensors):
    return any(torch._is_zerotensor(t) for t in tensors)


def of_anything(call, given):
    return call(tree_map_only(torch.Tensor, lambda t: torch.ones(t.shape) if torch._is_zerotensor(t) else t, given))


def prepared():
    x = torch.randn(3, 8)
    return patched(lz, "swiglu", lz.prepare("swiglu", x, x))  # what the compiler has no function for


def refused_kinds():
    rows = next(
        m for m in MODULES[1].test_kinds_without_readable_values_are_refused.pytestmark if m.name == "parametrize"
    )
    return [tuple(row) for row in rows.args[1][:2]]


# A trap's name: (its fault, the tests with their arguments).
CONTROLS = {
    "gradient": (lambda: unguarded(wants_gradient, without_gradient), {"test_gradient": [("rms_norm",)]}),
    "forward mode": (lambda: unguarded(is_dual, without_level), {"test_forward_mode": [()]}),
    "tangents of operators": (
        lambda: patched(operators, "has_tangent", lambda torch, tensors: False),
        {"test_operators_keep_tangents": [()]},
    ),
    "function modes": (
        lambda: unguarded(in_function_mode, without_function_mode),
        {"test_function_modes_see_the_operation": [()], "test_a_function_mode_may_answer_itself": [()]},
    ),
    "subclasses": (
        lambda: unguarded(is_subclass, of_memory),
        {
            "test_subclasses_keep_their_class": [()],
            "test_a_subclass_with_a_torch_function_sees_the_operation": [()],
            "test_a_wrapper_subclass_computes_by_its_own_rules": [(False,), (True,)],
            "test_the_gradient_of_a_wrapper_subclass": [()],
        },
    ),
    "dispatch modes": (lambda: taken_for_plain(TorchDispatchMode()), {"test_dispatch_modes_see_the_call": [()]}),
    "autocast": (
        lambda: taken_for_plain(torch.autocast("cpu", dtype=torch.bfloat16)),
        {"test_autocast_casts_as_torch_does": [()], "test_autocast_takes_mixed_floats_as_torch_does": [()]},
    ),
    "traces": (traced, {"test_jit_trace_records_the_operation_or_its_formula": [()]}),
    "transforms": (
        lambda: unguarded(is_transformed, of_the_inner),
        {"test_function_transforms": [("vmap",), ("grad",), ("jvp",)]},
    ),
    "negative views": (
        another_bit,
        {"test_negated_views_keep_their_sign": [()], "test_negative_and_conjugate_views_have_their_values": [()]},
    ),
    "zero tensors": (lambda: unguarded(is_zero, of_anything), {"test_zero_tensors_have_their_values": [()]}),
    "kinds of tensors": (
        lambda: patched(slow_path, "_check_readable", lambda *call: None),
        {"test_kinds_without_readable_values_are_refused": refused_kinds()},
    ),
    "versions": (versions_stay, {"test_out_advances_the_version_counter": [(None,)]}),
    "graphs": (prepared, {"test_compiles_into_one_graph": [("swiglu",)]}),
}


def marked():
    """(trap, test) of every test with the mark."""
    tests = [(name, test) for m in MODULES for name, test in vars(m).items() if name.startswith("test_")]
    return {(m.args[0], name) for name, test in tests for m in getattr(test, "pytestmark", ()) if m.name == "trap"}


def test_every_trap_has_a_control():
    assert marked() == {(trap, test) for trap, (_, tests) in CONTROLS.items() for test in tests}


def function(name):
    return next(getattr(m, name) for m in MODULES if hasattr(m, name))


def fails(test, arguments):
    torch.manual_seed(0)
    torch._dynamo.reset()
    try:
        function(test)(*arguments)
    except (Exception, pytest.fail.Exception):
        return True
    return False


def failing():
    runs = [(trap, test, a) for trap, (_, tests) in CONTROLS.items() for test, calls in tests.items() for a in calls]
    return [(trap, test, repr(a)) for trap, test, a in runs if fails(test, a)]


@pytest.mark.filterwarnings("ignore")
def test_without_a_fault_nothing_fails():
    assert failing() == []


@pytest.mark.parametrize("trap", CONTROLS)
@pytest.mark.filterwarnings("ignore")
def test_a_fault_fails_the_tests_of_its_trap_alone(trap):
    fault, tests = CONTROLS[trap]
    with fault():
        found = failing()
    assert found == [(trap, test, repr(a)) for test, calls in tests.items() for a in calls]
    assert failing() == []  # the fault is gone


def test_a_wrong_calibration_fails_the_test_of_torches_that_are_asked():
    source = function("test_a_torch_whose_dispatch_keys_cannot_be_read_is_asked").__globals__["UNCALIBRATED"]
    wrong = """
from torch.utils._python_dispatch import TorchDispatchMode as Mode
plain = layerzero._layerzero.dispatch_key_state()
with Mode():
    mode = layerzero._layerzero.dispatch_key_state()
layerzero.torch.attach._calibrate = lambda torch: (plain, mode)
layerzero.torch.attach._attached = None
layerzero.torch.attach.attach(torch)
"""
    at = source.index("import torch\n") + len("import torch\n")
    done = subprocess.run(
        [sys.executable, "-c", source[:at] + wrong + source[at:]], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0 and "AssertionError" in done.stderr, done.stderr
