"""torch.ops.layerzero.*: schemas, fakes, gradients, tracing and compilation, on the operations' own cases."""

import copy
import re
import subprocess

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.contracts import condition, contracts, is_set  # noqa: E402
from layerzero.torch import operators  # noqa: E402
from layerzero.torch.references import call_reference  # noqa: E402
from operation_cases import NAMES, as_tuple, cases, copied, few, same, tensors_of  # noqa: E402

if not operators.register():
    pytest.skip("this build has no torch operators", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

OPS = torch.ops.layerzero
OPERATORS = {name: [one for one in operators.operators() if one.name == name] for name in NAMES}


def operator(name, arguments):
    """The overload of a case, and its arguments."""
    decides = condition(contracts()[name])
    one = OPERATORS[name][is_set(arguments.get(decides))]
    return one.function, {key: value for key, value in arguments.items() if key not in one.fixed}


# ---- values, shapes, refusals


@pytest.mark.parametrize("name", NAMES)
def test_same_values_as_the_door(name):
    for _, arguments in cases(name):
        function, given = operator(name, arguments)
        try:
            want = _layerzero.ops[name](**copy.deepcopy(arguments))  # it may write a state
        except lz.LayerZeroError as refusal:
            with pytest.raises(type(refusal)) as again:
                function(**given)
            assert str(again.value) == str(refusal)
            continue
        same(function(**given), want)


@pytest.mark.parametrize("name", NAMES)
def test_fakes_are_the_outputs(name):
    with torch.no_grad():
        for line, arguments in cases(name):
            function, given = operator(name, arguments)
            try:
                real = as_tuple(function(**given))
            except lz.LayerZeroError:
                continue
            with FakeTensorMode() as mode:
                fake = as_tuple(
                    function(**{k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in given.items()})
                )
            for f, r in zip(fake, real, strict=True):
                assert (f is None) == (r is None), line
                assert r is None or (f.shape, f.stride(), f.dtype) == (r.shape, r.stride(), r.dtype), line


@pytest.mark.parametrize("name", NAMES)
def test_refused_calls_say_why(name):
    for line, arguments in cases(name, refused=True):
        function, given = operator(name, arguments)
        try:
            _layerzero.ops[name](**arguments)
        except lz.LayerZeroError as refusal:
            with pytest.raises((type(refusal), RuntimeError)) as again:  # torch's own check of an argument may be first
                function(**given)
            assert str(again.value) == str(refusal) or not isinstance(again.value, lz.LayerZeroError), line
        else:
            pytest.fail(f"{line}: was served")


@pytest.mark.parametrize("name", NAMES)
def test_traces_with_symbolic_sizes_refuse_wrong_shapes(name):
    for _, arguments in cases(name, refused=True):
        function, given = operator(name, arguments)
        try:
            _layerzero.ops[name](**arguments)
        except lz.InvalidRequestError as refusal:
            if "wanted [" not in str(refusal):
                continue  # not about a shape: a trace knows no values
            tensors, rest = tensors_of(given), {k: v for k, v in given.items() if not isinstance(v, torch.Tensor)}
            with torch.no_grad(), pytest.raises((lz.InvalidRequestError, RuntimeError)):
                traced(function, tensors, rest)


def traced(function, tensors, rest):
    return make_fx(lambda tensors: function(**tensors, **rest), tracing_mode="symbolic")(tensors)


def test_errors_keep_their_parts():
    with pytest.raises(lz.InvalidRequestError) as caught:
        OPS.rms_norm(torch.randn(2, 8), torch.randn(7))
    assert caught.value.field == "rms_norm: weight" and "8" in caught.value.wanted and "7" in caught.value.got
    with lz.policy(locks={"norm.rms": "zentorch.rms_norm"}), pytest.raises(lz.NoKernelFoundError) as caught:
        OPS.rms_norm(torch.randn(2, 8))
    assert "NOT_INSTALLED" in {r.code for r in caught.value.failures["zentorch.rms_norm"]}
    with torch.inference_mode(), pytest.raises(RuntimeError, match="weight"):  # torch calls no Python there
        OPS.rms_norm(torch.randn(2, 8), torch.randn(7))


# ---- torch's own checks


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    for line, arguments in few(name, 2):
        check(name, line, arguments)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_opcheck_of_every_case(name):
    for line, arguments in cases(name):
        check(name, line, arguments)


def beyond_opcheck(tensors):
    """opcheck takes NaN for a difference, and multiplies tensors, which torch cannot do in formats of 8 bits."""
    floats = [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return any(t.element_size() == 1 or bool(t.isnan().any()) for t in floats)


def check(name, line, arguments):
    function, given = operator(name, arguments)
    with torch.no_grad():
        try:
            results = as_tuple(function(**copied(given)))
        except lz.LayerZeroError:
            return
    if not beyond_opcheck([*given.values(), *results]):
        torch.library.opcheck(function, (), given)
        return
    torch.library.opcheck(function, (), given, test_utils=("test_autograd_registration", "test_faketensor"))
    check_schema(function, given, results, line)
    tensors, rest = tensors_of(given), {k: v for k, v in given.items() if not isinstance(v, torch.Tensor)}
    with torch.no_grad():
        graph = traced(function, tensors, rest)
        same(graph(copied(tensors)), results if len(results) > 1 else results[0])


def check_schema(function, given, results, line):
    """What the schema says is written and nothing else; results have memory of their own."""
    call = copied(given)
    function(**call)
    for argument in function._schema.arguments:
        before, after = given.get(argument.name), call.get(argument.name)
        if isinstance(before, torch.Tensor) and not (argument.alias_info and argument.alias_info.is_write):
            torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True, msg=f"{line}: {argument.name}")
    memory = {t.untyped_storage().data_ptr() for t in tensors_of(given).values()} - {0}
    assert not memory & {r.untyped_storage().data_ptr() for r in results if r is not None}, line


@pytest.mark.parametrize("name", [n for n in NAMES if contracts()[n]["differentiable"]])
def test_gradients_are_the_references(name):
    compared = 0
    for line, arguments in few(name, 3):
        if "@nan" in line or any(isinstance(a, torch.Tensor) and a.dtype == torch.float16 for a in arguments.values()):
            continue
        wide = {p["name"]: "float64" in p.get("dtypes", ()) for p in contracts()[name]["params"]}
        tensors = {
            k: (v.double() if wide[k] else v.clone()).requires_grad_()
            if isinstance(v, torch.Tensor) and v.is_floating_point()
            else v
            for k, v in arguments.items()
        }
        layout = tensors.pop("layout", None)
        wanted = [t for t in tensors.values() if isinstance(t, torch.Tensor) and t.requires_grad]
        function, given = operator(name, tensors)
        try:
            got = as_tuple(function(**given, **({"layout": layout} if layout else {})))
        except lz.LayerZeroError:
            continue
        want = as_tuple(call_reference(name, tensors, layout))
        weights = [torch.randn_like(t) if t.is_floating_point() else None for t in want]
        a, b = (
            torch.autograd.grad(
                [o for o in outputs if o.requires_grad],
                wanted,
                [w.to(o.dtype) for w, o in zip(weights, outputs, strict=True) if o.requires_grad],
                allow_unused=True,
            )
            for outputs in (got, want)
        )
        for x, y in zip(a, b, strict=True):
            assert (x is None) == (y is None), line
            if x is not None:
                torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5, equal_nan=True)
        compared += 1
    assert compared or not few(name, 3)


