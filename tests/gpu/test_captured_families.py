"""Captured steps of decoders with other layers than Llama's, on a device: the model's own tokens, by graphs."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "Phi3": {},
    "Olmo2": {},
    "Glm": {"head_dim": 64},
    "Starcoder2": {"sliding_window": None},
    "StableLm": {},
    "Cohere": {},
    "Qwen3": {"head_dim": 64},
}


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_tokens(family, cache):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family])
    theirs = getattr(transformers, f"{family}ForCausalLM")(config).to("cuda").eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 8)
    ours = copy.deepcopy(theirs)
    report = lz.kernelize(ours, quiet=True)
    ids = torch.arange(3, 43, device="cuda").view(2, 20)
    options = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False, "cache_implementation": cache}
    for _ in range(2):
        assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, disable_compile=True, **options))
    entry = report.replaced["decoder"]
    assert not entry.get("not_captured") and entry["captured"] >= 20, report


def test_the_report_says_why_not():
    config = transformers.MistralConfig(**SIZES | {"sliding_window": 8})
    ours = transformers.MistralForCausalLM(config).to("cuda").eval()
    report = lz.kernelize(ours, quiet=True)
    ours.generate(torch.arange(3, 23, device="cuda")[None], max_new_tokens=4)
    assert "its steps are not captured: has layers with a sliding window" in str(report)
