"""Continuous batching of Transformers (`generate_batch`) over LayerZero's attention.

If each request has one token in a step, attention reads the pages of the cache in place, by Transformers' block table. In
other steps Transformers gathers the keys of all requests, and attention runs over the packed sequences.
"""

import functools
import inspect
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError

PREFIX = "paged|"
NAMES = ("layerzero", "layerzero_eager")
PAGED = f"{PREFIX}layerzero"
_STEP = "_layerzero_step"  # in the __dict__ of a step's offsets
_ragged_attention = _layerzero.ops["ragged_attention"]
_paged_attention = _layerzero.ops["paged_attention"]
_kv_append_paged = _layerzero.ops["kv_append_paged"]


def has_prefix():
    """True for versions whose continuous batching puts "paged|" before an attention's name; in later versions arguments show it."""
    return "paged|sdpa" in AttentionInterface().valid_keys()


def is_packed(arguments):
    """True in a call of continuous batching: its arguments say where to write the cache, or where to read it."""
    return arguments.get("write_index") is not None or arguments.get("block_table") is not None


# The cache writes to views of one storage, which torch.compile would not see.
@torch.compiler.disable
def paged_attention(module, query, key, value, cache, scaling, sliding_window, softcap, s_aux, arguments):
    """query (1, Hq, total_q, D), key and value (1, Hkv, total_q, D): the output (1, total_q, Hq, D).

    cache: None if the model's own code has written and gathered keys and values already, as from 5.24 on. There is no mask: a row
    sees the keys of its sequence up to its own position, by cu_seq_lens_q and cu_seq_lens_k. With a block table (n, width) keys
    and values are those of n new tokens, which are written into the cache here.
    """
    window = sliding_window or getattr(module, "sliding_window", None)
    key, value, offsets = _update(module, key, value, cache, arguments, window)
    query = query[0].transpose(0, 1)
    options = {"scale": scaling, "window": window, "softcap": softcap}
    options["sinks"] = None if s_aux is None else s_aux.to(query.dtype)
    table = arguments.get("block_table")
    if table is not None:
        return _decode(query, key, value, offsets, table, arguments, options)
    rows = arguments["cu_seq_lens_q"].to(torch.int32), offsets.to(torch.int32)
    return _ragged_attention(query, key, value, *rows, causal=True, **options).unsqueeze(0)


def _decode(query, key, value, offsets, table, arguments, options):
    """Attention of one new token of each request: its key is stored in its page, then all keys are read where they are."""
    keys, values = _pages_of(arguments.get("k_cache"), arguments.get("v_cache"))
    step = _step_of(offsets, table, keys.shape[1])
    _kv_append_paged(keys, values, key, value, step.slots, layout="NHD")
    out = _paged_attention(query.unsqueeze(1), keys, values, step.table, step.lengths, **options)
    return out.transpose(0, 1)


def _pages_of(keys, values):
    """A layer's pages of keys and of values, (blocks, page size, Hkv, D) each, which share no memory.

    Transformers' views begin at the layer's first page and contain every page after it, in which keys and values alternate. Its
    table has the numbers of pages of keys, which are even.
    """
    if keys is None or values.storage_offset() - keys.storage_offset() != keys.stride(0):
        raise InvalidRequestError(
            "attention: block_table", "none", "a table, and another cache than known", "set max_blocks_per_request=0"
        )
    return keys[::2], values[::2]


class _Step(NamedTuple):
    """The tensors that all layers of a step share. If the version of the offsets changes, another step uses the same memory."""

    version: tuple[int, bool] | None
    lengths: torch.Tensor  # (n) int32 keys of each request, the new one included; 0 for padding
    table: torch.Tensor  # (n, width) int32
    slots: torch.Tensor  # (n) int32 where the new token is stored; -1 for padding


