"""What LayerZero's plugin takes from SGLang 0.5, for machines without it: the same names, and bases that compute little.

`modules()` returns them by the names of SGLang's modules. test_sglang_signatures.py holds them, and LayerZero's classes, to
sglang_signatures.json, which scripts/sglang_signatures.py reads from SGLang's sources.
"""

import enum
import sys
import types
from dataclasses import dataclass

import torch

ATTENTION_BACKEND_CHOICES = ["triton", "flashinfer"]
SAMPLING_BACKEND_CHOICES = {"pytorch", "flashinfer"}
CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS = ["flashinfer"]
ATTENTION_BACKENDS = {}
_CUSTOM_SAMPLER_FACTORIES = {}


def add_attention_backend_choices(choices):
    ATTENTION_BACKEND_CHOICES.extend(choices)


def add_chunked_prefix_cache_attention_backend(backend_name):
    CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS.append(backend_name)


def register_attention_backend(name):
    def decorator(fn):
        ATTENTION_BACKENDS[name] = fn
        return fn

    return decorator


def register_sampler_backend(backend, factory):
    _CUSTOM_SAMPLER_FACTORIES[backend] = factory


class ForwardMode(enum.IntEnum):
    EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY = range(1, 6)

    def is_decode_or_idle(self):
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    def is_extend(self):
        return self in (ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.TARGET_VERIFY)


class AttentionType(enum.Enum):
    DECODER, DECODER_BIDIRECTIONAL, ENCODER_ONLY = "decoder", "decoder_bidirectional", "encoder_only"


class AttentionBackend:
    def init_forward_metadata(self, forward_batch):
        self.init_forward_metadata_out_graph(forward_batch)

    def init_forward_metadata_in_graph(self, forward_batch):
        pass

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        decodes = forward_batch.forward_mode == ForwardMode.DECODE
        run = self.forward_decode if decodes else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)


@dataclass
class KVWriteLoc:
    loc: torch.Tensor
    swa_loc: torch.Tensor | None = None


class Sampler(torch.nn.Module):
    """The way of SGLang's sampler: temperatures, probabilities, tokens, log-probabilities."""

    enable_deterministic = False

    def _preprocess_logits(self, logits, sampling_info):
        return logits

    def _sync_token_ids_across_tp(self, batch_next_token_ids, sampling_info):
        pass

    def forward(
        self, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs, positions,
    ):  # fmt: skip
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        if sampling_info.is_all_greedy:
            return logits.argmax(-1)
        probs = (logits / sampling_info.temperatures).softmax(-1)
        info = sampling_info
        simple = not (info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling)
        tokens = self._sample_from_probs(probs, sampling_info, positions, simple)
        if return_logprob:
            logits_output.next_token_logprobs = probs.log().gather(1, tokens.long()[:, None])[:, 0]
        return tokens

    def _sample_from_probs(self, probs, sampling_info, positions, simple_sampling_case):
        if simple_sampling_case:
            return probs.argmax(-1)  # with a seed, the stand-in's draw
        raise ValueError("Invalid sampling backend")


def top_k_top_p_min_p_sampling_from_probs_torch(
    probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions
):  # fmt: skip
    assert sampling_seed is not None
    return probs.argmax(-1)


class AttnForwardMethod(enum.IntEnum):
    MHA, MLA, MHA_CHUNKED_KV, MHA_ONE_SHOT = range(4)


class AttentionBackendRegistry:
    _handlers = {}

    @classmethod
    def register(cls, backend_name, handler_func):
        cls._handlers[backend_name] = handler_func


def is_in_tc_piecewise_cuda_graph():
    return False


def is_in_breakable_cuda_graph():
    return False


_MODULES = {
    "sglang.srt.server_args": [
        ATTENTION_BACKEND_CHOICES, SAMPLING_BACKEND_CHOICES, CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS,
        add_attention_backend_choices, add_chunked_prefix_cache_attention_backend,
    ],
    "sglang.srt.layers.attention.attention_registry": [ATTENTION_BACKENDS, register_attention_backend],
    "sglang.srt.layers.attention.base_attn_backend": [AttentionBackend],
    "sglang.srt.layers.radix_attention": [AttentionType],
    "sglang.srt.layers.sampler": [
        Sampler, register_sampler_backend, _CUSTOM_SAMPLER_FACTORIES, top_k_top_p_min_p_sampling_from_probs_torch,
    ],
    "sglang.srt.mem_cache.memory_pool": [KVWriteLoc],
    "sglang.srt.model_executor.forward_batch_info": [ForwardMode],
    "sglang.srt.models.deepseek_common.attention_backend_handler": [
        AttentionBackendRegistry, is_in_tc_piecewise_cuda_graph, is_in_breakable_cuda_graph,
    ],
    "sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods": [AttnForwardMethod],
}  # fmt: skip


def modules():
    """Fresh modules, by name, with their packages; each a child of its package too."""
    names = {id(value): name for name, value in vars(sys.modules[__name__]).items()}
    found = {}
    for path, values in _MODULES.items():
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:count]), types.ModuleType(".".join(parts[:count])))
        for value in values:
            setattr(found[path], names[id(value)], value)
    for path, module in found.items():
        parent, _, name = path.rpartition(".")
        if parent:
            setattr(found[parent], name, module)
            found[parent].__path__ = []
    return found
