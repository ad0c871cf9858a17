"""Models within a model, each with a configuration and a choice of attention of its own."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import probe  # noqa: E402
from small_llama import TOLERANCE, error  # noqa: E402

PART = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def clip(attention):
    torch.manual_seed(0)
    text = transformers.CLIPTextConfig(vocab_size=131, max_position_embeddings=32, eos_token_id=2, **PART)
    vision = transformers.CLIPVisionConfig(image_size=32, patch_size=8, **PART)
    config = transformers.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict())
    return transformers.CLIPModel._from_config(config, attn_implementation=attention).eval()


def outputs_of(model):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 131, (2, 9), generator=generator)
    pixels = torch.randn(2, 3, 32, 32, generator=generator)
    with torch.inference_mode():
        result = model(input_ids=ids, pixel_values=pixels)
    return torch.cat([result.text_embeds, result.image_embeds])


def attentions_of(model):
    configs = model.config, model.config.text_config, model.config.vision_config
    return [config._attn_implementation for config in configs]


@pytest.mark.parametrize("given", ["sdpa", {"": "sdpa", "text_config": "eager", "vision_config": "sdpa"}])
def test_each_part_gets_its_own_attention_back(given):
    model = clip(given)
    before, expected = attentions_of(model), outputs_of(model)
    report = lz.kernelize(model)
    assert error(outputs_of(model), expected) <= TOLERANCE
    ours = {"sdpa": "layerzero", "eager": "layerzero_eager"}
    assert attentions_of(model) == [ours[name] for name in before]
    programs = (
        2 if "eager" in before else 1
    )  # the text's layers are given is_causal, which SDPA reads and eager attention does not
    assert report.replaced["encoder"]["calls"] == programs
    assert report.replaced["attention"]["calls"] == 4  # two of them to compare the program of the layers for images
    lz.unkernelize(model)
    assert attentions_of(model) == before
    assert torch.equal(outputs_of(model), expected)


def test_a_part_with_an_attention_of_its_own_keeps_it():
    model = clip({"": "sdpa", "text_config": "flex_attention", "vision_config": "sdpa"})
    before = attentions_of(model)
    report = lz.kernelize(model)
    assert report.left["attention"] == "the model was given attn_implementation='flex_attention'"
    assert attentions_of(model) == before
    lz.unkernelize(model)
    assert attentions_of(model) == before


def test_a_part_that_does_not_support_sdpa_is_tried():
    model = clip("sdpa")
    assert probe.why_untested(model) is None
    model.vision_model._supports_sdpa = False
    assert "does not support sdpa" in probe.why_untested(model)


def test_a_part_with_a_configuration_of_its_own_kind_is_reached():
    """T5's stacks have copies of the model's configuration, of the same class."""
    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=131)
    model = transformers.T5Model(config).eval()
    configs = [model.config, model.encoder.config, model.decoder.config]
    assert len(set(map(id, configs))) == 3
    lz.kernelize(model)
    assert [config._attn_implementation for config in configs] == ["layerzero"] * 3
    lz.unkernelize(model)
    assert [config._attn_implementation for config in configs] == ["sdpa"] * 3