def test_gradient_of_gradient():
    x, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 6), (6,)))
    assert torch.autograd.gradcheck(OPS.rms_norm, (x, w))
    assert torch.autograd.gradgradcheck(OPS.rms_norm, (x, w))


def test_no_derivative():
    assert not OPS.sample_topk(torch.randn(2, 8, requires_grad=True), 2).requires_grad
    without = [n for n in NAMES if not contracts()[n]["differentiable"]]
    for name in without:
        for _, arguments in few(name, 1):
            function, given = operator(name, arguments)
            leaves = {
                k: v.detach().requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                for k, v in given.items()
            }
            if not any(isinstance(v, torch.Tensor) and v.requires_grad for v in leaves.values()):
                continue
            try:
                assert not any(t.requires_grad for t in as_tuple(function(**leaves)))
            except lz.InvalidRequestError as refusal:
                assert "no derivative" in str(refusal)


# ---- transforms


def test_forward_mode_is_right():
    x, t, w = torch.randn(3, 16), torch.randn(3, 16), torch.randn(16)
    want = torch.func.jvp(lambda x: torch.nn.functional.rms_norm(x, (16,), w, 1e-6), (x,), (t,))[1]
    torch.testing.assert_close(torch.func.jvp(lambda x: OPS.rms_norm(x, w), (x,), (t,))[1], want)
    with torch.autograd.forward_ad.dual_level():
        dual = OPS.rms_norm(torch.autograd.forward_ad.make_dual(x, t), w)
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, want)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_function_transforms():
    x, w = torch.randn(3, 16), torch.randn(16)
    rms = lambda x: torch.nn.functional.rms_norm(x, (16,), w, 1e-6)  # noqa: E731
    ours = lambda x: OPS.rms_norm(x, w)  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(ours)(x), rms(x))
    torch.testing.assert_close(
        torch.func.grad(lambda x: ours(x).sin().sum())(x), torch.func.grad(lambda x: rms(x).sin().sum())(x)
    )
    torch.testing.assert_close(torch.func.jacrev(ours)(x[0]), torch.func.jacrev(rms)(x[0]))
    torch.testing.assert_close(torch.func.functionalize(lambda x: ours(x) * 2)(x), rms(x) * 2)


