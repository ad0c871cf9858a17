"""Calls vLLM's compiled operations as kernels; each takes its operation's parameters in the contract's order.

The operations write into tensors that their caller makes. What they write in place is a copy here, never an input. vLLM
itself, whose import takes tens of seconds, is not imported: its libraries register the operations with torch.
"""

import importlib.util
from pathlib import Path

import torch

from layerzero.backends.probing import check_rms_norm
from layerzero.backends.torch.common import added_and_normed, as_rows, gated, number

LIBRARIES = ("_C.abi3.so", "_C_stable_libtorch.abi3.so", "_moe_C.abi3.so", "_moe_C_stable_libtorch.abi3.so")


def _load() -> None:
    """Registers torch.ops._C, _C_cache_ops and _moe_C, unless vLLM has done that."""
    if hasattr(torch.ops._C, "rms_norm"):
        return
    spec = importlib.util.find_spec("vllm")
    folders = (spec and spec.submodule_search_locations) or ()
    found = [path for folder in folders for name in LIBRARIES if (path := Path(folder) / name).is_file()]
    if not found:
        raise ImportError(f"vllm has none of {', '.join(LIBRARIES)}")
    for path in found:
        torch.ops.load_library(str(path))


_load()
_ops, _cache_ops, _moe_ops = torch.ops._C, torch.ops._C_cache_ops, torch.ops._moe_C


def rms_norm(input, weight, eps, weight_offset=None):
    output = torch.empty_like(input)
    if input.numel():
        _ops.rms_norm(as_rows(output), as_rows(input), weight, eps)
    return output


def fused_add_rms_norm(input, residual, weight, eps, weight_offset=None):
    return added_and_normed(lambda x, total: _ops.fused_add_rms_norm(x, total, weight, eps), input, residual)


def silu_and_mul(input):
    return gated(_ops, input, "silu")


def gated_activation(input, activation, limit, alpha, up_offset, interleaved):
    return gated(_ops, input, activation)


def kv_append_paged(key_cache, value_cache, key, value, slots, k_scale, v_scale, layout):
    """vLLM leaves out negative slots and does not check the others: one beyond the cache is made negative."""
    if not slots.numel() or not key_cache.numel():
        return
    slots = slots.long()
    slots = slots.masked_fill(slots >= key_cache.shape[0] * key_cache.shape[1], -1)
    one = number(1.0, key.device)
    scales = [one if scale is None else scale.reshape(1) for scale in (k_scale, v_scale)]
    if key_cache.dtype == torch.float8_e4m3fn:
        key_cache, value_cache, kind = key_cache.view(torch.uint8), value_cache.view(torch.uint8), "fp8_e4m3"
    else:
        kind = "auto"
    _cache_ops.reshape_and_cache_flash(key, value, key_cache, value_cache, slots, kind, *scales)


def moe_route(logits, k, bias, scoring, renormalize, *rest):
    shape = (*logits.shape[:-1], k)
    weights = logits.new_empty(shape, dtype=torch.float32)
    expert_ids = torch.empty_like(weights, dtype=torch.int32)
    if weights.numel():
        function = _moe_ops.topk_softmax if scoring == "softmax" else _moe_ops.topk_sigmoid
        outputs = (as_rows(t) for t in (weights, expert_ids, torch.empty_like(expert_ids)))
        function(*outputs, as_rows(logits), renormalize, bias)
    return weights, expert_ids


def probe():
    check_rms_norm(rms_norm, torch.float32)
