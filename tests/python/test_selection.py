"""Schemas, contexts and the registry: the engine's own contracts and choices as objects."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import (  # noqa: E402
    OperationSchema,
    SelectionContext,
    SelectionContextBuilder,
    TensorSchema,
    inspection,
)
from layerzero.contracts import contracts  # noqa: E402

X, W = torch.ones(4, 8), torch.ones(8)
Q, K = torch.ones(2, 5, 8, 16), torch.ones(2, 7, 2, 16)
MOE = OperationSchema(
    "mine.moe.gate",
    inputs=(
        TensorSchema("tokens", ndim=2, dtype_constraint={torch.float32, "bfloat16"}, shape_vars=("n", "d")),
        TensorSchema("weight", shape_vars=("experts", "d")),
        TensorSchema("pairs", ndim=2, shape_vars=("_", "2"), required=False),
        TensorSchema("mask", shape_vars=("...", "experts"), required=False),
    ),
    outputs=(TensorSchema("gates", shape_vars=("n", "experts")),),
    params={"scale": float, "top": int, "exact": bool, "mode": str},
)


@pytest.fixture
def registry():
    return lz.KernelRegistry()


# ---- schemas of one's own


def test_a_call_that_fits_has_no_problems():
    tokens, weight = torch.ones(3, 8), torch.ones(6, 8)
    assert MOE.validate(tokens, weight) == []
    assert MOE.validate(tokens.bfloat16(), weight=weight, scale=2, top=1, exact=True, mode="x") == []
    assert MOE.validate(tokens, weight, None, torch.ones(2, 3, 6), scale=None) == []
    assert MOE.validate(tokens.numpy(), weight.numpy(), torch.ones(9, 2)) == []


@pytest.mark.parametrize(
    ("args", "params", "problems"),
    [
        ((), {}, ["tokens: wanted a tensor, got none", "weight: wanted a tensor, got none"]),
        (((3, 8), (6, 9)), {}, ["weight: wanted d = 8, got [6, 9]"]),
        (((3, 8, 1), (6, 8)), {}, ["tokens: wanted 2 axes, got [3, 8, 1]"]),
        (((3, 8), (6, 8), (4, 3)), {}, ["pairs: wanted 2 = 2, got [4, 3]"]),
        (((3, 8), (6, 8), None, ()), {}, ["mask: wanted 1 or more axes, got []"]),
        (((3, 8), (6, 8), None, (2, 5)), {}, ["mask: wanted experts = 6, got [2, 5]"]),
        (((3, 8), (6, 8), None, None, (1,)), {}, ["mine.moe.gate: wanted at most 4 tensors, got 5"]),
        (((3, 8), 0.5), {}, ["weight: wanted a tensor, got float; scalars are passed by name"]),
        (((3, 8), (6, 8)), {"tokens": X}, ["tokens: wanted it once, got it by place and by name"]),
        (((3, 8), (6, 8)), {"top": 1.5}, ["top: wanted int, got float"]),
        (((3, 8), (6, 8)), {"top": True}, ["top: wanted int, got bool"]),
        (((3, 8), (6, 8)), {"scale": "1"}, ["scale: wanted float, got str"]),
        (((3, 8), (6, 8)), {"exact": 1}, ["exact: wanted bool, got int"]),
        (
            ((3, 8), (6, 8)),
            {"topk": 1},
            [
                "topk: wanted one of tokens, weight, pairs, mask, scale, top, exact, mode, got an unknown name",
            ],
        ),
    ],
)
def test_each_mistake_is_said(args, params, problems):
    tensors = [torch.ones(a) if isinstance(a, tuple) else a for a in args]
    assert MOE.validate(*tensors, **params) == problems
    with pytest.raises(ValueError, match="mine.moe.gate: wanted a call that fits its schema") as error:
        SelectionContextBuilder(MOE).build(*tensors, **params)
    assert problems[0] in str(error.value)


def test_all_mistakes_are_said_at_once():
    problems = MOE.validate(torch.ones(3, 8).double(), torch.ones(6), top="2")
    assert problems == [
        "top: wanted int, got str",
        "tokens: wanted bfloat16, float32, got float64",
        "weight: wanted 2 axes, got [6]",
    ]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: TensorSchema("no name"), "name"),
        (lambda: TensorSchema("x", ndim=3, shape_vars=("a", "b")), "x: shape_vars: wanted 3 as ndim says, got 2"),
        (lambda: TensorSchema("x", dtype_constraint="float32"), "wanted a set of dtypes"),
        (lambda: OperationSchema("o", (TensorSchema("x"), TensorSchema("x")), (), {}), "wanted each name once, got x"),
        (lambda: OperationSchema("o", (TensorSchema("x"),), (), {"x": int}), "wanted each name once, got x"),
        (lambda: OperationSchema("o", (TensorSchema("x", shape_vars=("n / 2",)),), (), {}), "x: shape_vars"),
        (lambda: OperationSchema("o", (TensorSchema("x", shape_vars=("n", "...")),), (), {}), "x: shape_vars"),
    ],
)
def test_schemas_that_mean_nothing_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_schemas_are_values():
    assert TensorSchema("x", shape_vars=("a", "b")).ndim == 2
    assert TensorSchema("x", dtype_constraint=[torch.half]) == TensorSchema("x", dtype_constraint={"float16"})
    for other in (copy.deepcopy(MOE), pickle.loads(pickle.dumps(MOE))):
        assert other == MOE and hash(other) == hash(MOE)
    with pytest.raises(AttributeError):
        MOE.operation = "other"


def test_a_schema_belongs_to_its_registry(registry):
    registry.register_schema(MOE)
    registry.register_schema(copy.deepcopy(MOE))  # the same again
    assert registry.get_schema("mine.moe.gate") is MOE and lz.KernelRegistry().get_schema("mine.moe.gate") is None
    assert registry.get_candidates("mine.moe.gate") == [] and registry.get_fallback("mine.moe.gate") is None
    for taken in ("mine.moe.gate", "norm.rms", "rms_norm", "attention.causal"):
        with pytest.raises(ValueError, match=f"wanted one without a schema, got '{taken}'"):
            registry.register_schema(OperationSchema(taken, (TensorSchema("x"),), (), {}))
    assert registry.get_schema("norm.rms").inputs[0].name == "input"


def test_a_context_of_an_operation_that_only_a_schema_describes(registry):
    registry.register_schema(MOE)
    ctx = SelectionContextBuilder(MOE).build(torch.ones(3, 8), weight=torch.ones(6, 8), top=2)
    assert (ctx.op_id, ctx.dtype, ctx.strides) == ("mine.moe.gate", "float32", (8, 1))
    assert ctx.axes == {"n": 3, "d": 8, "experts": 6} and ctx.params == {"top": 2} and ctx.report is None
    with pytest.raises(lz.NoKernelFoundError, match="mine.moe.gate: LayerZero has no operation of this name"):
        registry.select(ctx)
    with pytest.raises(ValueError, match="device: wanted none"):
        SelectionContextBuilder(MOE).build(torch.ones(3, 8), torch.ones(6, 8), device="h100")


# ---- schemas of LayerZero's operations


def test_every_operation_has_a_schema(registry):
    for name, contract in contracts().items():
        tensors = [p for p in contract["params"] if p["kind"] == "tensor"]
        scalars = [p["name"] for p in contract["params"] if p["kind"] != "tensor"]
        for operation in (name, *(one["id"] for one in contract["operations"]), *contract["aliases"]):
            schema = registry.get_schema(operation)
            assert schema.operation == operation
            assert [(t.name, t.required) for t in schema.inputs] == [(p["name"], not p["optional"]) for p in tensors]
            assert [t.dtype_constraint for t in schema.inputs] == [set(p["dtypes"]) for p in tensors]
            assert [t.name for t in schema.outputs] == [o["name"] for o in contract["outputs"]]
            assert list(schema.params) == scalars + ["layout"] * bool(contract["layouts"])
            assert registry.get_schema(operation) is schema
    assert registry.get_schema("no.such") is None


def test_what_a_contract_says_of_shapes_and_dtypes(registry):
    query, *_, mask, _, _ = registry.get_schema("attention").inputs
    assert query == TensorSchema("query", 4, {"float64", "float32", "float16", "bfloat16"}, ("b", "s_q", "h_q", "d_qk"))
    assert (mask.ndim, mask.shape_vars, mask.required) == (None, (), False)  # it broadcasts
    norm = registry.get_schema("norm.rms")
    assert (norm.inputs[0].ndim, norm.inputs[0].shape_vars) == (None, ("...", "hidden"))
    assert norm.params == {"eps": float, "weight_offset": float, "normalized_shape": int}
    quantize = registry.get_schema("quantize")
    assert quantize.params["dtype"] is str and quantize.outputs[0].dtype_constraint == {
        "int8", "uint8", "float8_e4m3fn", "float8_e5m2",
    }  # fmt: skip
    mla = registry.get_schema("attention.mla.decode")
    assert [t.name for t in mla.inputs] == ["q_nope", "q_pe", "ckv", "kpe"]
    assert mla.inputs[2].shape_vars == ("kv_len", "1", "d_ckv") and mla.outputs[0].shape_vars == (
        "tokens",
        "h",
        "d_ckv",
    )


def test_the_engine_judges_the_calls_of_its_operations(registry):
    schema = registry.get_schema("attention")
    assert schema.validate(Q, K, K, causal=True, layout="BSHD") == []
    assert schema.validate(Q.transpose(1, 2), K.transpose(1, 2), K.transpose(1, 2), layout="BHSD") == []
    assert schema.validate(Q, K, K, attn_mask=torch.ones(7, dtype=torch.bool)) == []
    (problem,) = schema.validate(Q, K)
    assert problem.startswith("attention: missing argument value: wanted a tensor [b, s_kv, h_kv, d_v]")
    (problem,) = schema.validate(Q, K, K[:1], layout="BSHD")
    assert problem.startswith("attention: value: wanted [b, s_kv, h_kv, d_v] with b = 2")
    (problem,) = schema.validate(Q, K, K, causal=3, layout="BSHD")
    assert "causal: wanted True or False" in problem
    (problem,) = schema.validate(Q, K, K, kernel="ref.attention.gqa.prefill")
    assert problem.startswith("kernel: wanted one of query, key")
    (problem,) = registry.get_schema("layer_norm").validate(X, W)
    assert "normalized_shape" in problem
    assert registry.get_schema("layer_norm").validate(X, W, normalized_shape=8) == []
    assert registry.get_schema("norm.rms").validate(X.numpy(), W.numpy()) == []


def test_a_call_of_another_operation_of_the_contract_does_not_fit(registry):
    schema = registry.get_schema("attention.standard.decode")
    assert schema.validate(Q, K, K, layout="BSHD") == [
        "operation: wanted a call of attention.standard.decode, got one of attention.gqa.prefill"
    ]
    assert schema.validate(Q[:, :1], Q, Q, layout="BSHD") == []


def test_a_schema_of_ones_own_for_such_an_operation_holds_beside_its_contract():
    small = OperationSchema("norm.rms", (TensorSchema("input", ndim=2), TensorSchema("weight")), (), {"eps": float})
    ctx = SelectionContextBuilder(small).build(X, W, eps=1e-5)
    assert ctx.op_id == "norm.rms" and ctx.report is not None
    with pytest.raises(ValueError, match="input: wanted 2 axes"):
        SelectionContextBuilder(small).build(X[None], W)
    with pytest.raises(ValueError, match=r"rms_norm: weight: wanted \[hidden\]"):
        SelectionContextBuilder(small).build(X, W[:3])


# ---- contexts


def test_from_tensors():
    ctx = SelectionContext.from_tensors(Q, K, K, is_causal=True, layout_hint="BSHD")
    assert (ctx.op_id, ctx.dtype, ctx.strides) == ("attention.gqa.prefill", "float32", (640, 128, 16, 1))
    assert (ctx.batch_size, ctx.seq_len_q, ctx.seq_len_k, ctx.num_heads, ctx.num_kv_heads) == (2, 5, 7, 8, 2)
    assert (ctx.head_dim, ctx.enable_gqa, ctx.layout, ctx.is_causal, ctx.attn_mask_type) == (
        16, True, "BSHD", True, "none",
    )  # fmt: skip
    assert (ctx.requires_grad, ctx.is_cuda_graph_capturing, ctx.device.platform) == (False, False, "cpu")
    assert ctx.policy_hash == lz.explain("attention", Q, K, K, layout="BSHD").policy_hash
    q = Q.transpose(1, 2).clone().requires_grad_()
    mask = torch.zeros(5, 5)
    other = SelectionContext.from_tensors(q, q, q, layout="BHSD", attn_mask=mask)
    assert (other.layout, other.attn_mask_type, other.requires_grad, other.enable_gqa) == ("BHSD", "float", True, False)
    assert (other.seq_len_q, other.num_heads, other.is_causal) == (5, 8, False)
    assert SelectionContext.from_tensors(Q, Q, Q, attn_mask=mask.bool(), layout="BSHD").attn_mask_type == "bool"
    with pytest.raises(ValueError, match="v: wanted|value: wanted"):
        SelectionContext.from_tensors(Q, K, None)
    with pytest.raises(ValueError, match="is_causal: wanted one of"):
        SelectionContext.from_tensors(Q, K, K, is_causal=True, causal=True)


def test_facts_that_an_operation_does_not_have_are_none(registry):
    ctx = SelectionContextBuilder(registry.get_schema("rms_norm")).build(X, W)
    assert (ctx.op_id, ctx.axes["hidden"], ctx.dtype) == ("norm.rms", 8, "float32")
    assert (ctx.batch_size, ctx.head_dim, ctx.enable_gqa, ctx.layout, ctx.is_causal, ctx.attn_mask_type) == (None,) * 6


# ---- the registry


def test_select_is_what_a_call_runs(registry):
    ctx = SelectionContextBuilder(registry.get_schema("norm.rms")).build(X, W, eps=1e-3)
    kernel = registry.select(ctx)
    assert kernel.kernel_id == lz.which("rms_norm", X, W, 1e-3)["kernel_id"] and kernel.operation == "norm.rms"
    torch.testing.assert_close(kernel.impl(X, W, eps=1e-3), lz.rms_norm(X, W, 1e-3))
    with lz.policy(locks={"norm.rms": "torch.rms_norm"}):  # asked anew each time
        assert registry.select(ctx).kernel_id == "torch.rms_norm"
    with lz.policy(rules=[{"deny": ["*"]}], fallback_enabled=False), pytest.raises(lz.NoKernelFoundError) as error:
        registry.select(ctx)
    assert error.value.operation == "norm.rms"
    assert "POLICY_DENIED" in [reason.code for reason in error.value.failures["hwy.norm.rms"]]


def test_select_for_a_simulated_device(registry):
    half = Q.bfloat16()
    ctx = SelectionContext.from_tensors(half, half, half, layout="BSHD", device="h100")
    assert ctx.device.simulated and ctx.device.name == "h100"
    want = lz.explain("attention", half, half, half, layout="BSHD", device="h100").kernel_id
    assert registry.select(ctx).kernel_id == want
    again = SelectionContext.from_tensors(half, half, half, layout="BSHD", device=ctx.device)
    assert again.device == ctx.device and registry.select(again).kernel_id == want
    with pytest.raises(lz.UnknownNameError, match="h1000"):
        SelectionContext.from_tensors(half, half, half, layout="BSHD", device="h1000")


def test_an_alias_keeps_what_its_name_says(registry):
    with pytest.warns(DeprecationWarning, match="attention.full"):
        ctx = SelectionContextBuilder(registry.get_schema("attention.full")).build(Q, Q, Q, layout="BSHD")
    assert ctx.op_id == "attention.standard.prefill" and ctx.is_causal is False and ctx.params["causal"] is False
    assert registry.select(ctx).operation == "attention.standard.prefill"


def test_candidates_and_fallback(registry):
    of_all, of_one = registry.get_candidates("attention"), registry.get_candidates("attention.gqa.decode")
    assert {k.operation for k in of_one} == {"attention.gqa.decode"}
    assert {k.operation for k in of_all} == {o["id"] for o in contracts()["attention"]["operations"]}
    assert [k.to_dict() for k in of_all] == inspection.kernel_rows("attention")
    assert registry.get_candidates("no.such") == [] and registry.get_fallback("no.such") is None
    fallback = registry.get_fallback("attention.gqa.decode")
    report = lz.explain("attention", Q[:, :1], K, K, layout="BSHD")
    assert fallback.reference and fallback.kernel_id == report.plan.fallback
    torch.testing.assert_close(
        fallback.impl(Q[:, :1], K, K, layout="BSHD"), lz.attention(Q[:, :1], K, K, layout="BSHD")
    )
    with pytest.raises(ValueError, match=r"wanted one of attention.standard.decode.*, got 'attention'"):
        registry.get_fallback("attention")


def test_a_kernel_that_may_not_run_says_why(registry):
    kernel = next(k for k in registry.get_candidates("norm.rms") if k.kernel_id == "zentorch.rms_norm")
    with pytest.raises(lz.NoKernelFoundError) as error:
        kernel.impl(X, W)
    assert "NOT_INSTALLED" in [reason.code for reason in error.value.failures["zentorch.rms_norm"]]


def test_register_kernel(registry):
    @registry.register_kernel("norm.rms", "tests.registry", supported_dtypes=["float32"], priority=99)
    def kernel(input, weight):
        return input + 1

    other = lz.KernelRegistry()  # kernels are the process's
    assert "tests.registry" in [k.kernel_id for k in other.get_candidates("norm.rms")]
    ctx = SelectionContextBuilder(other.get_schema("norm.rms")).build(X, W)
    assert other.select(ctx).kernel_id == "tests.registry"
    torch.testing.assert_close(other.select(ctx).impl(X, W), X + 1)
    registry.register_schema(MOE)
    for operation in ("no.such", "mine.moe.gate"):
        with pytest.raises(ValueError, match=f"operation: wanted a known operation, got '{operation}'"):
            registry.register_kernel(operation, "tests.other", supported_dtypes=["float32"])