@pytest.mark.parametrize("tracing_mode", ["real", "symbolic"])
def test_make_fx_sees_one_node(tracing_mode):
    x, w = torch.randn(3, 16), torch.randn(16)
    graph = make_fx(lambda x, w: lz.rms_norm(x, w, eps=1e-5), tracing_mode=tracing_mode)(x, w)
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [OPS.rms_norm.default]
    torch.testing.assert_close(graph(x, w), lz.rms_norm(x, w, eps=1e-5), rtol=0, atol=0)


# ---- compilation


def qkv(heads_first=False):
    q, k, v = (torch.randn(2, s, h, 16) for s, h in ((5, 4), (7, 2), (7, 2)))
    return tuple(t.transpose(1, 2).contiguous() for t in (q, k, v)) if heads_first else (q, k, v)


COMPILED = {
    "rms_norm": (lambda x, w: lz.rms_norm(x + 1, weight=w, eps=1e-5) * 2, (torch.randn(3, 64), torch.randn(64))),
    "attention": (lambda q, k, v: lz.attention(q, k, v, causal=True).sin(), qkv()),
    "attention in another layout": (lambda q, k, v: lz.attention(q, k, v, layout="BHSD").sin(), qkv(True)),
    "attention with lse": (lambda q, k, v: lz.attention(q, k, v, return_lse=True)[1] * 2, qkv()),
    "linear": (lambda x, w: lz.linear(x, w).relu(), (torch.randn(3, 64), torch.randn(8, 64))),
    "rope": (lambda x, c, s: lz.rope(x, c, s) + 1, (torch.randn(1, 5, 2, 16), torch.randn(5, 16), torch.randn(5, 16))),
    "swiglu": (lambda a, b: lz.swiglu(a, b) * 3, (torch.randn(3, 8), torch.randn(3, 8))),
    "layer_norm": (lambda x, w: lz.layer_norm(x, (8,), w), (torch.randn(3, 8), torch.randn(8))),
    "out": (lambda x, out: lz.rms_norm(x, out=out) + out, (torch.randn(3, 8), torch.empty(3, 8))),
}


@pytest.fixture(autouse=True)
def _fresh():
    yield
    torch._dynamo.reset()


@pytest.mark.trap("graphs")
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_into_one_graph(name):
    function, tensors = COMPILED[name]
    same(torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors), function(*tensors))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["rms_norm", "attention", "linear", "swiglu"])
