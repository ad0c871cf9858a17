"""Small models of families whose layers run as one program, beyond those of layerzero.models.families."""

import torch
import transformers
from layerzero.models.families import FAMILIES, as_trained

BY_NAME = {family.name: family for family in FAMILIES}
TOLERANCE = 2e-5  # relative L2 error of outputs in f32
GREEDY = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "disable_compile": True, "pad_token_id": 0}
WINDOW = 6
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_PLAIN = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
_GROUPED = _PLAIN | _TOKENS | {"num_key_value_heads": 2}
_SLIDING = _GROUPED | {"sliding_window": WINDOW}
_MIXED = _SLIDING | {"use_sliding_window": True, "max_window_layers": 1}  # the first layer sees everything
_GPT2 = {"vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.3} | _TOKENS
_OPT = _PLAIN | {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.3}
_EXPERTS = _GROUPED | {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_BLOOM = {"vocab_size": 131, "hidden_size": 96, "n_layer": 3, "n_head": 6, "initializer_range": 0.3} | _TOKENS
_GPT_OSS = {"head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2, "initializer_range": 0.1}
_CORRECTED = _GROUPED | {"num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
_CORRECTED |= {"routed_scaling_factor": 1.5, "initializer_range": 0.15}
_LATENT = _CORRECTED | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2}
_LATENT |= {"num_key_value_heads": 4, "n_shared_experts": 1, "kv_lora_rank": 24, "qk_rope_head_dim": 8}
_LATENT |= {"qk_nope_head_dim": 16, "v_head_dim": 12}
_GPTJ = {"vocab_size": 131, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.3}
_GPTJ |= _TOKENS
_FALCON = {name: value for name, value in (_PLAIN | _TOKENS).items() if name != "intermediate_size"}
_OPT = {name: value for name, value in _OPT.items() if name not in ("intermediate_size", "initializer_range")}

# Name -> (classes, arguments): each has something in its layers that no other one has.
DECODERS = {
    "mistral": ("Mistral", _SLIDING),
    "qwen2 mixed": ("Qwen2", _MIXED),
    "qwen3 mixed": ("Qwen3", _MIXED | {"head_dim": 16}),
    "phi3": ("Phi3", _SLIDING),
    "glm": ("Glm", _GROUPED | {"head_dim": 16}),
    "gemma": ("Gemma", _GROUPED | {"head_dim": 16}),
    "gemma2": ("Gemma2", _SLIDING | {"head_dim": 16, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 10}),
    "gemma3": ("Gemma3", _SLIDING | {"head_dim": 16, "query_pre_attn_scalar": 10}),
    "gpt2": ("GPT2", _GPT2),
    "opt": ("OPT", _OPT),
    "opt, norms behind": ("OPT", _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    "gpt_neox": ("GPTNeoX", _PLAIN | _TOKENS),
    "gpt_neox, sequential": ("GPTNeoX", _PLAIN | _TOKENS | {"use_parallel_residual": False}),
    "phi": ("Phi", _PLAIN | _TOKENS),
    "starcoder2": ("Starcoder2", _SLIDING),
    "cohere": ("Cohere", _GROUPED),
    "cohere2": ("Cohere2", _SLIDING | {"sliding_window_pattern": 2}),
    "olmo2": ("Olmo2", _GROUPED),
    "granite": ("Granite", _GROUPED | {"embedding_multiplier": 2.0, "residual_multiplier": 0.3}),
    "granite, embedding alone": ("Granite", _GROUPED | {"embedding_multiplier": 3.0}),
    "bert, causal": ("Bert", _PLAIN | {"is_decoder": True}),
    "mixtral": ("Mixtral", _SLIDING | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe, one dense layer": ("Qwen3Moe", _EXPERTS | {"head_dim": 16, "mlp_only_layers": [1]}),
    "qwen2_moe": ("Qwen2Moe", _EXPERTS | {"shared_expert_intermediate_size": 48, "norm_topk_prob": True}),
    "falcon": ("Falcon", _FALCON),  # calls torch's attention itself
    "falcon, sequential": ("Falcon", _FALCON | {"multi_query": False, "parallel_attn": False, "bias": True}),
    "bloom": ("Bloom", _BLOOM),  # attention of its own, with ALiBi
    "hunyuan": ("HunYuanDenseV1", _GROUPED | {"head_dim": 16}),  # heads are normalised behind their rotation
    "gpt_oss": ("GptOss", _SLIDING | _GPT_OSS),  # sinks, experts of transposed weights, a clamped gate
    "glm4_moe": (
        "Glm4Moe",
        _CORRECTED | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 2, "head_dim": 16},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        _LATENT | {"q_lora_rank": None, "head_dim": 8, "topk_method": "group_limited_greedy"},
    ),
    "deepseek_v3": ("DeepseekV3", _LATENT | {"q_lora_rank": 32}),
    "deepseek_v3, halves": ("DeepseekV3", _LATENT | {"q_lora_rank": 32, "rope_interleave": False, "v_head_dim": 24}),
    "minimax_m2": ("MiniMaxM2", _GROUPED | {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16}),
    "olmoe, every expert": ("Olmoe", _EXPERTS | {"num_experts_per_tok": 6}),
    "olmoe, clipped": ("Olmoe", _EXPERTS | {"clip_qkv": 2.0}),  # behind norms of all columns
    "olmo": ("Olmo", _GROUPED),  # norms without parameters
    "olmo, clipped": ("Olmo", _GROUPED | {"clip_qkv": 1.5}),
    "nemotron": ("Nemotron", _GROUPED | {"head_dim": 16}),  # one is added to the weights of LayerNorm
    "gptj": ("GPTJ", _GPTJ | {"rotary_dim": 8}),  # turned by rows of a buffer, attention of its own
    "codegen": (
        "CodeGen",
        _GPTJ | {"n_head": 8, "rotary_dim": 4, "n_ctx": 64},
    ),  # queries, values and keys in four groups
    "codegen, a group for each head": ("CodeGen", _GPTJ | {"rotary_dim": 8, "n_ctx": 64}),
    "falcon, new": (
        "Falcon",
        _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
    ),  # one key for two queries
    "falcon, new, one norm": (
        "Falcon",
        _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1},
    ),
    "phimoe": ("Phimoe", _GROUPED | {"num_local_experts": 5, "initializer_range": 0.15}),  # a sparse mixer chooses
    "ernie4_5_moe": ("Ernie4_5_Moe", _CORRECTED | {"moe_num_experts": 6, "moe_k": 2, "moe_layer_start_index": 1}),
    "dots1": ("Dots1", _LATENT | {"num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.1}),
    "bitnet": ("BitNet", _GROUPED),  # norms of what attention and MLP multiply with last
}
# Some of whose layers keep a state in place of keys and values.
_STATES = {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
_STATES |= {"linear_value_head_dim": 24, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_SHARED = _EXPERTS | {"shared_expert_intermediate_size": 48, "norm_topk_prob": True}
HYBRIDS = {
    "qwen3_next": ("Qwen3Next", _SHARED | _STATES),
    "qwen3_5": ("Qwen3_5", _GROUPED | _STATES),
    "qwen3_5, three taps": (
        "Qwen3_5",
        _GROUPED | _STATES | {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 3},
    ),
    "qwen3_5_moe": ("Qwen3_5Moe", _SHARED | _STATES),
    "olmo_hybrid": ("OlmoHybrid", _GROUPED | _STATES | {"linear_allow_neg_eigval": True}),
}
_MODELS = {"Bert": "BertLMHeadModel", "GPT2": "GPT2LMHeadModel"}
_CONFIGS = {"Gemma3": "Gemma3TextConfig", "Qwen3_5": "Qwen3_5TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig"}


def build(name, dtype=torch.float32):
    kind, arguments = (DECODERS | HYBRIDS)[name]
    config = getattr(transformers, _CONFIGS.get(kind, f"{kind}Config"))(**arguments)
    torch.manual_seed(5)
    model = getattr(transformers, _MODELS.get(kind, f"{kind}ForCausalLM"))(config).eval()
    for name, held in model.named_buffers():
        if "correction" in name:
            held.normal_(std=0.1)
    return as_trained(model).to(dtype)


def ids_of(batch=2, length=11):
    return torch.randint(3, 131, (batch, length), generator=torch.Generator().manual_seed(3))


def error(actual, expected):
    difference = actual.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def holder_of(model):
    """The module whose forward runs the program."""
    return next(module for module in model.modules() if "_layerzero_decoder" in module.__dict__)


def plan_of(model):
    return holder_of(model).__dict__["_layerzero_decoder"]
