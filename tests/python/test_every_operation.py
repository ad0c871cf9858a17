"""What the API promises for every operation, on the operations' own cases: run, prepare, which, explain, validate, lists,
names, locks, NumPy. Nothing here names an operation, so later ones are covered."""

import functools
import re
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.contracts import contracts, flat_name  # noqa: E402
from operation_cases import NAMES, as_tuple, cases, copied, few, same, tensors_of  # noqa: E402

every_operation = pytest.mark.parametrize("name", NAMES)


def writes(name):
    return [p["name"] for p in contracts()[name]["params"] if p.get("mutated")]


def outcome(name, call, arguments):
    """Results, then what the operation wrote; or the kind of error, for data that every kernel must refuse."""
    arguments = copied(arguments)
    try:
        result = call(**arguments)
    except lz.KernelExecutionError:
        return lz.KernelExecutionError
    return tuple(t for t in as_tuple(result) if t is not None) + tuple(arguments[w] for w in writes(name))


def agree(got, want):
    if lz.KernelExecutionError in (got, want):
        assert got is want
    else:
        same(got, want)


@every_operation
def test_every_name_runs_it(name):
    contract = contracts()[name]
    for _, arguments in few(name, 4):
        want = outcome(name, getattr(lz, name), arguments)
        for each in (name, getattr(lz, name), *(o["id"] for o in contract["operations"])):
            agree(outcome(name, lambda each=each, **a: lz.run(each, **a), arguments), want)


@every_operation
def test_prepared_calls_give_the_same(name):
    names = [p["name"] for p in contracts()[name]["params"] if p["kind"] == "tensor"]
    for line, arguments in few(name, 4):
        prepared = lz.prepare(name, **arguments)
        given = [arguments.get(n) for n in names]
        while given[-1] is None:
            given.pop()

        def call(**arguments):
            return prepared(*(arguments.get(n) for n in names[: len(given)]))  # noqa: B023

        agree(outcome(name, call, arguments), outcome(name, getattr(lz, name), arguments))
        with pytest.raises(TypeError, match="by position"):
            prepared(*given[1:], **{names[0]: given[0]})
        with pytest.raises(TypeError, match="at most its|takes its|positional"):
            prepared(*given, *[None] * 20)
        assert line


@every_operation
def test_questions_agree_with_each_other(name):
    ids = {o["id"] for o in contracts()[name]["operations"]}
    for _, arguments in few(name, 6):
        report = lz.explain(name, **arguments)
        assert report.operation in ids and report.name == name
        assert lz.which(name, **arguments)["kernel_id"] == report.kernel_id == report.plan.kernel_id
        admissible = {c.kernel_id for c in report.candidates if c.admissible}
        assert {f"ref.{report.operation}", f"torch.ref.{report.operation}"} <= admissible
        for candidate in report.candidates:
            ok, reasons = lz.validate(candidate.kernel_id, operation=report.operation, **arguments)
            assert ok == candidate.admissible and bool(reasons) != ok
            assert all(r.code and r.field and r.message for r in reasons)


@every_operation
def test_questions_say_what_calls_say(name):
    for line, arguments in cases(name, refused=True):
        errors = []
        for call in (getattr(lz, name), *(lambda f=f, **a: f(name, **a) for f in (lz.which, lz.explain, lz.prepare))):
            with pytest.raises(lz.InvalidRequestError) as caught:
                call(**arguments)
            errors.append(str(caught.value))
        assert len(set(errors)) == 1, line
        assert caught.value.field.startswith(f"{name}: ") and caught.value.wanted and caught.value.got, line


@every_operation
def test_lists_hold_each_variant(name):
    ids = {o["id"] for o in contracts()[name]["operations"]}
    kernels = lz.list_kernels(name)
    assert {i for k in kernels for i in k.operations} == ids and {k.name for k in kernels} == {name}
    assert all(lz.list_kernels(i) == kernels for i in ids)
    assert len({k.kernel_id for k in kernels}) == len(kernels)
    for operation in ids:
        own = {k.kernel_id for k in kernels if operation in k.operations}
        assert {f"ref.{operation}", f"torch.ref.{operation}"} <= own


