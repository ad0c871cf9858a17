"""Every reason code, provoked through the public API by the rule that raises it, and not raised without its cause."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402

CODES = {reason["code"] for reason in json.loads(_layerzero.reason_codes())}


def qkv(**of_query: Any) -> tuple[torch.Tensor, ...]:
    """One head group, head size 8, 3 queries and 5 keys."""
    sizes = {"b": 1, "s": 3, "h": 2} | of_query
    query = torch.ones(sizes["b"], sizes["s"], sizes["h"], 8)
    return query, torch.ones(sizes["b"], 5, 2, 8), torch.ones(sizes["b"], 5, 2, 8)


def strided() -> tuple[torch.Tensor, ...]:
    return torch.ones(1, 3, 2, 16)[..., ::2], *qkv()[1:]


def unaligned() -> tuple[torch.Tensor, ...]:
    return torch.ones(49)[1:].view(1, 3, 2, 8), *qkv()[1:]


def expanded() -> tuple[torch.Tensor, ...]:
    _, key, value = qkv(b=2)
    return torch.ones(1, 3, 2, 8).expand(2, 3, 2, 8), key, value


def with_gradient() -> tuple[torch.Tensor, ...]:
    return torch.ones(1, 3, 2, 8, requires_grad=True), *qkv()[1:]


def constraint(field: str, relation: str, value: Any) -> dict[str, Any]:
    return {"constraints": [{"field": field, "relation": relation, "operand": value}]}


@dataclasses.dataclass(frozen=True)
class Rule:
    """A kernel with `facts` in place of some of TAKES refuses the call; one with TAKES and `control` takes it."""

    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    call: Callable[[], tuple[torch.Tensor, ...]] = qkv
    given: dict[str, Any] = dataclasses.field(default_factory=dict)
    operation: str = "attention.standard.prefill"
    device: str | None = None
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    control: dict[str, Any] = dataclasses.field(default_factory=dict)


GPU = {"platform": "cuda", "min_sm": 75}
TAKES = {"supported_dtypes": ["float32"], "max_head_dim": 256, "supports_causal": True, "supports_gqa": True}
RULES = {
    "PLATFORM_MISMATCH": Rule(GPU),
    "DEVICE_CAPABILITY_UNSUPPORTED": Rule({"cpu_isa": ["amx_bf16"]}, device="zen4"),
    "SM_TOO_OLD": Rule(GPU | {"min_sm": 80}, device="t4"),
    "SM_TOO_NEW": Rule(GPU | {"max_sm": 90}, device="b200"),
    "GPU_GENERATION_UNSUPPORTED": Rule(GPU | {"supported_generations": ["hopper"]}, device="a100"),
    "TENSOR_CORE_GEN_UNSUPPORTED": Rule(GPU | {"requires_tensor_core_gen": 4}, device="a100"),
    "INSTRUCTION_SET_MISMATCH": Rule(GPU | {"instruction_set": "tcgen05"}, device="rtx5090"),
    "DRIVER_VERSION_UNSUPPORTED": Rule(GPU | {"min_driver_version": "999.0"}, device="h100"),
    "DTYPE_UNSUPPORTED": Rule({"supported_dtypes": ["float16"]}),
    "HEAD_DIM_INVALID": Rule({"min_head_dim": 16}),
    "HEAD_DIM_ALIGNMENT": Rule({"head_dim_multiple": 16}),
    "HEAD_DIM_TOO_LARGE": Rule({"max_head_dim": 4}),
    "SEQ_TOO_LONG": Rule({"max_seq_len": 4}),
    "GQA_UNSUPPORTED": Rule(constraint("group", "==", 1), lambda: qkv(h=6), operation="attention.gqa.prefill"),
    "GQA_HEADS_MISMATCH": Rule({"gqa_groups": [1, 4]}, lambda: qkv(h=6), operation="attention.gqa.prefill"),
    "ATTN_MASK_UNSUPPORTED": Rule(
        given={"attn_mask": torch.ones(3, 5, dtype=torch.bool)}, control={"accepts": ["attn_mask"]}
    ),
    "STRIDE_LAST_DIM": Rule({"requires_last_dim_stride1": True}, strided, policy={"strict_mode": True}),
    "NOT_CONTIGUOUS": Rule(
        {"requires_contiguous": True}, strided, policy={"allow_adaptation": False}
    ),  # proves: allow_adaptation
    "TRANSFORM_NOT_ALLOWED": Rule(
        {"requires_contiguous": True}, strided, policy={"strict_mode": True}
    ),  # proves: strict_mode
    "CUDA_GRAPH_UNSAFE": Rule(constraint("device.supports_graphs", "==", True), device="zen4"),
    "NON_DETERMINISTIC": Rule(policy={"deterministic": True}, control={"deterministic": True}),  # proves: deterministic
    "GRAD_UNSUPPORTED": Rule(call=with_gradient, control={"supports_grad": True}),
    "CONSTRAINT_FAILED": Rule(constraint("b * s_q", "<=", 2)),
    "SHAPE_UNSUPPORTED": Rule(constraint("b", ">=", 2)),
    "CUDA_GRID_DIM_EXCEEDED": Rule(
        GPU | {"grid_layout": {"x": "1", "y": "batch"}}, lambda: qkv(b=65536), device="h100"
    ),
    "CUDA_BLOCK_LIMIT_EXCEEDED": Rule(
        GPU | {"grid_layout": {"x": "1", "blocks_per_batch_head": 1 << 20}}, lambda: qkv(b=1024), device="h100"
    ),
    "LAYOUT_UNSUPPORTED": Rule(constraint("query.broadcast", "==", 0), expanded),
    "DROPOUT_UNSUPPORTED": Rule(given={"dropout_p": 0.5}, control={"accepts": ["dropout_p"]}),
    "SCALE_UNSUPPORTED": Rule({"supports_scale": False}, given={"scale": 0.5}, control={"supports_scale": True}),
    "ARGUMENT_UNSUPPORTED": Rule(given={"window": 2}, control={"accepts": ["window"]}),
    "ALIGNMENT": Rule({"requires_aligned": {"query": 16}}, unaligned),
    "TP_SIZE_EXCEEDED": Rule({"tp_invariance": {"max_tp_size": 2}}, policy={"tp": {"size": 4}}),  # proves: tp.size
    "TP_INVARIANCE_REQUIRED": Rule(  # proves: tp.require_tp_invariant
        policy={"tp": {"require_tp_invariant": True}}, control={"tp_invariance": {"is_tp_invariant": True}}
    ),
    "REDUCTION_ORDER_MISMATCH": Rule(  # proves: tp.reduction_order
        policy={"tp": {"reduction_order": "tree"}}, control={"tp_invariance": {"reduction_order": "tree"}}
    ),
    "POLICY_DENIED": Rule(policy={"rules": [{"deny": ["tests.rea*"]}]}, control={"kernel_id": "tests.other"}),
}


def codes_of(rule: Rule, facts: dict[str, Any]) -> set[str]:
    """The codes that a kernel with these facts is refused with."""
    facts = TAKES | facts
    if "gqa" not in rule.operation:
        del facts["supports_gqa"]
    kernel_id = facts.pop("kernel_id", "tests.reason")

    @lz.register_kernel(rule.operation, kernel_id, **facts)
    def kernel(query, key, value):
        raise AssertionError("explain runs nothing")

    try:
        device = {"device": rule.device} if rule.device else {}
        with lz.policy(**rule.policy):
            found = lz.explain("attention", *rule.call(), **rule.given, **device)
        candidate = next(c for c in found.candidates if c.kernel_id == kernel_id)
        return {reason.code for reason in candidate.reasons}
    finally:
        lz.unregister_kernel(rule.operation, kernel_id)


@pytest.mark.parametrize("code", RULES)
def test_a_rule_of_a_kernel_raises_its_code(code):
    rule = RULES[code]
    assert code in codes_of(rule, rule.facts)
    on_device = GPU if rule.device and "platform" in rule.facts else {}
    assert codes_of(rule, on_device | rule.control) == set(), "raised without its cause"


# ---- codes of the rows that LayerZero ships


def shipped(operation: str, *tensors: torch.Tensor, kernel: str, **given: Any) -> set[str]:
    found = lz.explain(operation, *tensors, **given)
    return {r.code for c in found.candidates if c.kernel_id == kernel for r in c.reasons}


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def prefill(cache: torch.dtype) -> set[str]:
    pages = torch.ones(3, 16, 4, 64, dtype=cache)
    tables = i32(0, 5), i32(0, 2), i32(2, 0), i32(5)
    return shipped("paged_prefill_attention", torch.ones(5, 4, 64), pages, pages, *tables, kernel="torch.varlen")


def own_cuda(device: str) -> set[str]:
    if "cuda.norm.rms" not in {k.kernel_id for k in lz.list_kernels("rms_norm")}:
        pytest.skip("this build has no CUDA kernels")
    return shipped("rms_norm", torch.ones(2, 8), torch.ones(8), kernel="cuda.norm.rms", device=device)


def gguf(packed: torch.Tensor | None, activations: str) -> set[str]:
    given = {"format": "q4_0", "activations": activations} | ({} if packed is None else {"packed": packed})
    found = lz.explain("linear_gguf", torch.ones(1, 64), torch.zeros(16, 36, dtype=torch.uint8), **given)
    return {r.code for c in found.candidates if c.kernel_id.startswith("hwy.") for r in c.reasons}


def quantized(**scale: torch.Tensor) -> set[str]:
    return shipped("quantize", torch.ones(4, 64), kernel="hwy.quantize.int8", dtype="int8", **scale)


def within(headroom_mb: int) -> set[str]:
    with lz.policy(memory_headroom_mb=headroom_mb):  # proves: memory_headroom_mb
        found = lz.explain("sample_topp", torch.ones(8, 1 << 20), 0.5)
    return {r.code for c in found.candidates for r in c.reasons}


PACKED = torch.zeros(1, 576, dtype=torch.uint8)
SHIPPED = {  # what provokes the code, and what does not
    "NOT_INSTALLED": (
        lambda: shipped("rms_norm", torch.ones(2, 8), torch.ones(8), kernel="zentorch.rms_norm"),
        lambda: shipped("rms_norm", torch.ones(2, 8), torch.ones(8), kernel="zentorch.rms_norm", device="zen4"),
    ),
    "NOT_BUILT": (lambda: own_cuda("t4"), lambda: own_cuda("h100")),
    "KV_CACHE_DTYPE_MISMATCH": (lambda: prefill(torch.float16), lambda: prefill(torch.float32)),
    "PACKED_WEIGHTS_REQUIRED": (lambda: gguf(None, "int8"), lambda: gguf(PACKED, "int8")),
    "QUANT_FORMAT_UNSUPPORTED": (
        lambda: shipped("quantize", torch.ones(4, 64), kernel="hwy.quantize.int8", dtype="fp8_e4m3"),
        lambda: quantized(scale=torch.ones(1)),
    ),
    "QUANT_SCALES_REQUIRED": (quantized, lambda: quantized(scale=torch.ones(1))),
    "QUANT_GRANULARITY": (lambda: quantized(scale=torch.ones(4, 1)), lambda: quantized(scale=torch.ones(1))),
    "JIT_DISABLED": (
        lambda: shipped("rms_norm", torch.ones(2, 8), kernel="inductor.norm.rms"),
        lambda: shipped("rms_norm", torch.ones(2, 8), kernel="torch.rms_norm"),
    ),
    "MEMORY_HEADROOM_EXCEEDED": (lambda: within(10**9), lambda: within(0)),
}


@pytest.mark.parametrize("code", SHIPPED)
def test_a_rule_of_a_shipped_kernel_raises_its_code(code):
    provoked, control = SHIPPED[code]
    assert code in provoked()
    assert code not in control(), "raised without its cause"


# ---- codes that no rule of a kernel raises, with the test that provokes each

ELSEWHERE = {
    "BACKEND_ERROR": "test_health.py::test_a_breaker_opens_and_is_tried_again",
    "PLAN_BUCKET_MISS": "test_tables.py::test_a_call_outside_is_a_miss_and_still_runs",
    "QUARANTINED": "test_health.py::test_a_lie_never_reaches_the_caller",
    "BACKEND_IMPORT_FAILED": "test_backends.py::test_a_library_that_does_not_work_is_refused_with_its_error",
    "CAPABILITIES_SCHEMA_MISMATCH": "test_backends.py::test_a_backend_that_the_engine_refuses_is_listed_with_the_reason",
    "KV_CACHE_LAYOUT_MISMATCH": "test_kv_cache.py::test_refusals_say_what_was_wanted",
    "KV_STRATEGY_UNSUPPORTED": "test_kv_cache.py::test_other_strategies_are_refused_with_the_reason",
    "OFFSETS_UNSUPPORTED": "test_tokenizer_identity.py::test_offsets_only_where_the_library_gives_them",
    "VOCAB_HASH_MISMATCH": "test_tokenizer_identity.py::test_a_changed_part_is_the_reason",
    "MERGES_HASH_MISMATCH": "test_tokenizer_identity.py::test_a_changed_part_is_the_reason",
    "NORMALIZER_MISMATCH": "test_tokenizer_identity.py::test_a_changed_part_is_the_reason",
    "PRETOKENIZER_MISMATCH": "test_tokenizer_identity.py::test_a_changed_part_is_the_reason",
    "ADDED_TOKENS_MISMATCH": "test_tokenizer_identity.py::test_a_changed_part_is_the_reason",
    "SPECIAL_TOKENS_MISMATCH": "test_tokenizer_identity.py::test_a_changed_part_is_the_reason",
    "TOKENIZER_ID_MISMATCH": "test_tokenizer_identity.py::test_an_unknown_identity_is_a_mismatch",
}


def test_every_code_is_provoked_once():
    provoked = [*RULES, *SHIPPED, *ELSEWHERE]
    assert sorted(provoked) == sorted(CODES)


@pytest.mark.parametrize("code", ELSEWHERE)
def test_the_test_of_a_code_is_there(code):
    file, _, test = ELSEWHERE[code].partition("::")
    text = (Path(__file__).parent / file).read_text()
    assert f"def {test}(" in text and code in text