def _step_of(offsets, table, page):
    capturing = offsets.is_cuda and torch.cuda.is_current_stream_capturing()
    version = None if offsets.is_inference() else (offsets._version, capturing)  # such a tensor has no version
    step = offsets.__dict__.get(_STEP)
    if step is None or version is None or step.version != version:
        table = torch.div(table, 2, rounding_mode="floor")
        lengths = (offsets[1:] - offsets[:-1]).to(torch.int32)
        last = lengths - 1
        column = torch.div(last, page, rounding_mode="floor").clamp_(min=0)
        block = table.gather(1, column.long().unsqueeze(1)).squeeze(1)
        slots = torch.where(last >= 0, block * page + last - column * page, -1).to(torch.int32)
        step = offsets.__dict__[_STEP] = _Step(version, lengths, table, slots)
    return step


def _update(module, key, value, cache, arguments, window):
    """Writes new keys and values into the cache. Returns keys and values (total_kv, Hkv, D) of all sequences, and their offsets; with a
    block table only those of the new tokens."""
    if cache is not None and "read_index" in inspect.signature(cache.update).parameters:
        indices = {name: arguments[name] for name in ("read_index", "write_index")}
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, **indices)
        offsets = arguments["cu_seq_lens_k"]
        if isinstance(offsets, dict):
            offsets = offsets["sliding_attention" if window else "full_attention"]
        return key, value, offsets
    if cache is not None:
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=arguments)
    return key[0].transpose(0, 1), value[0].transpose(0, 1), arguments["cu_seq_lens_k"]


def register():
    """Lets continuous batching take models with LayerZero's attention; may be called again.

    Transformers has a list of accepted attentions, and may switch to a faster one. So the model has an accepted one while the
    manager is built. Batches are made later, without masks, for the attention that the model has then.
    """
    mixin = _mixin()
    original = getattr(mixin, "init_continuous_batching", None)
    if original is None or has_prefix() or hasattr(original, "_layerzero_original"):
        return

    @functools.wraps(original)
    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        chosen = self.config._attn_implementation
        if chosen not in NAMES:
            return original(self, *args, **kwargs)
        self.set_attn_implementation("sdpa")
        try:
            manager = original(self, *args, **kwargs)
        except BaseException:
            self.set_attn_implementation(chosen)
            raise
        if self.config._attn_implementation == "sdpa":
            self.set_attn_implementation(chosen)
            _read_pages(manager, self, inspect.signature(original).bind(self, *args, **kwargs).arguments)
        else:  # it went on to flash attention, and goes back at its end
            manager._original_attn_impl = chosen
        return manager

    init_continuous_batching._layerzero_original = original  # type: ignore[attr-defined]
    mixin.init_continuous_batching = init_continuous_batching


def _mixin():
    from transformers.generation.continuous_batching.continuous_api import ContinuousMixin

    return ContinuousMixin


def _read_pages(manager, model, given):
    """Turns block tables on, unless the caller turned them off. Transformers does so only for flash attention on CUDA."""
    from transformers.generation.continuous_batching import cache, initialization

    resolved, config = manager.continuous_batching_config, model.config.get_text_config()
    groups = getattr(cache, "group_layers_by_attn_type", None)
    asked = _asked(model, given)
    width = getattr(asked, "max_blocks_per_request", None)
    if manager.batch_processor is not None or groups is None or width == 0:
        return
    if not all(cache.ATTN_TYPE_TO_ALLOCATOR[kind].supports_block_table for kind in groups(config)):
        return
    resolved.max_blocks_per_request = width
    initialization.resolve_using_hints(resolved, given.get("workload_hints"))
    initialization.resolve_without_hints(resolved)
    resolved.decode_compile_config = getattr(asked, "decode_compile_config", None)  # dropped where there are no tables
    initialization.resolve_compile_configs(
        cb_config=resolved,
        fallback_compile_config=getattr(config, "compile_config", None),
        is_flash_attn=False,
        decode_fast_path_available=resolved.max_blocks_per_request > 0,
    )


def _asked(model, given):
    """The caller's settings, from where Transformers takes them: an argument, or a field of the generation configuration."""
    settings = given.get("continuous_batching_config")
    if settings is None:
        settings = getattr(
            given.get("generation_config") or model.generation_config, "continuous_batching_config", None
        )
    return settings
