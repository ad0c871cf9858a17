"""Continuous batching of Transformers (`generate_batch`) over LayerZero's attention for packed sequences."""

import inspect

import torch
from transformers import AttentionInterface

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError

PREFIX = "paged|"
PAGED = f"{PREFIX}layerzero"
_ragged_attention = _layerzero.ops["ragged_attention"]


def has_prefix():
    """True where continuous batching puts "paged|" before an attention's name; later versions are recognised by their arguments."""
    return "paged|sdpa" in AttentionInterface().valid_keys()


def is_packed(arguments):
    """True in a call of continuous batching, by the arguments of an attention: where the cache is to be written, or read."""
    return arguments.get("write_index") is not None or arguments.get("block_table") is not None


# The cache writes to views of one storage, which a traced copy of the graph would not see.
@torch.compiler.disable
def paged_attention(module, query, key, value, cache, scaling, sliding_window, softcap, s_aux, arguments):
    """query (1, Hq, total_q, D), key and value (1, Hkv, total_q, D): the output (1, total_q, Hq, D).

    cache: None where the model's own code has written keys and values into it, and read all of them, as from 5.24 on.
    There is no mask: row i of a sequence sees the keys of the sequence up to its own, by cu_seq_lens_q and cu_seq_lens_k.
    """
    if arguments.get("block_table") is not None:
        raise InvalidRequestError("attention: block_table", "none", "a table", "set max_blocks_per_request=0")
    window = sliding_window or getattr(module, "sliding_window", None)
    key, value, offsets = _update(module, key, value, cache, arguments, window)
    out = _ragged_attention(
        query[0].transpose(0, 1),
        key,
        value,
        arguments["cu_seq_lens_q"].to(torch.int32),
        offsets.to(torch.int32),
        causal=True,
        scale=scaling,
        window=window,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.to(query.dtype),
    )
    return out.unsqueeze(0)


def _update(module, key, value, cache, arguments, window):
    """Keys and values (total_kv, Hkv, D) of all sequences, the new ones in the cache now, and their offsets."""
    if cache is None:
        return key[0].transpose(0, 1), value[0].transpose(0, 1), arguments["cu_seq_lens_k"]
    if "read_index" in inspect.signature(cache.update).parameters:
        indices = {name: arguments[name] for name in ("read_index", "write_index")}
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, **indices)
        offsets = arguments["cu_seq_lens_k"]
        if isinstance(offsets, dict):
            offsets = offsets["sliding_attention" if window else "full_attention"]
        return key, value, offsets
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=arguments)
    return key[0].transpose(0, 1), value[0].transpose(0, 1), arguments["cu_seq_lens_k"]


def init_continuous_batching(self, *args, **kwargs):
    """Takes the place of a model's method: that one accepts only attentions of Transformers, so it sees one of them.

    The batches are made later, for the attention that the model has then: without masks.
    """
    chosen = self.config._attn_implementation
    if chosen not in ("layerzero", "layerzero_eager"):
        return type(self).init_continuous_batching(self, *args, **kwargs)
    self.set_attn_implementation("sdpa")
    try:
        manager = type(self).init_continuous_batching(self, *args, **kwargs)
    except BaseException:
        self.set_attn_implementation(chosen)
        raise
    if self.config._attn_implementation == "sdpa":
        self.set_attn_implementation(chosen)
    else:  # it went on to flash attention, and goes back at its end
        manager._original_attn_impl = chosen
    return manager
