"""Small models of real Transformers classes with random weights, and inputs for them."""

import dataclasses

import torch

VOCABULARY, LENGTH = 256, 12
# Relative L2 error of logits. In bf16 it is measured against f32, relative to the model's own error.
F32_ERROR = 2e-5
BF16_RATIO = 1.25
PADDINGS = (None, "left", "right")
_ENCODER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_PLAIN = _ENCODER | {"vocab_size": VOCABULARY}
_GROUPED = _PLAIN | {"num_key_value_heads": 2}
_WHISPER_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_TWO_STACKS = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": VOCABULARY,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GROUPED_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
_GROUPED_EXPERTS |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1}
_GPTJ = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64}
_SHARED = {"shared_expert_intermediate_size": 32}


@dataclasses.dataclass(frozen=True)
class Family:
    """A model family. `inputs`: "ids" of a decoder, "tokens" of an encoder, "pairs" of both, "sound" or "image"."""

    name: str
    config: str
    model: str
    arguments: dict
    inputs: str = "ids"

    @property
    def generates(self):
        return self.inputs in ("ids", "pairs", "sound")

    def build(self, dtype=torch.float32):
        """Returns the model in evaluation mode; its weights are the same each time."""
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.arguments)
        model = getattr(transformers, self.model)(config).eval()
        return as_trained(model).to(dtype)

    def example(self, dtype=torch.float32, padding=None):
        """Returns arguments of a forward; with `padding` "left" or "right" two rows of different length."""
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(3, VOCABULARY - 3, (2, LENGTH), generator=generator)
        if self.inputs == "image":
            return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator).to(dtype)}
        if self.inputs == "sound":
            return {
                "input_features": torch.randn(2, 80, 100, generator=generator).to(dtype),
                "decoder_input_ids": ids,
            }
        given = {"input_ids": ids}
        if padding:
            mask = torch.ones_like(ids)
            mask[0, slice(0, 4) if padding == "left" else slice(LENGTH - 4, LENGTH)] = 0
            given["attention_mask"] = mask
        if self.inputs == "pairs":
            given["decoder_input_ids"] = ids.flip(1)
        return given


