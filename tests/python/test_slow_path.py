"""Calls that the fast path does not take: the contract's checks, out=, kernel= and results hold there as well."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

X, W = torch.randn(2, 8), torch.randn(8)
FUSED = contracts()["fused_add_rms_norm"]["operations"][0]["id"]


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


WAYS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "dispatch mode": Passing,
    "gradient": torch.enable_grad,
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


# ---- the contract


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: lz.rms_norm(x, w[:7]),
        lambda x, w: lz.rms_norm(x, w[:1]),  # would broadcast
        lambda x, w: lz.rms_norm(x, w[None]),
        lambda x, w: lz.rms_norm(x.int(), w),
        lambda x, w: lz.rms_norm(x, w.int()),
        lambda x, w: lz.rms_norm(x, w, kernel="nobody"),
        lambda x, w: lz.attention(x, x, x),
        lambda x, w: lz.attention(*[x[None, None]] * 3, causal=True, attn_mask=torch.ones(2, 2, dtype=torch.bool)),
        lambda x, w: lz.attention(*[x[None]] * 3, layout="HBSD"),
        lambda x, w: lz.softmax(x, temperature=-1.0),
    ],
    ids=range(10),
)
def test_what_the_fast_door_refuses_is_refused(way, call):
    with pytest.raises((lz.InvalidRequestError, lz.NoKernelFoundError)) as fast:
        call(X, W)
    x = X.clone().requires_grad_() if way is torch.enable_grad else X
    with way(), pytest.raises((lz.InvalidRequestError, lz.NoKernelFoundError)) as slow:
        call(x, W)
    if "kernel" not in str(slow.value):
        assert str(slow.value) == str(fast.value)


def test_transforms_check_the_contract_too():
    with pytest.raises(lz.InvalidRequestError, match="weight"):
        torch.func.vmap(lambda x: lz.rms_norm(x, W[:1]))(torch.randn(3, 2, 8))
    with pytest.raises(lz.InvalidRequestError, match="weight"):
        torch.func.jvp(lambda x: lz.rms_norm(x, W[:1]), (X,), (X,))


@pytest.mark.parametrize("kernel", ["torch.ref.nonsense", "torch.ref.norm.layer", "hwy.norm.rms", "torch.ref."])
@pytest.mark.parametrize("as_lock", [False, True])
def test_only_the_reference_of_this_very_call_may_be_named(kernel, as_lock):
    def ours(x):
        return lz.rms_norm(x, W) if as_lock else lz.rms_norm(x, W, kernel=kernel)

    with torch.autocast("cpu"):
        torch.testing.assert_close(lz.rms_norm(X, W, kernel="torch.ref.norm.rms"), F.rms_norm(X, (8,), W, 1e-6))
        if as_lock and kernel != "hwy.norm.rms":
            return  # such a lock is an error before any call
        with lz.policy(locks={"norm.rms": kernel} if as_lock else {}):
            with pytest.raises(lz.InvalidRequestError, match="kernel"):
                ours(X)
            with pytest.raises(lz.InvalidRequestError, match="kernel"):
                torch.func.vmap(ours)(X)


def test_another_variants_reference_is_not_this_calls():
    q = torch.randn(1, 3, 2, 8)
    with torch.autocast("cpu"):
        lz.attention(q, q, q, kernel="torch.ref.attention.standard.prefill")
        with pytest.raises(lz.InvalidRequestError, match="kernel"):
            lz.attention(q, q, q, kernel="torch.ref.attention.gqa.decode")


def test_a_lock_of_another_operation_changes_nothing():
    with lz.policy(locks={"norm.layer": "hwy.norm.layer"}), torch.autocast("cpu"):
        lz.rms_norm(X, W)


# ---- what a reference refuses


def test_references_refuse_in_the_engines_words():
    packed, bad = torch.randn(7, 2, 8), torch.tensor([0, 3, 8], dtype=torch.int32)
    calls = (
        lambda: lz.ragged_attention(
            packed, packed, packed, bad, bad, kernel="torch.ref.attention.standard.prefill.ragged"
        ),
        lambda: torch.func.vmap(lambda q: lz.ragged_attention(q, packed, packed, bad, bad))(packed[None]),
    )
    for call in calls:
        with pytest.raises(lz.KernelExecutionError, match="ragged_attention: cu_seqlens_q: wanted offsets") as caught:
            call()
        assert caught.value.field == "ragged_attention: cu_seqlens_q" and caught.value.got == "[0, 3, 8]"


def test_only_the_references_own_words_are_a_refusal(monkeypatch):
    from layerzero.torch import references

    for text in ("too many values to unpack", "weights: wanted one, got two"):

        def fault(input, weight=None, eps=1e-6, offset=0.0, text=text):
            raise ValueError(text)

        monkeypatch.setattr(references, "reference_function", lambda name: fault)  # noqa: B023
        references._keywords.cache_clear()
        with torch.autocast("cpu"), pytest.raises(ValueError, match=text) as caught:
            lz.rms_norm(X, W)
        assert not isinstance(caught.value, lz.LayerZeroError)
    references._keywords.cache_clear()


def test_a_formula_has_no_dropout():
    q = torch.randn(1, 3, 2, 8)
    for operation, name in ((lz.attention, "standard"), (lz.cross_attention, "cross")):
        for kernel in (f"torch.ref.attention.{name}.prefill", f"ref.attention.{name}.prefill"):
            with pytest.raises(lz.NoKernelFoundError) as caught:
                operation(q, q, q, dropout_p=0.5, layout="BSHD", kernel=kernel)
            assert "DROPOUT_UNSUPPORTED" in {r.code for r in caught.value.failures[kernel]}
            operation(q, q, q, dropout_p=0.0, layout="BSHD", kernel=kernel)
        with torch.autocast("cpu"), pytest.raises(lz.InvalidRequestError, match="dropout_p: wanted 0"):
            operation(q, q, q, dropout_p=0.5, layout="BSHD")


# ---- out=


@pytest.mark.parametrize("out", [torch.empty(1, 8), torch.empty(5, 2, 8), torch.empty(2, 8, dtype=torch.float64), [1]])
def test_out_is_never_broadcast_or_converted(way, out):
    if way is torch.enable_grad:
        return
    with way(), pytest.raises((lz.InvalidRequestError, TypeError), match="out"):
        lz.rms_norm(X, W, out=out)


def test_out_fits_in_every_way(way):
    if way is torch.enable_grad:
        return
    out = torch.empty(2, 8)
    with way():
        assert lz.rms_norm(X, W, out=out) is out
    torch.testing.assert_close(out, F.rms_norm(X, (8,), W, 1e-6))


@pytest.mark.trap("versions")
@pytest.mark.parametrize("kernel", [None, "torch.rms_norm", "ref.norm.rms"])
def test_out_advances_the_version_counter(kernel):
    out = torch.zeros(2, 8)
    before = out._version
    lz.rms_norm(X, W, out=out, kernel=kernel)
    assert out._version > before
    leaf = torch.ones(2, 8, requires_grad=True)
    product = leaf * out  # keeps `out` for its backward
    with torch.no_grad():
        lz.rms_norm(X, W, out=out, kernel=kernel)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        lz.rms_norm(X, W, out=torch.empty(2, 8), kernel=kernel)


@pytest.mark.parametrize("kernel", [None, "torch.rms_norm"])
def test_out_that_needs_a_gradient_is_refused(kernel):
    out = torch.zeros(2, 8, requires_grad=True)
    with pytest.raises(lz.InvalidRequestError, match="out: wanted a tensor that needs no gradient"):
        lz.rms_norm(X, W, out=out, kernel=kernel)
    with torch.autocast("cpu"), pytest.raises(lz.InvalidRequestError, match="out: wanted a tensor that needs no grad"):
        lz.rms_norm(X, W, out=out)
    with torch.no_grad():
        lz.rms_norm(X, W, out=out, kernel=kernel)


def test_a_refused_out_says_what_it_is():
    with pytest.raises(
        lz.InvalidRequestError, match=r"wanted a contiguous float32 \[2, 8\] on cpu, got float64 \[2, 8\]"
    ):
        lz.rms_norm(X, W, out=torch.empty(2, 8, dtype=torch.float64))


# ---- results of Python kernels

FAULTS = {
    "shape": lambda x: x[:1],
    "rank": lambda x: x[None],
    "dtype": lambda x: x.double(),
    "device": lambda x: x.to("meta"),
    "kind": lambda x: None,
    "array": lambda x: x.numpy(),
    "list": lambda x: [x],
    "two": lambda x: (x, x),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_result_of_a_registered_kernel_is_an_error(fault):
    kernel_id = f"tests.wrong_{fault}"

    @lz.register_kernel("norm.rms", kernel_id, supported_dtypes=["float32"], priority=0, supports_grad=True)
    def kernel(input):
        return FAULTS[fault](input.detach())

    for call in (
        lambda: lz.rms_norm(X, kernel=kernel_id),
        lambda: lz.rms_norm(X.clone().requires_grad_(), kernel=kernel_id),
        lambda: lz.rms_norm(X, kernel=kernel_id, out=torch.empty(2, 8)),
    ):
        with pytest.raises(lz.KernelExecutionError, match=rf"{kernel_id}: wanted output: float32 \[2, 8\] on cpu"):
            call()


def test_a_wrong_number_of_results_is_an_error():
    @lz.register_kernel(FUSED, "tests.one_of_two", supported_dtypes=["float32"], priority=0)
    def kernel(input, residual):
        return input + residual

    with pytest.raises(lz.KernelExecutionError, match="tests.one_of_two: wanted a tuple of 2 tensors, got Tensor"):
        lz.fused_add_rms_norm(X, X, kernel="tests.one_of_two")


# ---- function modes and subclasses


@pytest.mark.trap("function modes")
def test_function_modes_see_the_operation():
    class Seen(TorchFunctionMode):
        functions = []

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.functions.append(function)
            return function(*args, **(kwargs or {}))

    with Seen():
        got = lz.rms_norm(X, W, 1e-6)
    assert Seen.functions == [lz.rms_norm]
    assert torch.equal(got, lz.rms_norm(X, W, 1e-6))
    with torch.device("cpu"):  # is such a mode
        assert torch.equal(got, lz.rms_norm(X, W, 1e-6))


@pytest.mark.trap("function modes")
def test_a_function_mode_may_answer_itself():
    class Answers(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return "answered" if function is lz.rms_norm else function(*args, **(kwargs or {}))

    with Answers():
        assert lz.rms_norm(X, W) == "answered"


@pytest.mark.trap("subclasses")
def test_a_subclass_with_a_torch_function_sees_the_operation():
    class Logged(torch.Tensor):
        seen = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.seen.append(function)
            return super().__torch_function__(function, types, args, kwargs or {})

    got = lz.rms_norm(X.as_subclass(Logged), W)
    assert type(got) is Logged and Logged.seen[0] is lz.rms_norm
    torch.testing.assert_close(got.as_subclass(torch.Tensor), F.rms_norm(X, (8,), W, 1e-6))


class Wrapped(torch.Tensor):
    """A wrapper subclass as DTensor is one: no memory of its own, every aten call comes to __torch_dispatch__."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map_only

        inner_args, inner_kwargs = tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapped, function(*inner_args, **inner_kwargs))


