"""The eager path: numbers against torch, every way that a call can take, and what is said where it cannot."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from torch.nn import functional as F  # noqa: E402

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def close(got, want, dtype=None):
    tolerance = TOLERANCE[dtype or got.dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# ---- numbers


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (3, 5, 17), (0, 8)], ids=str)
def test_rms_norm(dtype, shape):
    x, w = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    got = lz.rms_norm(x, w, 1e-5)
    assert got.dtype == dtype and got.shape == x.shape and got.is_contiguous()
    close(got, F.rms_norm(x.double(), (shape[-1],), w.double(), 1e-5), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 9, 4, 2), (1, 7, 7, 4, 4)], ids=str)
def test_attention_in_both_layouts(dtype, shape):
    b, s_q, s_kv, h_q, h_kv = shape
    q = torch.randn(b, s_q, h_q, 16).to(dtype)
    k, v = (torch.randn(b, s_kv, h_kv, 16).to(dtype) for _ in range(2))
    heads_first = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*(t.double() for t in heads_first), is_causal=s_q > 1, enable_gqa=h_q != h_kv)
    close(lz.attention(q, k, v), want.transpose(1, 2), dtype)
    close(lz.attention(*heads_first, layout="BHSD"), want, dtype)


def test_two_outputs_are_a_tuple():
    x, r, w = torch.randn(2, 8), torch.randn(2, 8), torch.randn(8)
    out, total = lz.fused_add_rms_norm(x, r, w)
    close(total, x + r)
    close(out, F.rms_norm(x + r, (8,), w, 1e-6))
    q = torch.randn(1, 3, 2, 8)
    assert isinstance(lz.attention(q, q, q), torch.Tensor)
    assert lz.attention(q, q, q, return_lse=True)[1].shape == (1, 2, 3)


def test_strided_inputs():
    x = torch.randn(8, 6).t()
    close(lz.rms_norm(x, None), F.rms_norm(x, (8,), eps=1e-6))


def test_run_by_name_id_and_alias():
    x, w = torch.randn(2, 8), torch.randn(8)
    want = lz.rms_norm(x, w)
    for name in ("rms_norm", "norm.rms", lz.rms_norm):
        assert torch.equal(lz.run(name, x, w), want)
    with pytest.raises(lz.UnknownNameError, match="no_such"):
        lz.run("no_such", x)


# ---- options of a call


def test_out():
    x, w, out = torch.randn(2, 8), torch.randn(8), torch.empty(2, 8)
    assert lz.rms_norm(x, w, out=out) is out
    close(out, F.rms_norm(x, (8,), w, 1e-6))
    for kernel in ("torch.rms_norm", "torch.ref.norm.rms"):
        out.zero_()
        assert lz.rms_norm(x, w, out=out, kernel=kernel) is out
        close(out, F.rms_norm(x, (8,), w, 1e-6))
    for wrong in (torch.empty(3, 8), torch.empty(2, 8, dtype=torch.float64), torch.empty(8, 2).t()):
        for kernel in (None, "torch.rms_norm"):
            with pytest.raises(lz.InvalidRequestError, match="out"):
                lz.rms_norm(x, w, out=wrong, kernel=kernel)


def test_kernel_is_obeyed_or_raises():
    x, w = torch.randn(2, 8), torch.randn(8)
    for kernel in ("hwy.norm.rms", "torch.rms_norm", "ref.norm.rms", "torch.ref.norm.rms"):
        close(lz.rms_norm(x, w, kernel=kernel), F.rms_norm(x, (8,), w, 1e-6))
    with pytest.raises(lz.NoKernelFoundError) as caught:
        lz.rms_norm(x, w, kernel="zentorch.rms_norm")
    reasons = caught.value.failures["zentorch.rms_norm"]
    assert caught.value.operation == "norm.rms"
    assert "NOT_INSTALLED" in {r.code for r in reasons}
    with pytest.raises(lz.NoKernelFoundError, match="no kernel of that id"):
        lz.rms_norm(x, w, kernel="nobody")


def test_a_host_kernel_gets_contiguous_copies():
    """Where the row wants contiguous tensors, the plan copies and the binding carries it out."""

    @lz.register_kernel(
        "activation.swiglu", "tests.contiguous", supported_dtypes=["float32"], priority=0, requires_contiguous=True
    )
    def kernel(gate, up):
        assert gate.is_contiguous() and up.is_contiguous()
        return F.silu(gate) * up

    gate, up = torch.randn(6, 4).t(), torch.randn(4, 6)
    close(lz.swiglu(gate, up, kernel="tests.contiguous"), F.silu(gate) * up)
    with lz.policy(strict_mode=True), pytest.raises(lz.NoKernelFoundError):
        lz.swiglu(gate, up, kernel="tests.contiguous")


def test_prepare():
    x, w = torch.randn(2, 8), torch.randn(8)
    handle = lz.prepare("norm.rms", x, w, eps=1e-3)
    close(handle(x, w), F.rms_norm(x, (8,), w, 1e-3))
    longer = torch.randn(5, 8)
    close(handle(longer, w), F.rms_norm(longer, (8,), w, 1e-3))
    with pytest.raises(lz.InvalidRequestError):
        handle(torch.randn(2, 9), w)
    with pytest.raises(TypeError, match="no gradient"):
        handle(x.requires_grad_(), w)


# ---- gradients, modes, transforms

OPERATIONS = {
    "rms_norm": (lambda x, w: lz.rms_norm(x, w, 1e-3), [(3, 8), (8,)]),
    "layer_norm": (lambda x, w, b: lz.layer_norm(x, 8, w, b), [(3, 8), (8,), (8,)]),
    "linear": (lz.linear, [(3, 8), (5, 8), (5,)]) if hasattr(lz, "linear") else None,
    "swiglu": (lz.swiglu, [(3, 8), (3, 8)]),
    "attention": (lz.attention, [(1, 3, 4, 8), (1, 5, 2, 8), (1, 5, 2, 8)]),
    "attention BHSD": (lambda *t: lz.attention(*t, layout="BHSD"), [(1, 4, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8)]),
    "attention lse": (lambda *t: lz.attention(*t, return_lse=True)[0], [(1, 3, 4, 8), (1, 5, 2, 8), (1, 5, 2, 8)]),
    "fused_add_rms_norm": (lz.fused_add_rms_norm, [(3, 8), (3, 8), (8,)]),
}


@pytest.mark.trap("gradient")
@pytest.mark.parametrize("name", OPERATIONS)
def test_gradient(name):
    function, shapes = OPERATIONS[name]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(function, tensors)


def test_gradient_runs_the_best_kernel_that_carries_it():
    q = torch.randn(1, 3, 2, 8, requires_grad=True)
    assert lz.which("attention", q, q, q)["kernel_id"] == "torch.sdpa.cpu"
    assert lz.attention(q, q, q).requires_grad
    with pytest.raises(lz.NoKernelFoundError, match="requires_grad"):
        lz.attention(q, q, q, kernel="hwy.attention.standard.prefill")
    with pytest.raises(lz.InvalidRequestError, match="out"):
        lz.attention(q, q, q, out=torch.empty(1, 3, 2, 8))
    with torch.no_grad():
        assert not lz.attention(q, q, q).requires_grad


def test_no_gradient_through_what_has_no_derivative():
    logits = torch.randn(2, 16, requires_grad=True)
    token = lz.sample_topk(logits, 1, seed=0)
    assert torch.equal(token, logits.argmax(-1)) and not token.requires_grad


def test_parameters_are_tensors():
    w = torch.nn.Parameter(torch.randn(8), requires_grad=False)
    x = torch.randn(2, 8)
    close(lz.rms_norm(x, w), F.rms_norm(x, (8,), w, 1e-6))


def test_inference_mode():
    x, w = torch.randn(2, 8), torch.randn(8)
    with torch.inference_mode():
        got = lz.rms_norm(x, w)
        assert got.is_inference()
    close(got.clone(), F.rms_norm(x, (8,), w, 1e-6))


@pytest.mark.trap("transforms")
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_function_transforms(transform):
    x, w = torch.randn(3, 8), torch.randn(8)

    def ours(t):
        return lz.rms_norm(t, w, 1e-3)

    def theirs(t):
        return F.rms_norm(t, (8,), w, 1e-3)

    if transform == "grad":
        ours_of, theirs_of = (torch.func.grad(lambda t, f=f: f(t).sum()) for f in (ours, theirs))
        close(ours_of(x), theirs_of(x))
    elif transform == "jvp":
        for got, want in zip(*(torch.func.jvp(f, (x,), (torch.ones_like(x),)) for f in (ours, theirs)), strict=True):
            close(got, want)
    else:
        wrap = getattr(torch.func, transform)
        close(wrap(ours)(x), wrap(theirs)(x))


@pytest.mark.trap("forward mode")
def test_forward_mode():
    from torch.autograd import forward_ad

    x, w = torch.randn(3, 8), torch.randn(8)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        got = forward_ad.unpack_dual(lz.rms_norm(dual, w, 1e-3)).tangent
        want = forward_ad.unpack_dual(F.rms_norm(dual, (8,), w, 1e-3)).tangent
    close(got, want)


@pytest.mark.trap("autocast")
def test_autocast_casts_as_torch_does():
    x, w = torch.randn(2, 8), torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = lz.linear(x, w), F.linear(x, w)
    assert got.dtype == want.dtype == torch.bfloat16
    assert torch.equal(got, want)


@pytest.mark.trap("dispatch modes")
def test_dispatch_modes_see_the_call():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        names = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    x, w = torch.randn(2, 8), torch.randn(8)
    with Seen():
        got = lz.rms_norm(x, w)
    assert Seen.names
    close(got, F.rms_norm(x, (8,), w, 1e-6))


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode() as mode:
        x, w = torch.empty(2, 8), torch.empty(8)
        got = lz.rms_norm(x, w)
    assert isinstance(got, FakeTensor) and got.shape == (2, 8)
    inside = mode.from_tensor(torch.randn(2, 8))
    assert isinstance(lz.rms_norm(inside, None), FakeTensor)


@pytest.mark.trap("subclasses")
def test_subclasses_keep_their_class():
    class Tagged(torch.Tensor):
        pass

    x = torch.randn(2, 8).as_subclass(Tagged)
    got = lz.rms_norm(x, torch.randn(8))
    assert type(got) is Tagged


def test_a_lock_holds_where_only_the_reference_can_run():
    x = torch.randn(3, 8)
    with lz.policy(locks={"norm.rms": "hwy.norm.rms"}), pytest.raises(lz.InvalidRequestError, match="kernel"):
        torch.func.vmap(lambda t: lz.rms_norm(t, None))(x)


# ---- arrays of other libraries


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16], ids=lambda d: d.__name__)
def test_numpy(dtype):
    x, w = np.random.default_rng(0).normal(size=(2, 8)).astype(dtype), np.ones(8, dtype)
    got = lz.rms_norm(x, w)
    assert type(got) is np.ndarray and got.dtype == dtype
    close(torch.from_numpy(got), F.rms_norm(torch.from_numpy(x).double(), (8,), eps=1e-6), torch.from_numpy(x).dtype)
    x.flags.writeable = False
    assert np.array_equal(lz.rms_norm(x, w), got)
    assert lz.which("rms_norm", x, w)["kernel_id"] == lz.which("rms_norm", *map(torch.tensor, (x, w)))["kernel_id"]


def test_numpy_beside_torch_is_refused():
    with pytest.raises(TypeError, match="one kind"):
        lz.rms_norm(np.ones((2, 8), np.float32), torch.ones(8))


def test_other_arrays_come_back_as_their_kind():
    class Array:
        """An array of some library that speaks DLPack and the array API."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __array_namespace__(self):
            class Namespace:
                @staticmethod
                def from_dlpack(tensor):
                    return Array(tensor)

            return Namespace

    x = torch.randn(2, 8)
    got = lz.rms_norm(Array(x), None)
    assert type(got) is Array
    close(got.tensor, F.rms_norm(x, (8,), eps=1e-6))


