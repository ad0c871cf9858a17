"""Kernels from Python: what a registered function gets, which calls it is for, and that registering can be undone."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import backends  # noqa: E402

X, W = torch.ones(2, 8), torch.ones(8)


def test_register_kernel():
    @lz.register_kernel("norm.rms", "tests.register", supported_dtypes=[torch.float32], priority=0)
    def kernel(input, weight, eps):
        return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps) + 1

    want = torch.nn.functional.rms_norm(X, (8,), W, 1e-3) + 1
    torch.testing.assert_close(lz.rms_norm(X, W, 1e-3, kernel="tests.register"), want)
    # What the function does not take, and what was not stated, is unsupported.
    for call in (lambda: lz.rms_norm(X, W, weight_offset=1.0, kernel="tests.register"),
                 lambda: lz.rms_norm(X.double(), W.double(), kernel="tests.register")):  # fmt: skip
        with pytest.raises(lz.NoKernelFoundError):
            call()


def test_register_kernel_gets_its_layout():
    seen = []

    @lz.register_kernel(
        "attention.standard.prefill",
        "tests.layout",
        supported_dtypes=["float32"],
        supports_causal=True,
        max_head_dim=64,
        priority=0,
    )
    def kernel(query, key, value, causal, scale):
        seen.append(query.shape)
        return torch.nn.functional.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (query, key, value)), is_causal=causal, scale=scale
        ).transpose(1, 2)

    q = torch.randn(1, 5, 2, 8)
    want = lz.attention(q, q, q)
    torch.testing.assert_close(lz.attention(q, q, q, kernel="tests.layout"), want)
    t = q.transpose(1, 2)
    got = lz.attention(t, t, t, layout="BHSD", kernel="tests.layout")
    torch.testing.assert_close(got, want.transpose(1, 2))
    assert seen == [(1, 5, 2, 8)] * 2


def test_register_kernel_refuses_what_it_cannot_mean():
    with pytest.raises(lz.UnknownNameError):
        lz.register_kernel("no.such", "tests.x", supported_dtypes=["float32"])(lambda input: input)
    with pytest.raises(TypeError, match="nonsense"):
        lz.register_kernel("norm.rms", "tests.x", supported_dtypes=["float32"])(lambda nonsense: nonsense)
    with pytest.raises(TypeError, match="got q$"):
        lz.register_kernel("attention.standard.prefill", "tests.x", supported_dtypes=["float32"])(lambda q, query: q)
    with pytest.raises(lz.ConfigError, match="float33"):
        lz.register_kernel("norm.rms", "tests.x", supported_dtypes=["float33"])(lambda input: input)
    with pytest.raises(lz.LayerZeroError, match="hwy.norm.rms"):
        lz.register_kernel("norm.rms", "hwy.norm.rms", supported_dtypes=["float32"])(lambda input: input)


def test_register_kernel_takes_the_usual_names_of_attention():
    @lz.register_kernel(
        operation="attention.causal",
        kernel_id="my_org.custom_attention",
        platform="any",
        supported_dtypes=[torch.float16, torch.float32],
        max_head_dim=128,
        priority=5,
    )
    def my_custom_attention(q, k, v, scale=None, causal=True):
        assert causal is True and scale == 0.25
        return torch.nn.functional.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, scale=scale
        ).transpose(1, 2)

    q = torch.randn(1, 5, 2, 8)
    got = lz.attention(q, q, q, scale=0.25, layout="BSHD", kernel="my_org.custom_attention")
    torch.testing.assert_close(got, lz.attention(q, q, q, scale=0.25, layout="BSHD"))
    with pytest.raises(lz.NoKernelFoundError):
        lz.attention(q, q, q, causal=False, layout="BSHD", kernel="my_org.custom_attention")


def test_register_kernel_says_the_layout_that_it_gives():
    seen = []

    @lz.register_kernel(
        "attention.standard.prefill",
        "tests.layouts",
        supported_dtypes=["float32"],
        requires_layouts=("BHSD",),
        max_head_dim=64,
        priority=0,
    )
    def kernel(query, layout, **others):
        seen.append((layout, tuple(query.shape), others["key"].shape == query.shape))
        return query

    q = torch.randn(1, 5, 2, 8)
    assert torch.equal(lz.attention(q, q, q, causal=False, layout="BSHD", kernel="tests.layouts"), q)
    t = q.transpose(1, 2)
    assert torch.equal(lz.attention(t, t, t, causal=False, layout="BHSD", kernel="tests.layouts"), t)
    assert seen == [("BHSD", (1, 2, 5, 8), True)] * 2
    with pytest.raises(TypeError, match="got layout"):  # the operation has none
        lz.register_kernel("norm.rms", "tests.layouts", supported_dtypes=["float32"])(lambda input, layout: input)


# ---- dtypes


def reasons(kernel_id, *tensors, **params):
    return [(r.code, r.field) for r in lz.validate(kernel_id, *tensors, **params)[1]]


def test_supported_dtypes_are_those_of_every_floating_tensor():
    @lz.register_kernel("norm.rms", "tests.dtypes", supported_dtypes=["bfloat16"], priority=0)
    def kernel(input, weight, eps):
        return input

    low, weight = X.bfloat16(), W.bfloat16()
    assert reasons("tests.dtypes", low, weight) == reasons("tests.dtypes", low) == []
    assert reasons("tests.dtypes", low, W) == [("DTYPE_UNSUPPORTED", "weight.dtype")]
    with pytest.raises(lz.NoKernelFoundError, match=r"weight.dtype: wants one of .*bfloat16, got float32"):
        lz.rms_norm(low, W, kernel="tests.dtypes")
    assert reasons("tests.dtypes", X, weight) == [("DTYPE_UNSUPPORTED", "dtype")]


def test_tensors_that_are_not_floating_keep_their_dtypes():
    @lz.register_kernel(
        "attention.standard.prefill", "tests.masks", supported_dtypes=["float16"], max_head_dim=64, priority=0
    )
    def kernel(query, key, value, attn_mask):
        return query

    q = torch.ones(1, 4, 2, 8, dtype=torch.float16)
    mask = torch.ones(1, 2, 4, 4)
    assert reasons("tests.masks", q, q, q, attn_mask=mask.bool()) == []
    assert reasons("tests.masks", q, q, q, attn_mask=mask.half()) == []
    assert reasons("tests.masks", q, q, q, attn_mask=mask) == [("DTYPE_UNSUPPORTED", "attn_mask.dtype")]


def test_a_constraint_says_otherwise_for_one_tensor():
    rule = {"field": "cos.dtype", "relation": "in", "set": ["float32"]}

    @lz.register_kernel("posenc.rope", "tests.tables", supported_dtypes=["bfloat16"], constraints=[rule], priority=0)
    def kernel(input, cos, sin):
        return input

    x, table = torch.ones(1, 3, 2, 8, dtype=torch.bfloat16), torch.ones(3, 4)
    assert reasons("tests.tables", x, table, table) == []
    low = table.bfloat16()
    assert reasons("tests.tables", x, low, low) == [("DTYPE_UNSUPPORTED", "cos.dtype")]


def test_dtypes_that_the_contract_fixes_are_the_contracts():
    """The scales of merged attention are float32 in a call of any dtype."""

    @lz.register_kernel("attention.merge", "tests.merge", supported_dtypes=["bfloat16"], priority=0)
    def kernel(v_a, s_a, v_b, s_b):
        return v_a, s_a

    v, s = torch.ones(1, 2, 4, dtype=torch.bfloat16), torch.ones(1, 2)
    assert reasons("tests.merge", v, s, v, s) == []


def test_floating_tensors_beside_a_first_one_of_integers_are_named_too():
    def kernel(input, weight):
        return weight[input]

    ids, table = torch.tensor([1]), torch.ones(4, 2)
    with pytest.raises(lz.InvalidRequestError, match=r"supported_dtypes: wanted the floating dtypes of weight too"):
        lz.register_kernel("embedding.lookup", "tests.rows", supported_dtypes=["int64"], priority=0)(kernel)
    lz.register_kernel("embedding.lookup", "tests.rows", supported_dtypes=["int64", "float32"], priority=0)(kernel)
    assert reasons("tests.rows", ids, table) == []
    assert reasons("tests.rows", ids, table.half()) == [("DTYPE_UNSUPPORTED", "weight.dtype")]


# ---- undoing


def register(kernel_id="tests.undone", **facts):
    @lz.register_kernel("norm.rms", kernel_id, supported_dtypes=["float32"], **facts)
    def kernel(input, weight):
        return input + 1

    return kernel


def known(kernel_id="tests.undone"):
    return kernel_id in {k.kernel_id for k in lz.list_kernels("norm.rms")}


def test_unregister_kernel():
    before = lz.which("rms_norm", X, W)
    libraries, kernels = lz.doctor().libraries, lz.doctor().counters.kernels
    for _ in range(2):  # its id is free again
        register(priority=99)
        assert known() and lz.which("rms_norm", X, W)["kernel_id"] == "tests.undone"
        torch.testing.assert_close(lz.rms_norm(X, W), X + 1)
        assert lz.doctor().libraries.tests.kernels == 1
        prepared = lz.prepare("norm.rms", X, W)
        assert lz.unregister_kernel("norm.rms", "tests.undone") is None
        assert not known() and lz.which("rms_norm", X, W) == before
        torch.testing.assert_close(lz.rms_norm(X, W), X)
        torch.testing.assert_close(prepared(X, W), X)
    with pytest.raises(lz.NoKernelFoundError, match="no kernel of that id"):
        lz.rms_norm(X, W, kernel="tests.undone")
    assert lz.doctor().libraries == libraries and lz.doctor().counters.kernels == kernels


def test_a_kernel_of_grouped_heads_is_undone_in_both_operations():
    @lz.register_kernel(
        "attention.standard.prefill",
        "tests.undone",
        supported_dtypes=["float32"],
        supports_gqa=True,
        max_head_dim=64,
        priority=0,
    )
    def kernel(query, key, value):
        return query

    def operations():
        return {i for k in lz.list_kernels("attention") if k.kernel_id == "tests.undone" for i in k.operations}

    assert operations() == {"attention.standard.prefill", "attention.gqa.prefill"}
    lz.unregister_kernel("attention.standard.prefill", "tests.undone")
    assert operations() == set()


def test_only_what_was_registered_from_python_can_be_undone():
    for kernel_id in ("hwy.norm.rms", "torch.rms_norm", "nobody"):
        with pytest.raises(
            lz.UnknownNameError, match=f"a kernel of norm.rms that register_kernel made, got '{kernel_id}'"
        ):
            lz.unregister_kernel("norm.rms", kernel_id)
    assert known("hwy.norm.rms") and known("torch.rms_norm")


def test_a_registration_that_is_refused_leaves_nothing():
    before = backends.functions()
    with pytest.raises(lz.ConfigError, match="no_such_fact"):
        register(no_such_fact=1)
    assert not known() and backends.functions() == before
    register()
    with pytest.raises(lz.ConfigError, match="registered already"):
        register()
    torch.testing.assert_close(lz.rms_norm(X, W, kernel="tests.undone"), X + 1)


def test_a_kernel_does_not_take_the_place_of_a_library():
    before = lz.doctor().libraries.torch
    register("torch.of_ours", priority=0)
    register("mine.first", priority=0)
    register("mine.second", priority=0)
    found = lz.doctor().libraries
    assert found.torch == before and found.mine.kernels == 2 and found.mine.operations == ["norm.rms"]


def test_tests_leave_no_kernels():
    """The fixture of conftest.py: nothing of the tests above is left."""
    assert not [k.kernel_id for k in lz.list_kernels() if k.adapter.startswith("layerzero.register_kernel")]