@pytest.mark.trap("subclasses")
@pytest.mark.parametrize("mixed", [False, True])
def test_a_wrapper_subclass_computes_by_its_own_rules(mixed):
    got = lz.rms_norm(Wrapped(X), W if mixed else Wrapped(W))
    assert type(got) is Wrapped
    torch.testing.assert_close(got.inner, F.rms_norm(X, (8,), W, 1e-6))
    with pytest.raises(lz.InvalidRequestError, match="weight"):
        lz.rms_norm(Wrapped(X), Wrapped(W[:1]))
    with pytest.raises(lz.InvalidRequestError, match="kernel"):
        lz.rms_norm(Wrapped(X), W, kernel="hwy.norm.rms")


@pytest.mark.trap("subclasses")
def test_the_gradient_of_a_wrapper_subclass():
    x = Wrapped(X.clone().requires_grad_())
    lz.rms_norm(x, W).sum().backward()
    want = X.clone().requires_grad_()
    F.rms_norm(want, (8,), W, 1e-6).sum().backward()
    torch.testing.assert_close(x.grad.inner, want.grad)


# ---- kinds of tensors


@pytest.mark.trap("kinds of tensors")
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: X.to_sparse(), "layout torch.sparse_coo; call .to_dense"),
        (lambda: X.to_sparse_csr(), "layout torch.sparse_csr; call .to_dense"),
        (lambda: torch.nested.nested_tensor([X, X[:1]], layout=torch.jagged), "layout torch.jagged"),
        (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "quantized tensor; call .dequantize"),
        (lambda: X.to("meta"), "meta tensor, which has no values; use FakeTensorMode"),
        (lambda: X.cfloat(), "complex64"),
        (lambda: X.cfloat().conj(), "complex64"),
        (lambda: torch.zeros(2, 8, dtype=torch.uint16), "16 bits|uint16"),
    ],
    ids=["coo", "csr", "nested", "quantized", "meta", "complex", "conjugate", "uint16"],
)
@pytest.mark.filterwarnings("ignore")
def test_kinds_without_readable_values_are_refused(make, text):
    for arguments in ((make(), None), (X, make())):
        with pytest.raises(lz.InvalidRequestError, match=f"rms_norm: (input|weight): wanted .*, got .*({text})"):
            lz.rms_norm(*arguments)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_refused_by_every_operation_but_attention(layout):
    parts = [torch.randn(3, 2, 8), torch.randn(2, 2, 8)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    deep = torch.nested.nested_tensor([part[None, None] for part in parts] if layout is torch.strided else parts)
    cos = torch.ones(2, 3, 4)
    calls = [
        ("rope", "input", lambda: lz.rope(nested, cos, cos)),
        ("rope", "input", lambda: lz.rope(deep, cos, cos)),
        ("rope", "cos", lambda: lz.rope(torch.ones(2, 3, 2, 8), nested, cos)),
        ("rms_norm", "input", lambda: lz.rms_norm(nested)),
        ("layer_norm", "input", lambda: lz.layer_norm(nested, (2, 8))),
        ("linear", "input", lambda: lz.linear(nested, torch.ones(4, 8))),
        ("softmax", "logits", lambda: lz.softmax(nested)),
        ("silu_and_mul", "input", lambda: lz.silu_and_mul(nested)),
    ]
    if layout is torch.strided:
        calls.append(("attention", "query", lambda: lz.attention(nested, nested, nested)))
    for name, argument, call in calls:
        with pytest.raises(lz.WrongTypeError) as caught:
            call()
        assert caught.value.field == f"{name}: {argument}" and "nested" in caught.value.got


def test_mixed_devices_are_refused_with_the_parameter():
    with pytest.raises(lz.InvalidRequestError, match="rms_norm: weight"):
        lz.rms_norm(X, W.to("meta"))
    with torch.autocast("cpu"), pytest.raises(lz.InvalidRequestError, match="rms_norm: weight"):
        lz.rms_norm(X, W.to("meta"))


@pytest.mark.trap("negative views")
def test_negative_and_conjugate_views_have_their_values():
    z = torch.randn(4, 8, dtype=torch.complex64)
    views = [z.conj().imag, z.conj().real, torch.view_as_real(z.resolve_conj())[..., 1], torch._neg_view(X)]
    views += [z.conj().imag.as_strided((4, 8), (1, 2)), torch._neg_view(X.bfloat16())[:1]]
    for view in views:
        torch.testing.assert_close(lz.rms_norm(view), F.rms_norm(view.clone(), (8,), eps=1e-6))
    for out in (z.conj().imag, torch._neg_view(torch.empty(4, 8))):
        with pytest.raises(lz.InvalidRequestError, match="out: wanted a contiguous"):
            lz.rms_norm(torch.randn(4, 8), out=out)
    prepared = lz.prepare("rms_norm", X)
    with pytest.raises(TypeError, match="plain tensors"):
        prepared(torch._neg_view(X))


@pytest.mark.trap("zero tensors")
def test_zero_tensors_have_their_values():
    zeros = torch._efficientzerotensor((2, 8))
    torch.testing.assert_close(lz.rms_norm(zeros, W), torch.zeros(2, 8))


def test_inference_tensors_outside_their_mode():
    with torch.inference_mode():
        x = torch.randn(2, 8)
    torch.testing.assert_close(lz.rms_norm(x, W), F.rms_norm(x, (8,), W, 1e-6))
    out = torch.empty(2, 8)
    with torch.inference_mode():
        lz.rms_norm(x, W, out=out)


# ---- autocast


@pytest.mark.trap("autocast")
def test_autocast_takes_mixed_floats_as_torch_does():
    q = torch.randn(1, 3, 2, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = lz.linear(X, torch.randn(8, 8))
        assert half.dtype == torch.bfloat16
        lz.linear(half, torch.randn(4, 8))  # bfloat16 with float32: autocast makes them one
        got = lz.attention(q.bfloat16(), q, q)
        want = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q.bfloat16(), q, q)), is_causal=True)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want.transpose(1, 2), rtol=2e-2, atol=2e-2)  # two roundings to bfloat16
    assert lz.attention(q.bfloat16(), q, q).dtype == torch.float32  # a plan casts to the promoted dtype
    with lz.policy(strict_mode=True), pytest.raises(lz.NoKernelFoundError, match="dtype"):
        lz.attention(q.bfloat16(), q, q, layout="BSHD")


@pytest.mark.trap("traces")
def test_jit_trace_records_the_operation_or_its_formula():
    traced = torch.jit.trace(lambda x: lz.rms_norm(x, W), (X,))
    again = torch.randn(5, 8)
    torch.testing.assert_close(traced(again), F.rms_norm(again, (8,), W, 1e-6))
