"""Gradients, forward mode and function transforms of every operation: right, or refused in words; never silently detached."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts, has_whole_outputs  # noqa: E402
from layerzero.torch import operators  # noqa: E402
from layerzero.torch.references import call_reference  # noqa: E402
from operation_cases import NAMES, as_tuple, copied, few, same, tensors_of  # noqa: E402

DIFFERENTIABLE = [n for n in NAMES if contracts()[n]["differentiable"]]
OTHERS = [n for n in NAMES if not contracts()[n]["differentiable"]]
LARGEST = 1500  # elements of a case


def wide(name, arguments):
    """The call in float64 wherever the contract takes it; None where no tensor is floating then."""
    params = {p["name"]: p for p in contracts()[name]["params"]}
    call, leaves = {}, []
    for key, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and "float64" in params[key]["dtypes"]:
            value = value.detach().double().contiguous().requires_grad_()
            leaves.append(key)
        call[key] = value
    return (call, leaves) if leaves else (None, [])


def smooth_cases(name, count):
    """Cases without NaN that every kernel serves, in float64."""
    for line, arguments in few(name, largest=LARGEST):
        tensors = tensors_of(arguments).values()
        # Formats of 8 bits have no isfinite of their own.
        if count == 0 or any(t.is_floating_point() and not t.float().isfinite().all() for t in tensors):
            continue
        call, leaves = wide(name, arguments)
        if call is None or any(t.numel() == 0 for t in tensors):
            continue
        try:
            with torch.no_grad():
                results = as_tuple(getattr(lz, name)(**call))
        except lz.LayerZeroError:
            continue  # data that no kernel takes
        if any(r.is_floating_point() and r.dtype.itemsize < 4 for r in results):
            continue  # rounded to the dtype that the call names, coarser than differences: see the operators' test
        count -= 1
        yield line, call, leaves


def function_of(operation, call, leaves):
    """The float64 outputs as a function of the leaves alone; where there is none, the float32 ones. Infinities stand
    for what is hidden: no difference quotient has them."""

    def function(*values):
        results = as_tuple(operation(**call | dict(zip(leaves, values, strict=True))))
        results = tuple(r.masked_fill(r.isinf(), 0) for r in results if r.is_floating_point())
        exact = tuple(r for r in results if r.dtype == torch.float64)
        return exact or tuple(r.double() for r in results)

    return function


def steps_of(results):
    """Of differences: wider where outputs are float32 whatever the inputs are."""
    exact = any(r.dtype == torch.float64 for r in as_tuple(results))
    return {"eps": 1e-6, "atol": 1e-4} if exact else {"eps": 1e-3, "atol": 5e-3}


def through_operator(name):
    return lambda **arguments: operators.call_operator(name, arguments)


BINDINGS = {"eager": lambda name: getattr(lz, name)}
if operators.register():
    BINDINGS["torch.ops"] = through_operator


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck(name, binding):
    ran = 0
    for _, call, leaves in smooth_cases(name, 3):
        values = [call[leaf] for leaf in leaves]
        function = function_of(BINDINGS[binding](name), call, leaves)
        steps = steps_of(getattr(lz, name)(**call))
        assert any(r.requires_grad for r in function(*values))
        assert torch.autograd.gradcheck(function, values, fast_mode=True, check_undefined_grad=False, **steps)
        ran += 1
    assert ran, "no case in float64: is it differentiable?"


@pytest.mark.full
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradcheck_of_every_case(name):
    for _, call, leaves in smooth_cases(name, 1000):
        function = function_of(getattr(lz, name), call, leaves)
        values, steps = [call[leaf] for leaf in leaves], steps_of(getattr(lz, name)(**call))
        assert torch.autograd.gradcheck(function, values, fast_mode=True, **steps)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("name", OTHERS)
def test_a_gradient_that_is_not_there_is_refused(name, binding):
    for _, arguments in few(name, 3):
        call = copied(arguments)
        floating = [k for k, v in tensors_of(call).items() if v.is_floating_point() and v.dtype.itemsize > 1]
        for leaf in floating:
            given = call | {leaf: call[leaf].detach().requires_grad_()}
            if has_whole_outputs(contracts()[name]):
                assert not any(r.requires_grad for r in as_tuple(BINDINGS[binding](name)(**given)))
                continue
            with pytest.raises(lz.InvalidRequestError, match=f"{name}: wanted tensors that need no gradient, got"):
                BINDINGS[binding](name)(**given)
            with torch.no_grad():
                BINDINGS[binding](name)(**given)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_function_transforms(name, binding):
    """grad, jvp, vmap and functionalize agree with the formula in plain torch."""
    for _, call, leaves in smooth_cases(name, 1):
        values = tuple(call[leaf].detach() for leaf in leaves)
        ours = function_of(BINDINGS[binding](name), call, leaves)
        theirs = function_of(formula_of(name), call, leaves)
        check_grad(ours, theirs, values)
        check_jvp(ours, theirs, values)
        check_vmap(ours, theirs, values)
        same_values(torch.func.functionalize(ours)(*values), ours(*values))


def formula_of(name):
    def formula(layout=None, **arguments):
        return call_reference(name, arguments, layout)

    return formula


def check_grad(ours, theirs, values):
    got, want = (
        torch.func.grad(lambda *v, f=f: sum(r.sin().sum() for r in f(*v)), argnums=tuple(range(len(values))))(*values)
        for f in (ours, theirs)
    )
    same_values(got, want)


def check_jvp(ours, theirs, values):
    tangents = tuple(torch.randn_like(v) for v in values)
    try:
        want = torch.func.jvp(theirs, values, tangents)
    except (RuntimeError, NotImplementedError):  # torch has no forward derivative for a part of the formula
        with pytest.raises((RuntimeError, NotImplementedError, lz.LayerZeroError)):
            torch.func.jvp(ours, values, tangents)
        return
    got = torch.func.jvp(ours, values, tangents)
    same_values(got[0] + got[1], want[0] + want[1])


def check_vmap(ours, theirs, values):
    batched = tuple(torch.stack([v, v + 1]) for v in values)
    try:
        got = torch.func.vmap(ours)(*batched)
    except RuntimeError as error:
        assert "vmap" in str(error)  # a formula that depends on data: torch refuses it
        return
    for i in range(2):
        same_values(tuple(r[i] for r in got), theirs(*(b[i] for b in batched)))


def same_values(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", OTHERS)
def test_a_tangent_that_would_be_lost_is_refused(name):
    if has_whole_outputs(contracts()[name]):
        return
    forward = torch.autograd.forward_ad
    for _, arguments in few(name, 2):
        call = copied(arguments)
        for leaf, tensor in tensors_of(call).items():
            if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
                continue
            for binding in BINDINGS.values():
                with forward.dual_level():
                    dual = forward.make_dual(tensor.contiguous(), torch.ones_like(tensor).contiguous())
                    with pytest.raises(lz.InvalidRequestError, match="no derivative"):
                        binding(name)(**call | {leaf: dual})


@pytest.mark.parametrize("name", NAMES)
def test_grad_mode_without_a_gradient_changes_nothing(name):
    for _, arguments in few(name, 2):
        results = []
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                try:
                    results.append(getattr(lz, name)(**copied(arguments)))
                except lz.KernelExecutionError as error:
                    results.append(str(error))
        if results[0] is None or isinstance(results[0], str):
            assert results[1:] == results[:1] * 2
            continue
        same(results[1], results[0])
        same(tuple(t.clone() for t in as_tuple(results[2])), as_tuple(results[0]))


@pytest.mark.parametrize("residual", [False, True])
def test_weights_of_layer_norm_with_an_offset_are_not_rounded(residual):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(4, 64, generator=generator).bfloat16().requires_grad_()
    weight = (torch.randn(64, generator=generator) / 256).bfloat16()
    if residual:
        actual = lz.fused_add_layer_norm(x, torch.zeros_like(x), 64, weight, weight_offset=1.0)[0]
    else:
        actual = lz.layer_norm(x, 64, weight, weight_offset=1.0)
    expected = torch.nn.functional.layer_norm(x.double(), (64,), weight.double() + 1)
    assert actual.requires_grad
    assert ((actual - expected).abs() <= 1.01 * 2**-8 * expected.abs()).all()