# ---- refusals


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ([1.0, 2.0], "list"),
        ("text", "str"),
        (3, "int"),
        (lambda: torch.randn(2, 8).to_sparse(), "sparse"),
        (lambda: torch.empty(2, 8, device="meta"), "meta"),
    ],
    ids=["list", "str", "int", "sparse", "meta"],
)
def test_wrong_kinds_say_what_is_wanted(value, got):
    value = value() if callable(value) else value
    with pytest.raises(TypeError, match="rms_norm: input.*wanted.*" + got) as caught:
        lz.rms_norm(value, None)
    assert isinstance(caught.value, lz.InvalidRequestError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: lz.rms_norm(x, torch.randn(7)), ValueError, "weight.*hidden = 8.*7"),
        (lambda x: lz.rms_norm(x, torch.randn(8), "tiny"), TypeError, "eps.*a number.*str"),
        (lambda x: lz.rms_norm(x, None, 1e-6, 3), TypeError, "positional"),
        (lambda x: lz.rms_norm(x, None, epsilon=1), TypeError, "epsilon"),
        (lambda x: lz.rms_norm(x, input=x), TypeError, "two values"),
        (lambda x: lz.rms_norm(x.int(), None), ValueError, "input.*int32"),
        (lambda x: lz.rms_norm(x.cfloat(), None), ValueError, "input.*complex64"),
        (lambda x: lz.geglu(x, x, approximate="fast"), ValueError, "approximate.*none.*fast"),
        (lambda x: lz.attention(x, x, x), ValueError, "query"),
        (lambda x: lz.attention(*[torch.randn(1, 2, 2, 8)] * 3, layout="SBHD"), ValueError, "layout.*BSHD"),
        (lambda x: lz.attention(*[torch.randn(1, 2, 2, 8)] * 3, causal=1), TypeError, "causal.*True or False"),
        (lambda x: lz.rms_norm(), ValueError, "input"),
    ],
    ids=range(12),
)
def test_wrong_arguments_say_what_is_wanted(call, error, text):
    with pytest.raises(error, match=text):
        call(torch.randn(2, 8))