@every_operation
def test_locks_hold_by_every_name(name):
    contract = contracts()[name]
    for _, arguments in few(name, 1):
        operation = lz.explain(name, **arguments).operation
        want = outcome(name, functools.partial(getattr(lz, name), kernel=f"ref.{operation}"), arguments)
        every_name = [name, *contract["aliases"]] if len(contract["operations"]) == 1 else []
        for each in (operation, *every_name):
            with lz.policy(locks={each: f"ref.{operation}"}):
                assert lz.explain(name, **arguments).locked == f"ref.{operation}"
                assert lz.which(name, **arguments)["kernel_id"] == f"ref.{operation}"
                agree(outcome(name, getattr(lz, name), arguments), want)


@every_operation
def test_unknown_arguments_are_named(name):
    _, arguments = few(name, 1)[0]
    with pytest.raises(TypeError, match="no_such_argument"):
        getattr(lz, name)(**arguments, no_such_argument=1)
    first = next(iter(tensors_of(arguments)))
    for wrong in ("text", [1.0], object()):
        with pytest.raises(lz.WrongTypeError, match=f"{name}: {first}: wanted .*, got {type(wrong).__name__}"):
            getattr(lz, name)(**arguments | {first: wrong})


@every_operation
def test_wrong_ranks_dtypes_and_devices_are_refused(name):
    params = {p["name"]: p for p in contracts()[name]["params"]}
    line, arguments = few(name, 1)[0]
    for n, tensor in tensors_of(arguments).items():
        wrong = [tensor.to(torch.complex64), tensor.to("meta"), torch.zeros([1] * 9, dtype=tensor.dtype)]
        wrong.append(wrong[0].conj())
        if params[n]["shape"].startswith("..., "):
            wrong.append(torch.zeros((), dtype=tensor.dtype))
        elif params[n]["shape"] not in ("*", "..."):
            wrong.append(torch.zeros([1] * 7, dtype=tensor.dtype))
        for each in wrong:
            with pytest.raises(lz.InvalidRequestError) as caught:
                getattr(lz, name)(**arguments | {n: each})
            assert caught.value.wanted and caught.value.got, (line, n, each.shape, each.dtype, each.device)


def named_axes(param):
    """The axes of a parameter's shape that have a name, with their places from behind."""
    shape = re.split(r",(?![^\[{(]*[\]})])", param["shape"])
    return {axis.strip(): i - len(shape) for i, axis in enumerate(shape) if axis.strip().isidentifier()}


@every_operation
def test_axes_that_disagree_are_refused(name):
    """An axis that two tensors share is one larger in one of them; an axis of its own may have any size."""
    params = [p for p in contracts()[name]["params"] if p["kind"] == "tensor" and not p["broadcast"]]
    for line, arguments in few(name, 3):
        if arguments.get("layout") not in (None, next(iter(contracts()[name]["layouts"]), None)):
            continue
        given = [p for p in params if p["name"] in arguments]
        for param in given:
            for axis, at in named_axes(param).items():
                tensor = arguments[param["name"]]
                shape = list(tensor.shape)
                shape[at] += 1
                call = copied(arguments) | {param["name"]: torch.zeros(shape, dtype=tensor.dtype)}
                shared = any(axis in named_axes(other) for other in given if other is not param)
                try:
                    getattr(lz, name)(**call)
                except lz.InvalidRequestError as refusal:
                    assert refusal.field and refusal.wanted and refusal.got, (line, axis)
                except (lz.KernelExecutionError, lz.NoKernelFoundError):
                    assert not shared, (line, axis)  # offsets that no longer fit, a size that no kernel takes
                else:
                    assert not shared, (line, axis)


def imaginary(tensor):
    return torch.complex(torch.zeros_like(tensor), tensor.neg()).conj().imag


def negated(tensor):
    return torch._neg_view(tensor.neg())


# Views that are equal to a tensor, and whose memory holds the negated numbers.
NEGATIVE = {
    imaginary: (torch.float32, torch.float64),
    negated: (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64),
}


