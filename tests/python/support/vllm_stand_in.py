"""What LayerZero's plugin takes from vLLM 0.25, for machines without it: the same names, and bases that compute nothing.

`modules()` returns them by the names of vLLM's modules. Their signatures are those of vllm_signatures.json, which
scripts/engine_signatures.py reads from vLLM's sources; tests/python/test_vllm.py compares both with LayerZero's classes.
"""

import enum
import sys
import types
from dataclasses import dataclass

import torch


class AttentionType(str, enum.Enum):
    DECODER, ENCODER, ENCODER_ONLY, ENCODER_DECODER = "decoder", "encoder", "encoder_only", "encoder_decoder"


class AttentionCGSupport(enum.Enum):
    ALWAYS, UNIFORM_BATCH, UNIFORM_SINGLE_TOKEN_DECODE, NEVER = 3, 2, 1, 0


class MultipleOf:
    def __init__(self, base):
        self.base = base


class AttentionBackend:
    supported_kv_cache_dtypes = ("auto",)

    @classmethod
    def full_cls_name(cls):
        return cls.__module__, cls.__qualname__


class AttentionImpl:
    def __class_getitem__(cls, item):
        return cls


class AttentionMetadata:
    pass


class AttentionMetadataBuilder:
    reorder_batch_threshold = None

    def __class_getitem__(cls, item):
        return cls

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = (
            kv_cache_spec,
            layer_names,
            vllm_config,
            device,
        )

    def _init_reorder_batch_threshold(self, reorder_batch_threshold=1, **further):
        self.reorder_batch_threshold = reorder_batch_threshold


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True
    seq_lens_cpu_upper_bound: torch.Tensor | None = None


@dataclass
class MLACommonDecodeMetadata:
    block_table: torch.Tensor
    seq_lens: torch.Tensor
    dcp_tot_seq_lens: torch.Tensor | None


class MLACommonMetadata:
    pass


class MLACommonBackend(AttentionBackend):
    pass


class MLACommonImpl(AttentionImpl):
    pass


class MLACommonMetadataBuilder(AttentionMetadataBuilder):
    def _build_decode(
        self,
        block_table_tensor,
        seq_lens_device,
        max_seq_len,
        query_start_loc_cpu,
        query_start_loc_device,
        num_decode_tokens,
        dcp_tot_seq_lens_device,
    ):
        return MLACommonDecodeMetadata(block_table_tensor, seq_lens_device, dcp_tot_seq_lens_device)


class AttentionBackendEnum(enum.Enum):
    FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"
    CUSTOM = None

    def get_path(self):
        return _overrides[self]

    def is_overridden(self):
        return self in _overrides


class TopKTopPSampler:
    def __init__(self, logprobs_mode="raw_logprobs", use_fp64_gumbel=False):
        self.forward = self.forward_native

    def forward_native(self, logits, generators, k, p):
        return logits.argmax(-1), None


class SamplingStates:
    """Of the newer model runner; temperature, top_k, top_p and seeds each have `np` and `gpu`."""

    def get_top_k_top_p(self, expanded_idx_mapping, idx_mapping_np):
        by_k = (self.top_k.np[idx_mapping_np] != self.vocab_size).any()
        by_p = (self.top_p.np[idx_mapping_np] != 1.0).any()
        return (
            self.top_k.gpu[expanded_idx_mapping] if by_k else None,
            self.top_p.gpu[expanded_idx_mapping] if by_p else None,
        )

    def any_explicit_seed(self, idx_mapping_np):
        return bool(self.seeds_set[idx_mapping_np].any())


class Sampler:
    """Of the newer model runner."""

    def __init__(
        self, max_num_reqs, vocab_size, device, req_states, logprobs_mode="raw_logprobs", num_speculative_tokens=1,
        use_fp64_gumbel=False,
    ):  # fmt: skip
        self.logprobs_mode, self.use_fp64_gumbel = logprobs_mode, use_fp64_gumbel

    def sample(
        self, logits, expanded_idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos, return_logprobs=False
    ):
        return logits.argmax(-1), logits


_overrides = {}


def register_backend(backend, class_path=None):
    _overrides[backend] = class_path


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1):
    """Requests of one token come first, as vLLM orders a batch."""
    common = common_attn_metadata
    lengths = common.query_start_loc_cpu.diff()
    decodes = int((lengths <= decode_threshold).cumprod(0).sum())
    tokens = common.num_actual_tokens if decodes == common.num_reqs else int(common.query_start_loc_cpu[decodes])
    return decodes, common.num_reqs - decodes, tokens, common.num_actual_tokens - tokens


def modules():
    found = {}

    def module(name, **names):
        found[name] = made = types.ModuleType(name)
        made.__spec__ = types.SimpleNamespace(name=name, loader=None, submodule_search_locations=[])
        made.__path__ = []
        vars(made).update(names)

    mine = vars(sys.modules[__name__])
    base = {name: mine[name] for name in (
        "AttentionType", "AttentionCGSupport", "MultipleOf", "AttentionBackend", "AttentionImpl", "AttentionMetadata",
        "AttentionMetadataBuilder", "CommonAttentionMetadata",
    )}  # fmt: skip
    registry = {"AttentionBackendEnum": AttentionBackendEnum, "register_backend": register_backend}
    utils = {"split_decodes_and_prefills": split_decodes_and_prefills, "get_kv_cache_layout": lambda: "NHD"}
    latents = {name: one for name, one in mine.items() if name.startswith("MLACommon")}
    layers = "vllm.model_executor.layers.attention"
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.model_executor", "vllm.model_executor.layers", layers):
        module(name)
    module(f"{layers}.mla_attention", **latents)
    module("vllm.config", get_current_vllm_config_or_none=lambda: None)
    module("vllm.v1.attention.backend", **base)
    module("vllm.v1.attention.backends")
    module("vllm.v1.attention.backends.registry", **registry)
    module("vllm.v1.attention.backends.utils", **utils)
    for name in (
        "vllm.v1.sample",
        "vllm.v1.sample.ops",
        "vllm.v1.worker",
        "vllm.v1.worker.gpu",
        "vllm.v1.worker.gpu.sample",
    ):
        module(name)
    module("vllm.v1.sample.sampler", TopKTopPSampler=TopKTopPSampler)
    module("vllm.v1.sample.ops.topk_topp_sampler", TopKTopPSampler=TopKTopPSampler)
    module("vllm.v1.worker.gpu.sample.sampler", Sampler=Sampler)
    module("vllm.v1.worker.gpu.sample.states", SamplingStates=SamplingStates)
    for name, one in found.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(found[parent], child, one)
    return found
