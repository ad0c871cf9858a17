"""What a model runner of SGLang asks for that LayerZero's attention does not do; read before anything is built."""

from typing import Any

import torch

from layerzero.integrations.serving.served import unserved, unserved_latents

# The dtypes of caches that are read, by SGLang's own names for those that unserved() knows.
_CACHES = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
_LATENT, _ROTATED = 512, 64


def reasons(runner: Any) -> list[str]:
    """runner: SGLang's ModelRunner, whose pools exist. Returns the reasons against it, of the model, the options, and the
    machine; empty where all is served."""
    model = runner.model_config
    found = [text for is_met, text in _options(runner, model) if is_met]
    stored = runner.kv_cache_dtype
    if stored not in (torch.float16, torch.bfloat16, torch.float32, *_CACHES):
        found.append(f"a KV cache of {stored}")
    if found:
        return found
    against = _latents(runner, model, stored) if runner.use_mla_backend else _heads(runner, model, stored)
    return [against] if against is not None else []


def _options(runner: Any, model: Any) -> list[tuple[bool, str]]:
    algorithm = getattr(runner, "spec_algorithm", None)
    translator = getattr(runner, "kv_index_translator", None)
    return [
        (bool(model.is_encoder_decoder), "attention between an encoder and a decoder"),
        (bool(getattr(model, "attention_chunk_size", None)), "attention within chunks (attention_chunk_size)"),
        (algorithm is not None and not algorithm.is_none(), "speculative decoding"),
        (bool(getattr(translator, "is_translating", False)), "a unified memory pool (--enable-unified-memory)"),
        (getattr(runner, "kv_cache_dtype_str", None) in ("mxfp8", "fp4_e2m1"), "a KV cache with scales of blocks"),
        (getattr(runner, "prefill_aware_swa", False), "windows that keep the whole prompt (prefill-aware)"),
        (_context_ranks() > 1, "decode context parallelism"),
    ]


def _context_ranks() -> int:
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return 1
    return int(getattr(get_parallel(), "attn_dcp_size", 1) or 1)


def _heads(runner: Any, model: Any, stored: torch.dtype) -> str | None:
    cache = _CACHES.get(stored)
    if cache is None and stored != runner.dtype:
        return f"a KV cache of {stored} in a model of {runner.dtype}"
    return unserved(model.head_dim, runner.dtype, cache, runner.page_size, False)


def _latents(runner: Any, model: Any, stored: torch.dtype) -> str | None:
    columns = getattr(model, "kv_lora_rank", None), getattr(model, "qk_rope_head_dim", None)
    if columns != (_LATENT, _ROTATED):
        return f"latents of {columns[0]} + {columns[1]} columns (served: {_LATENT} + {_ROTATED})"
    if stored != runner.dtype or stored not in (torch.float16, torch.bfloat16):
        return f"latents of {stored} in a model of {runner.dtype} (served: 16 bits in both)"
    return unserved_latents(runner.dtype)