@every_operation
@pytest.mark.parametrize("negative", NEGATIVE)
def test_negative_views_have_their_values(name, negative):
    for _, arguments in few(name, 4):
        views = {
            k: negative(v)
            for k, v in tensors_of(arguments).items()
            if v.dtype in NEGATIVE[negative] and k not in writes(name)
        }
        assert all(v.is_neg() for v in views.values())
        call = copied(arguments)
        try:
            got = getattr(lz, name)(**call | views)
        except lz.KernelExecutionError:
            got = lz.KernelExecutionError
        else:
            got = tuple(t for t in as_tuple(got) if t is not None) + tuple(call[w] for w in writes(name))
        want = outcome(name, getattr(lz, name), arguments | {k: v.resolve_neg() for k, v in views.items()})
        agree(got, want)
    _, arguments = few(name, 1)[0]
    for written in (w for w in writes(name) if arguments[w].dtype == torch.float32):
        call = copied(arguments)
        call[written] = negative(call[written])
        getattr(lz, name)(**call)
        wanted = outcome(name, getattr(lz, name), arguments)[-len(writes(name)) :]
        torch.testing.assert_close(tuple(call[w] for w in writes(name)), wanted)  # the reference writes such a view


@every_operation
def test_written_tensors_advance_their_version(name):
    for _, arguments in few(name, 2):
        call = copied(arguments)
        before = {w: call[w]._version for w in writes(name) if w in call}
        try:
            getattr(lz, name)(**call)
        except lz.KernelExecutionError:
            continue
        assert all(call[w]._version > version for w, version in before.items())


# ---- deprecated names


def test_deprecated_names_mean_what_they_meant():
    q = torch.randn(1, 4, 2, 8)
    for alias, causal in (("attention.causal", True), ("attention.full", False)):
        with pytest.warns(DeprecationWarning, match=f"{alias}.*causal={causal}"):
            got = lz.run(alias, q, q, q, layout="BSHD")
        assert torch.equal(got, lz.attention(q, q, q, causal=causal, layout="BSHD"))
        with pytest.warns(DeprecationWarning), pytest.raises(lz.InvalidRequestError, match="causal"):
            lz.run(alias, q, q, q, causal=not causal, layout="BSHD")
        with pytest.warns(DeprecationWarning):
            lz.explain(alias, q, q, q, layout="BSHD")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lz.run("attention", q, q, q, layout="BSHD")


@pytest.mark.parametrize("alias", [a for c in contracts().values() for a in c["aliases"]])
def test_a_lock_on_an_alias_covers_its_targets(alias):
    contract = contracts()[flat_name(alias)]
    for _, arguments in few(contract["name"], 2):
        operation = lz.explain(contract["name"], **arguments).operation
        with lz.policy(locks={alias: f"ref.{operation}"}):
            assert lz.explain(contract["name"], **arguments).locked == f"ref.{operation}"


# ---- NumPy


@every_operation
def test_numpy_arrays_give_the_same(name):
    pytest.importorskip("ml_dtypes")
    ran = 0
    for _, arguments in few(name, 4):
        try:
            arrays = {k: to_numpy(v) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
        except TypeError:
            continue  # a dtype that NumPy does not have at all
        want = outcome(name, getattr(lz, name), arguments)
        try:
            got = getattr(lz, name)(**arrays)
        except lz.KernelExecutionError:
            assert want is lz.KernelExecutionError
            continue
        results = tuple(t for t in as_tuple(got) if t is not None)
        assert all(type(t) is np.ndarray for t in results)
        written = tuple(arrays[w] for w in writes(name))
        for a, b in zip(results + written, want, strict=True):
            assert a.dtype.name == str(b.dtype).removeprefix("torch.") and a.shape == tuple(b.shape)
            np.testing.assert_array_equal(a, to_numpy(b))
        ran += 1
    assert ran


def to_numpy(tensor):
    from layerzero.torch.arrays import _to_numpy

    return _to_numpy(tensor.clone())


def test_every_contract_has_cases():
    assert all(few(name) for name in NAMES) and set(_layerzero.ops) == set(NAMES)
