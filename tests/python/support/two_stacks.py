"""Small models of an encoder and a decoder."""

import torch
import transformers
from layerzero.models.families import as_trained

_SIZES = {
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "init_std": 0.3,
}
_SOUND = {"max_source_positions": 20, "num_mel_bins": 8, "max_target_positions": 64, "suppress_tokens": None}
_T5 = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "vocab_size": 131,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
# Each has something in its layers that no other one has.
MODELS = {
    "Bart": _SIZES,  # norms behind the sums
    "MBart": _SIZES,  # norms before
    "Pegasus": _SIZES,
    "M2M100": _SIZES | {"activation_function": "relu"},
    "Marian": _SIZES | {"activation_function": "silu"},
    "Whisper": _SIZES | _SOUND,  # queries times a factor, no biases of keys; its encoder wants one length
    "T5": _T5,  # a bias of scores by distance, which the first layer hands on
    "UMT5": _T5 | {"feed_forward_proj": "gated-gelu"},  # one of each layer's own
}
OLD = transformers.__version__.startswith("5.17.")
if OLD:  # attention of its decoder is not causal there
    del MODELS["UMT5"]
CLASSES = {"Marian": "MarianMTModel"}


def build(name, dtype=torch.float32, seed=5):
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    model = getattr(transformers, CLASSES.get(name, f"{name}ForConditionalGeneration"))(config).eval()
    return as_trained(model).to(dtype)
