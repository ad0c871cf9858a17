"""lz.compile and lz.dry_run: what a model becomes, told as data; a dry run changes nothing."""

import pytest
import torch

transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.errors import InvalidRequestError  # noqa: E402

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
IDS = torch.arange(3, 15)[None]


@pytest.fixture
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def bloom():
    config = transformers.BloomConfig(hidden_size=64, n_layer=1, n_head=4, vocab_size=128)
    model = transformers.BloomForCausalLM(config).eval()
    torch.nn.init.zeros_(model.transformer.h[0].self_attention.dense.weight)  # nothing tells where it stands
    return model


def logits(model):
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def test_a_decoder_becomes_one_program(llama):
    expected = logits(llama)
    plan = lz.compile(llama)
    assert plan.block == "block.decoder" and set(plan.phases) == {"prefill", "decode"}
    counts = {row["operation"]: row["count"] for row in plan.phases["decode"]}
    assert counts["attention"] == 3 and counts["linear"] == 21 and counts["fused_add_rms_norm"] == 6
    torch.testing.assert_close(logits(llama), expected, rtol=1e-4, atol=1e-5)
    assert lz.unkernelize(llama) and torch.equal(logits(llama), expected)


def test_memory_is_told(llama):
    plan = lz.dry_run(llama)
    own = sum(parameter.nbytes for parameter in llama.parameters())
    assert plan.memory["parameters"] == own and plan.memory["blocks"] == 0
    assert plan.memory["cache"] == 3 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head_dim, float32
    arena = plan.memory["arena"]
    assert arena["prefill"] == 128 * arena["decode"] and arena["decode"] >= 4 * 64 and "arena of decode" in str(plan)
    freed = lz.compile(llama, "int8", max_perplexity_ratio=2, release_originals=True)
    linears = freed.report.weights.released_bytes
    assert freed.memory["parameters"] == own - linears and 0 < freed.memory["blocks"] < linears


def test_each_step_is_explained_for_any_sizes(llama):
    plan = lz.compile(llama)
    steps = plan.steps(batch=2, length=5, past=7)
    attention = next(i for i, step in enumerate(steps) if step["operation"] == "attention")
    report = plan.explain(attention, batch=2, length=5, past=7)
    assert report["kernel_id"] == steps[attention]["kernel_id"]
    assert all(c["reasons"] for c in report["candidates"] if not c["admissible"])
    with pytest.raises(InvalidRequestError):
        plan.explain(10**6)


def test_the_plan_follows_the_policy(llama):
    plan = lz.compile(llama)
    with lz.policy(locks={"norm.rms": "ref.norm.rms"}):
        assert plan.steps()[0] == {"operation": "rms_norm", "kernel_id": "ref.norm.rms"}
    assert plan.steps()[0]["kernel_id"] != "ref.norm.rms"


def test_a_dry_run_changes_nothing(llama):
    expected, members = logits(llama), set(llama.__dict__)
    plan = lz.dry_run(llama, "int8", max_perplexity_ratio=2)
    assert plan.block == "block.decoder" and plan.report.weights.layers == 22
    assert {row["operation"] for row in plan.phases["decode"]} >= {"linear_gguf", "attention"}
    assert set(llama.__dict__) == members and torch.equal(logits(llama), expected)
    compiled = lz.compile(llama)
    assert lz.dry_run(llama).report is compiled.report  # and of one that is compiled, that one
    assert lz.unkernelize(llama)


def test_what_is_no_program_says_why(bloom):
    plan = lz.compile(bloom)
    assert plan.block is None and not plan.phases and "decoder" in plan.report.left
    with pytest.raises(InvalidRequestError, match="layer 0: its weights are zeros"):
        plan.steps()


def test_reads_well(llama):
    text = str(lz.compile(llama))
    assert "decode (batch 1, 1 tokens, 128 before), block.decoder:" in text and "x attention" in text
