"""A small Llama with random weights that a test can change, and how two results are compared."""

import torch
import transformers

# Relative L2 error of logits in f32. In bf16 it is measured against FP64, beside the model's own.
TOLERANCE = 2e-5
BF16_RATIO = 1.25
GREEDY = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "disable_compile": True}


def tiny(dtype=torch.float32, **changes):
    torch.manual_seed(5)
    settings = {
        "vocab_size": 131,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.to(dtype).eval()


def error(actual, expected):
    difference = actual.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def ids_of(batch=2, length=9):
    return torch.randint(3, 131, (batch, length), generator=torch.Generator().manual_seed(3))


def logits_of(model, ids=None):
    with torch.inference_mode():
        return model(ids_of() if ids is None else ids).logits


def plan_of(model):
    return model.model.__dict__["_layerzero_decoder"]
