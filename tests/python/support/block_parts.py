"""Small models of several models: images or sound beside text."""

import torch
import transformers
from layerzero.models.families import as_trained

IMAGE = 130  # the token that stands for a part of an image
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
_VISION = _SIZES | {"image_size": 28, "patch_size": 14, "initializer_range": 0.3}
_TEXT = _SIZES | {
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
_GEMMA = _TEXT | {"head_dim": 16, "model_type": "gemma"}
_GEMMA3 = _TEXT | {"head_dim": 16, "query_pre_attn_scalar": 10, "sliding_window": 64}
_SIGLIP = _VISION | {"model_type": "siglip_vision_model"}
_WORDS = _SIZES | {"vocab_size": 131, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_TURNED = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}


def _qwen2_vl():
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "patch_size": 14}
    return transformers.Qwen2VLConfig(text_config=_TEXT | {"rope_parameters": _TURNED}, vision_config=vision)


def _vision_encoder_decoder():
    bert = transformers.BertConfig(**_WORDS, is_decoder=True, add_cross_attention=True)
    return transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(transformers.ViTConfig(**_VISION), bert)


def _of(kind, vision, text, **further):
    config = getattr(transformers, f"{kind}Config")
    return lambda: config(vision_config=vision, text_config=text, **further)


_INTERNVL = _VISION | {"image_size": [28, 28], "patch_size": [14, 14], "layer_scale_init_value": 0.5}
_CLIP = _VISION | {"model_type": "clip_vision_model"}
_LLAMA = _TEXT | {"model_type": "llama"}
# Of InternVL's tower: later versions always ask, as LLaVA does.
_ASKED = set() if transformers.__version__.startswith("5.17.") else {"attentions or hidden states are asked for"}
# Name -> (class, its configuration, programs of encoders and of decoders, what the programs step aside for).
MODELS = {
    "llava": (
        "LlavaForConditionalGeneration",
        _of("Llava", _CLIP, _LLAMA, image_token_index=IMAGE, vision_feature_layer=-1),
        (1, 1),
        {"attentions or hidden states are asked for"},  # of the tower: the model always asks
    ),
    "idefics3": (
        "Idefics3ForConditionalGeneration",
        _of("Idefics3", _VISION, _LLAMA, image_token_id=IMAGE),
        (1, 1),
        {},
    ),
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        _of("Gemma3", _SIGLIP, _GEMMA3, mm_tokens_per_image=4, image_token_index=IMAGE),
        (1, 1),
        {"the mask shows keys that are outside of the layers' window"},  # parts of one image see each other
    ),
    "paligemma": (
        "PaliGemmaForConditionalGeneration",
        _of("PaliGemma", _SIGLIP, _GEMMA, projection_dim=64, image_token_index=IMAGE),
        (1, 1),
        {},
    ),
    "internvl": (  # factors of columns are the layer's own parameters
        "InternVLForConditionalGeneration",
        _of("InternVL", _INTERNVL, _LLAMA, image_token_id=IMAGE),
        (1, 1),
        _ASKED,
    ),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", _qwen2_vl, (0, 1), {}),
    "clip": ("CLIPModel", _of("CLIP", _VISION, _WORDS, projection_dim=32), (2, 0), {"is_causal is given"}),
    "siglip": ("SiglipModel", _of("Siglip", _VISION, _WORDS), (2, 0), {}),
    "vision encoder-decoder": ("VisionEncoderDecoderModel", _vision_encoder_decoder, (1, 1), {}),
    "wav2vec2": (
        "Wav2Vec2Model",
        lambda: transformers.Wav2Vec2Config(
            **_SIZES,
            conv_dim=(32, 32),
            conv_kernel=(10, 3),
            conv_stride=(5, 2),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        ),
        (1, 0),
        {},
    ),
}


def build(name, dtype=torch.float32, seed=5):
    kind, config, *_ = MODELS[name]
    torch.manual_seed(seed)
    return as_trained(getattr(transformers, kind)(config()).eval()).to(dtype)


def given(name, dtype=torch.float32):
    """Two texts, the first with padding, each about one image; or two sounds."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, IMAGE - 1, (2, 11), generator=generator)
    pixels = torch.randn(2, 3, 28, 28, generator=generator).to(dtype)
    if name == "wav2vec2":
        return {"input_values": torch.randn(2, 800, generator=generator).to(dtype)}
    if name == "vision encoder-decoder":
        return {"decoder_input_ids": ids, "pixel_values": pixels}
    if name in ("clip", "siglip"):
        return {"input_ids": ids, "pixel_values": pixels}
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    if name == "qwen2_vl":  # of text alone
        return {"input_ids": ids, "attention_mask": mask}
    ids[:, 4 : 5 if name in ("idefics3", "internvl") else 8] = IMAGE
    arguments = {
        "input_ids": ids,
        "attention_mask": mask,
        "pixel_values": pixels[:, None] if name == "idefics3" else pixels,
    }
    if name in ("gemma3", "paligemma"):
        arguments["token_type_ids"] = (ids == IMAGE).long()
    return arguments


def run(model, name):
    """The model's first output, without padding."""
    arguments = given(name, model.dtype)
    with torch.inference_mode():
        output = model(**arguments)
    if name in ("clip", "siglip"):
        return torch.cat([output.text_embeds, output.image_embeds])
    rows = next(value for value in output.values() if isinstance(value, torch.Tensor))
    mask = arguments.get("attention_mask")
    return rows if mask is None else rows[mask.bool()]


def programs_of(model):
    return [m.__dict__["_layerzero_decoder"] for m in model.modules() if "_layerzero_decoder" in m.__dict__]