FAMILIES = [
    Family("llama", "LlamaConfig", "LlamaForCausalLM", _GROUPED),
    Family("qwen2", "Qwen2Config", "Qwen2ForCausalLM", _GROUPED),
    Family("qwen3", "Qwen3Config", "Qwen3ForCausalLM", _GROUPED | {"head_dim": 16}),
    Family("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", _GROUPED | _EXPERTS | {"head_dim": 16}),
    Family("qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM", _GROUPED | _EXPERTS | _SHARED),
    Family("mistral", "MistralConfig", "MistralForCausalLM", _GROUPED | {"sliding_window": 8}),
    Family("mixtral", "MixtralConfig", "MixtralForCausalLM", _GROUPED | {"num_local_experts": 4}),
    Family("olmoe", "OlmoeConfig", "OlmoeForCausalLM", _GROUPED | _EXPERTS | {"num_experts": 8, "eos_token_id": 1}),
    Family("gemma2", "Gemma2Config", "Gemma2ForCausalLM", _GROUPED | {"head_dim": 16, "sliding_window": 8}),
    Family("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", _GROUPED | {"head_dim": 16, "sliding_window": 8}),
    Family("phi3", "Phi3Config", "Phi3ForCausalLM", _GROUPED | {"pad_token_id": 0}),
    Family(
        "gpt2",
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
    ),
    Family("gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", _PLAIN),
    Family(
        "opt",
        "OPTConfig",
        "OPTForCausalLM",
        {
            "hidden_size": 64,
            "ffn_dim": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            "word_embed_proj_dim": 64,
        },
    ),
    Family(
        "falcon",
        "FalconConfig",
        "FalconForCausalLM",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCABULARY},
    ),
    Family(
        "falcon_new",
        "FalconConfig",
        "FalconForCausalLM",
        {name: value for name, value in _PLAIN.items() if name != "intermediate_size"}
        | {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),
    Family("gptj", "GPTJConfig", "GPTJForCausalLM", _GPTJ | {"rotary_dim": 8}),
    Family("codegen", "CodeGenConfig", "CodeGenForCausalLM", _GPTJ | {"n_head": 8, "rotary_dim": 8, "n_ctx": 64}),
    Family(
        "bloom",
        "BloomConfig",
        "BloomForCausalLM",
        {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
    ),
    Family("cohere", "CohereConfig", "CohereForCausalLM", _GROUPED),
    Family("olmo2", "Olmo2Config", "Olmo2ForCausalLM", _GROUPED),
    Family("olmo", "OlmoConfig", "OlmoForCausalLM", _GROUPED | {"clip_qkv": 2.0}),
    Family("nemotron", "NemotronConfig", "NemotronForCausalLM", _GROUPED | {"head_dim": 16}),
    Family("bitnet", "BitNetConfig", "BitNetForCausalLM", _GROUPED | {"bos_token_id": 1, "eos_token_id": 2}),
    Family("granite", "GraniteConfig", "GraniteForCausalLM", _GROUPED),
    Family(
        "deepseek_v3",
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        _PLAIN
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
    Family("dots1", "Dots1Config", "Dots1ForCausalLM", _GROUPED | _GROUPED_EXPERTS | {"head_dim": 16}),
    Family("phimoe", "PhimoeConfig", "PhimoeForCausalLM", _GROUPED | {"num_local_experts": 4}),
    Family(
        "ernie4_5_moe",
        "Ernie4_5_MoeConfig",
        "Ernie4_5_MoeForCausalLM",
        _GROUPED | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    ),
    Family(
        "gpt_oss",
        "GptOssConfig",
        "GptOssForCausalLM",
        _GROUPED | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    Family(
        "qwen3_next",
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        _GROUPED
        | _EXPERTS
        | _SHARED
        | {
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    Family("bert", "BertConfig", "BertModel", _PLAIN, "tokens"),
    Family("roberta", "RobertaConfig", "RobertaModel", _PLAIN, "tokens"),
    Family(
        "distilbert",
        "DistilBertConfig",
        "DistilBertModel",
        {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY},
        "tokens",
    ),
    Family("modernbert", "ModernBertConfig", "ModernBertModel", _PLAIN | {"pad_token_id": 0}, "tokens"),
    Family(
        "t5",
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
        },
        "pairs",
    ),
    Family("bart", "BartConfig", "BartForConditionalGeneration", _TWO_STACKS, "pairs"),
    Family(
        "whisper",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        _TWO_STACKS | _WHISPER_TOKENS | {"max_source_positions": 50},
        "sound",
    ),
    Family("vit", "ViTConfig", "ViTModel", _ENCODER | {"image_size": 32, "patch_size": 8}, "image"),
    Family("clip", "CLIPVisionConfig", "CLIPVisionModel", _ENCODER | {"image_size": 32, "patch_size": 8}, "image"),
    Family(
        "siglip", "SiglipVisionConfig", "SiglipVisionModel", _ENCODER | {"image_size": 32, "patch_size": 8}, "image"
    ),
]


def as_trained(model):
    """Changes weights that are constant at initialization: norms away from one, biases from zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def paddings_of(family):
    return PADDINGS if family.inputs in ("ids", "tokens") else PADDINGS[:1]


def first_output(model, example):
    """Returns logits or hidden states of all rows that are not padding."""
    with torch.inference_mode():
        rows = model(**example)[0]
    mask = example.get("attention_mask")
    return rows if mask is None else rows[mask.bool()]


def error(actual, expected):
    """Returns the relative L2 distance."""
    difference = actual.double() - expected.double()
    return float(difference.norm() / expected.double().norm())
