"""The backend LAYERZERO for models with latents (MLA): decode steps by `mla_decode_paged`; vLLM's own code does prefill.

A page of vLLM's cache holds latents and rotated parts in one row, which are two views for the operation.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonDecodeMetadata,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionCGSupport, MultipleOf

from layerzero import _layerzero
from layerzero.integrations.serving.pages import Pages, pages_of
from layerzero.integrations.serving.served import unserved_latents
from layerzero.integrations.vllm import NAME, register_backend

register_backend()
_decode = _layerzero.ops["mla_decode_paged"]


@dataclass
class DecodeMetadata(MLACommonDecodeMetadata):
    pages: Pages  # in memory that all steps share, so that a captured step reads the lists of later ones


class LayerZeroMLABuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.most_requests = vllm_config.scheduler_config.max_num_seqs
        self.kept: Pages | None = None

    def _build_decode(
        self, block_table_tensor: torch.Tensor, seq_lens_device: torch.Tensor, *args: Any, **kwargs: Any
    ) -> DecodeMetadata:
        plain = super()._build_decode(block_table_tensor, seq_lens_device, *args, **kwargs)
        requests, width = block_table_tensor.shape
        new = pages_of(block_table_tensor, seq_lens_device, self.kv_cache_spec.block_size, max(requests * width, 1))
        if self.kept is None:
            rows = max(self.most_requests, requests)
            sizes = rows + 1, rows * width, rows
            self.kept = Pages(*(torch.zeros(size, dtype=torch.int32, device=self.device) for size in sizes))
        own = Pages(*(kept[: len(part)] for kept, part in zip(self.kept, new, strict=True)))
        for kept, part in zip(own, new, strict=True):
            kept.copy_(part)
        return DecodeMetadata(plain.block_table, plain.seq_lens, plain.dcp_tot_seq_lens, own)


class LayerZeroMLABackend(MLACommonBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type["LayerZeroMLAImpl"]:
        return LayerZeroMLAImpl

    @staticmethod
    def get_builder_cls() -> type[LayerZeroMLABuilder]:
        return LayerZeroMLABuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        return (1, 0, 2, 3) if include_num_layers_dimension else (0, 1, 2)

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [576]  # 512 of the latent, 64 that are rotated

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any, *args: Any, **kwargs: Any
    ) -> str | None:
        return unserved_latents(dtype, kv_cache_dtype)


class LayerZeroMLAImpl(MLACommonImpl[MLACommonMetadata]):
    can_return_lse_for_decode = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if alibi_slopes or sliding_window or logits_soft_cap:
            raise NotImplementedError("layerzero: slopes, windows and caps of attention over latents")
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, None, None, kv_cache_dtype, None, *args, **kwargs
        )  # fmt: skip

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: MLACommonMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """q (requests, heads, latent | rotated), one tensor or two; the cache (blocks, block size, both).

        Returns (requests, heads, latent) and the lse (requests, heads), natural.
        """
        latent = self.kv_lora_rank
        parts = q if isinstance(q, tuple) else (q[..., :latent], q[..., latent:])
        cache = kv_c_and_k_pe_cache[..., :latent], kv_c_and_k_pe_cache[..., latent:]
        pages = attn_metadata.decode.pages
        return _decode(*parts, *cache, *pages, self.scale, return_lse=True)