def test_errors_carry_their_parts():
    with pytest.raises(lz.InvalidRequestError) as caught:
        lz.rms_norm(torch.randn(2, 8), torch.randn(7))
    assert "weight" in caught.value.field and "8" in caught.value.wanted and "7" in caught.value.got


# ---- threads


def test_many_threads():
    from concurrent.futures import ThreadPoolExecutor

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for rows in range(1, 30):
            x = torch.randn(rows, 32, generator=generator)
            close(lz.rms_norm(x, None), F.rms_norm(x, (32,), eps=1e-6))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_out_has_memory_of_its_own():
    x, w = torch.randn(4, 8), torch.ones(8)
    shared = torch.randn(100)
    with torch.no_grad():
        for given, out in ((x, x), (shared[:32].view(4, 8), shared[4:36].view(4, 8))):
            with pytest.raises(lz.InvalidRequestError, match="memory of its own"):
                lz.rms_norm(given, w, out=out)
        both = torch.empty(4, 8)
        with pytest.raises(lz.InvalidRequestError, match="memory of its own"):
            lz.fused_add_rms_norm(x, x.clone(), w, out=(both, both))
        with pytest.raises(TypeError, match="wanted 1 tensor"):
            lz.rms_norm(x, w, out=(both, both))


@pytest.mark.trap("negative views")
def test_negated_views_keep_their_sign():
    negated = torch.randn(4, 8, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    with torch.no_grad():
        torch.testing.assert_close(
            lz.rms_norm(negated, torch.ones(8)), lz.rms_norm(negated.resolve_neg(), torch.ones(8))
        )


def test_a_prepared_call_refuses_keywords():
    x, w = torch.randn(4, 8), torch.ones(8)
    with torch.no_grad():
        prepared = lz.prepare(lz.rms_norm, x, w)
        with pytest.raises(TypeError, match="by position"):
            prepared(x, weight=w)


def test_invalid_indices_are_not_hidden_by_a_fallback():
    x, cos, sin = torch.randn(1, 2, 2, 8), torch.randn(3, 8), torch.randn(3, 8)
    ids = torch.tensor([[0, -1]], dtype=torch.int32)
    with torch.no_grad(), pytest.raises(lz.KernelExecutionError, match="index"):
        lz.rope(x, cos, sin, position_ids=ids, layout="BSHD")


def test_what_a_fallback_writes_is_told():
    @lz.register_kernel("convolution.causal_conv1d", "tests.path.fails", supported_dtypes=["float32"], priority=100)
    def fails(input, weight, state, bias, activation):
        raise lz.KernelRefusedError("not today")

    x, weight, state = torch.randn(1, 2, 3), torch.randn(3, 4), torch.zeros(1, 3, 4)
    before = state._version
    with torch.no_grad(), lz.policy(fallback_enabled=True):
        lz.causal_conv1d(x, weight, state)
    assert torch.equal(state[0, :, 2:], x[0].T) and state._version > before


def test_what_is_written_has_memory_of_its_own():
    def call(x, state, weight):
        with torch.no_grad():
            return lz.causal_conv1d(x, weight, state)

    x, weight, shared = torch.randn(1, 2, 3), torch.randn(3, 4), torch.randn(64)
    with pytest.raises(lz.InvalidRequestError, match="state: wanted memory of its own.*input"):
        call(shared[:6].view(1, 2, 3), shared[4:16].view(1, 3, 4), weight)
    with pytest.raises(lz.InvalidRequestError, match="state: wanted memory for each element"):
        call(x, shared.as_strided((1, 3, 4), (8, 2, 1)), weight)
    states = torch.randn(1, 3, 2, 4)  # interleaved, as keys and values in one memory
    assert torch.isfinite(call(x, states[:, :, 0], states[0, :, 1])).all()
