"""A tiny Llama as a GGUF file, whole or without some of its tensors."""

import gguf
import numpy as np

HIDDEN, INNER, HEADS, VOCABULARY, LAYERS = 32, 64, 4, 64, 2


def tensors():
    """Every tensor of the model by its name in the file."""
    random = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (HIDDEN, HIDDEN)
        shapes |= {f"blk.{layer}.{name}.weight": (INNER, HIDDEN) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{layer}.ffn_down.weight"] = (HIDDEN, INNER)
        shapes |= {f"blk.{layer}.{name}.weight": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write(path, without=lambda name: False):
    """Writes the file, leaving out each tensor that `without` names; gives the path."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCABULARY)
    tokens = ["<unk>", "<s>", "</s>", *(f"▁w{i}" for i in range(VOCABULARY - 3))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(VOCABULARY)])
    writer.add_token_types([2, 3, 3, *([1] * (VOCABULARY - 3))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in tensors().items():
        if not without(name):
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
