"""kernelize(weights=) on the device: blocks made there, products of few and of many rows, captured steps."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers.run import weights  # noqa: E402

SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2}


def llama(dtype):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=1000, num_hidden_layers=2, max_position_embeddings=2048, **SIZES)
    return transformers.LlamaForCausalLM(config).to("cuda", dtype).eval()


def with_the_values(model, kind):
    """A copy whose linear layers have the values that the blocks mean."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, torch.nn.Linear):
            make, format = (weights.to_q8_0, "q8_0") if kind == "int8" else (weights.to_q4_1, "q4_1")
            rows = make(module.weight.detach())
            values = lz.dequantize_gguf(rows, module.in_features, format=format)
            module.weight.data = values.to(module.weight.dtype)
    return twin


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("release", [False, True])
def test_logits_are_those_of_the_blocks(kind, release, dtype):
    model = llama(dtype)
    exact = with_the_values(model.float(), kind).double()
    model = model.to(dtype)
    report = lz.kernelize(model, weights=kind, max_perplexity_ratio=2, release_originals=release)
    assert report.weights.layers == 15 and "device" in report.weights.why_not_kept
    for rows in (1, 12, 64):  # by the kernels of few rows, and by values that are made for the call
        ids = torch.arange(3, 3 + rows, device="cuda")[None]
        with torch.inference_mode():
            ours, want = model(ids).logits.double(), exact(ids).logits
        assert (ours - want).norm() <= 3e-2 * want.norm(), rows


@pytest.mark.parametrize("kind", ["int8", "int4", "bf16"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_steps_are_captured(kind, cache):
    model = llama(torch.bfloat16)
    eager = copy.deepcopy(model)
    report = lz.kernelize(model, weights=kind, max_perplexity_ratio=2)
    lz.kernelize(eager, weights=kind, max_perplexity_ratio=2)
    ids = torch.arange(3, 23, device="cuda")[None]
    options = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    out = model.generate(ids, cache_implementation=cache, output_logits=True, return_dict_in_generate=True, **options)
    entry = report.replaced["decoder"]
    assert not entry.get("not_captured"), entry
    assert entry.get("captured", 0) > 10, entry
    with torch.inference_mode():  # the logits of each captured step next to those of the whole text at once
        whole = eager(out.sequences[:, :-1]).logits[:, ids.shape[1] - 1 :].double()
    steps = torch.stack(out.logits, 1).double()
    assert (steps - whole).norm() <= 3e-2 * whole.norm()


def test_a_write_into_a_parameter_takes_the_parameter_again():
    model = llama(torch.bfloat16)
    lz.kernelize(model, weights="int8", max_perplexity_ratio=2)
    ids = torch.arange(3, 15, device="cuda")[None]
    with torch.inference_mode():
        before = model(ids).logits
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    with torch.inference_mode():
        after = model(ids).logits
    assert (after - 2 * before).norm() <= 3e-2 * after.norm()
