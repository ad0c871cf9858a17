"""Whether a model only embeds, runs its layers and normalises, so that one forward of ours computes all of it."""

import dataclasses
from typing import Any

from torch import nn

from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.layers import Norm, Norms, Rope, Stack, Unknown
from layerzero.integrations.transformers.recognise import module as recognised
from layerzero.integrations.transformers.run.attention import EAGER
from layerzero.integrations.transformers.run.decoder import CAPTURING
from layerzero.integrations.transformers.run.layer_calls import why_not_called


def norm_after_layers(base: Any) -> Norm | None:
    """The norm after the layers of a base model; None if its last module is no norm."""
    try:
        found, gated = recognised.norm_of(base.norm) if structure.looks_like_norm(base.norm) else (None, False)
    except Unknown:
        return None
    return None if found is None or gated else dataclasses.replace(found, name="norm")


def why_not_whole(base: Any, stack: Stack) -> str | None:
    """None, or why the model's own code has to run around its layers, or why the operations cannot compute the layers."""
    if stack.cache is None or stack.name != "layers" or set(base._modules) != _PARTS:
        return "has other parts than embed_tokens, layers, norm and rotary_emb"
    if type(base.embed_tokens) is not nn.Embedding or base.embed_tokens.max_norm is not None:
        return "its embedding is not a plain torch.nn.Embedding"
    on_cpu = base.embed_tokens.weight.device.type not in CAPTURING
    found = norm_after_layers(base)
    if found is None or (on_cpu and found.operation != "rms_norm"):
        return "its last norm is no RMSNorm"
    config = base.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or (
        getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    ):
        return "has layers with a sliding window or another kind of attention"
    reason = why_not_called(stack, stack.attention == EAGER)  # eager attention is given a mask in each call
    if reason or not on_cpu:
        return reason
    return None if all(map(_is_llama_layer, stack.layers)) else "its layers are not those of a Llama"


_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}


def _is_llama_layer(layer):
    """Whether a layer is like Llama's, if `why_not_called` returned None for it."""
    own, parts = layer.attention, (layer.attention_norms, layer.mlp_norms)
    return (
        len(own.linears) == 3
        and not (own.query.whole or own.key.whole or own.query.behind or own.key.behind)
        and (own.query.norm is None) == (own.key.norm is None)
        and own.rope == Rope(False, own.query.size, own.query.size)
        and own.softcap is None
        and all(norms.before is not None and norms == Norms(before=norms.before) for norms in parts)
        and all(norm.operation == "rms_norm" for norm in layer.norms)
        and not layer.parallel
        and layer.factor == 1.0
        and layer.mlp.operation == "swiglu"
        and len(layer.mlp.linears) == 2
    )