def test_gradients_of_compiled_graphs(name, dtype):
    function, tensors = COMPILED[name]
    generator, gradients = torch.Generator().manual_seed(0), []
    values = [torch.randn(t.shape, generator=generator, dtype=dtype) for t in tensors]
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        leaves = [v.clone().requires_grad_() for v in values]
        run(*leaves).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    most = {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]  # of the largest: sums may be in another order
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=most * b.abs().max().item())


def test_a_growing_cache_compiles_once():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda q, k, v: lz.attention(q, k, v) + 1, fullgraph=True, backend=counter, dynamic=True)
    for s_kv in range(9, 16):
        q, kv = torch.randn(1, 1, 4, 16), torch.randn(1, s_kv, 2, 16)
        torch.testing.assert_close(step(q, kv, kv), lz.attention(q, kv, kv) + 1)
    assert counter.frame_count == 1


def test_a_graph_names_no_kernel():
    x = torch.randn(2, 8)
    named = lambda x: lz.rms_norm(x, kernel="ref.norm.rms")  # noqa: E731
    with pytest.raises(Exception, match="(?s)kernel|exception"):
        torch.compile(named, fullgraph=True, backend="aot_eager")(x)
    same(torch.compile(named, backend="aot_eager")(x), named(x))  # outside a full graph it runs in eager mode


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_prepared_call_stays_outside_graphs():
    x, w = torch.randn(2, 8), torch.randn(8)
    prepared = lz.prepare("rms_norm", x, w)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: prepared(x, w), fullgraph=True, backend="aot_eager")(x)
    same(torch.compile(lambda x: prepared(x, w) * 2, backend="aot_eager")(x), prepared(x, w) * 2)


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    class Norm(torch.nn.Module):
        def forward(self, x, w):
            return lz.rms_norm(x, w)

    tensors = torch.randn(3, 8), torch.randn(8)
    program = torch.export.export(Norm(), tensors, strict=strict)
    assert OPS.rms_norm.default in [n.target for n in program.graph.nodes]
    same(program.module()(*tensors), lz.rms_norm(*tensors))


# ---- kernels of other libraries, policy


@pytest.mark.parametrize("kernel", ["torch.rms_norm", "torch.ref.norm.rms", "ref.norm.rms"])
def test_policy_holds_in_operators(kernel):
    x, w = torch.randn(3, 64), torch.randn(64)
    with lz.policy(locks={"norm.rms": kernel}):
        want = lz.rms_norm(x, w, kernel=kernel)
        same(OPS.rms_norm(x, w), want)
        same(torch.compile(lambda x: lz.rms_norm(x, w) * 2, fullgraph=True, backend="aot_eager")(x), want * 2)
    with lz.policy(locks={"norm.rms": "zentorch.rms_norm"}), pytest.raises(RuntimeError, match="zentorch.rms_norm"):
        OPS.rms_norm(x, w)


def test_python_kernels_get_layouts_and_give_strides():
    q, k, v = qkv(True)
    want = OPS.attention.lse(q, k, v, layout="BHSD")
    with lz.disabled():
        got = OPS.attention.lse(q, k, v, layout="BHSD")
    for a, b in zip(got, want, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b)


# ---- the library


def test_the_library_needs_c_symbols_of_torch_alone():
    undefined = subprocess.run(
        ["nm", "-DC", "--undefined-only", str(operators.LIBRARY.resolve())], capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split(maxsplit=1)[1].strip() for line in undefined.splitlines()]
    names = [s.split(" ", 1)[-1] if s[:2] in ("U ", "w ") else s for s in symbols]
    assert not [n for n in names if re.match(r"(at|c10|torch)::|_?Py", n)]
    assert [n for n in names if n.startswith("aoti_torch_")]


def test_tags_keep_strides():
    for one in operators.operators():
        if one.function.tags:  # torch >= 2.12
            assert torch.Tag.needs_fixed_stride_order in one.function.tags
