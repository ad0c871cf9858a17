"""vLLM's attention backend LAYERZERO: paged keys and values as vLLM lays them out, over LayerZero's operations.

A step's decoding requests are one call of `paged_attention`; those with several new tokens are one of `ragged_attention`
where all of them begin in this step, else of `paged_prefill_attention`. Each call selects its kernel as any other does.
"""

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.attention.backends.utils import get_kv_cache_layout

from layerzero import _layerzero
from layerzero.integrations.serving.served import CACHES, unserved
from layerzero.integrations.vllm import NAME, register_backend
from layerzero.integrations.vllm.metadata import LayerZeroMetadata, LayerZeroMetadataBuilder, Prefill, Shared, first

register_backend()  # vLLM looks up the name of the class below
_append = _layerzero.ops["kv_append_paged"]
_merge = _layerzero.ops["merge_attention"]
_paged = _layerzero.ops["paged_attention"]
_paged_prefill = _layerzero.ops["paged_prefill_attention"]
_ragged = _layerzero.ops["ragged_attention"]


class LayerZeroBackend(AttentionBackend):
    """keys and values (blocks, 2, block size, heads, head size), in memory NHD or HND as vLLM says."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *CACHES]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type["LayerZeroImpl"]:
        return LayerZeroImpl

    @staticmethod
    def get_builder_cls() -> type[LayerZeroMetadataBuilder]:
        return LayerZeroMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [MultipleOf(16)]  # vLLM takes the smallest for layers with a window

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return num_blocks, 2, block_size, num_kv_heads, head_size

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        heads_first = get_kv_cache_layout() == "HND"
        if include_num_layers_dimension:  # the axis before those of the shape
            return (1, 4, 0, 2, 3, 5) if heads_first else (1, 0, 2, 3, 4, 5)
        return (0, 1, 3, 2, 4) if heads_first else (0, 1, 2, 3, 4)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= 512

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY, AttentionType.ENCODER)

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: Any,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: Any,
    ) -> str | None:
        """LayerZero's own reasons, where only its references would serve the calls on this machine."""
        return unserved(head_size, dtype, kv_cache_dtype, block_size or 16, has_sink)


class LayerZeroImpl(AttentionImpl[LayerZeroMetadata]):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype, self.attn_type, self.sinks = kv_cache_dtype, attn_type, sinks
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.encodes = attn_type in (AttentionType.ENCODER_ONLY, AttentionType.ENCODER)
        if self.encodes and sliding_window is not None:
            raise NotImplementedError("layerzero: windows of attention that is not causal")
        self.window = sliding_window  # keys, the row's own among them
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.bias = {"softcap": logits_soft_cap or None, "alibi_slopes": slopes}
        self.stored = CACHES.get(kv_cache_dtype)  # dtype of an 8-bit cache, which vLLM holds as bytes
        # Others read the cache, where their keys are rounded to 8 bits or were written by another layer.
        self.reads_own_keys = self.stored is None and kv_sharing_target_layer_name is None
        self._seen: Any = None
        self._views: Any = None

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: LayerZeroMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """query, output (tokens, heads, head size), key, value (tokens, kv heads, head size); writes `output`."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("layerzero: quantized outputs of attention")
        step = attn_metadata
        if step is None:  # vLLM measures the memory of everything else
            return output.fill_(0)
        if self.encodes:
            n = step.num_tokens
            self._packed(query[:n], key[:n], value[:n], step.query_start, step.longest, False, output[:n])
            return output
        caches, scales = self._caches(kv_cache), self._scales(layer)
        if step.shared is not None:
            rows, out = first(query, step.num_tokens), first(output, step.num_tokens)
            self._over_shared(rows, caches, scales, step, step.shared, out)
            return output
        if step.num_decodes:
            self._decode(query, caches, scales, step, output)
        if (prefill := step.prefill) is not None:
            begin, end = step.num_decode_tokens, prefill.end
            rows, out = _between(query, begin, end), _between(output, begin, end)
            if prefill.fresh and self.reads_own_keys:
                own = _between(key, begin, end), _between(value, begin, end)
                self._packed(rows, *own, prefill.query_start, prefill.longest, step.causal, out)
            else:
                self._prefill(rows, caches, scales, prefill, step.causal, out)
        return output

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Stores the rows; key and value may be padded, slots are not."""
        if self.encodes:
            return
        count = slot_mapping.shape[0]
        if key.shape[0] != count:
            key, value = key[:count], value[:count]
        _append(*self._caches(kv_cache), key, value, slot_mapping, layout="NHD", **self._scales(layer))

    # ---- calls of operations

    def _decode(self, query: Any, caches: Any, scales: Any, step: LayerZeroMetadata, output: Any) -> None:
        count = step.num_decodes
        _paged(
            first(query, count).unsqueeze(1),
            *caches,
            *step.decoding,
            self.scale,
            window=self.window,
            sinks=self.sinks,
            out=first(output, count).unsqueeze(1),
            **self.bias,
            **scales,
        )

    def _packed(
        self, query: Any, key: Any, value: Any, start: torch.Tensor, longest: int, causal: bool, output: Any
    ) -> None:
        _ragged(
            query,
            key,
            value,
            start,
            start,
            causal=causal,
            scale=self.scale,
            window=self.window,
            sinks=self.sinks,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
            out=output,
            **self.bias,
        )

    def _prefill(self, query: Any, caches: Any, scales: Any, prefill: Prefill, causal: bool, output: Any) -> None:
        _paged_prefill(
            query,
            *caches,
            prefill.query_start,
            *prefill.pages,
            self.scale,
            causal=causal,
            window_left=-1 if self.window is None else self.window - 1,
            sinks=self.sinks,
            out=output,
            **self.bias,
            **scales,
        )

    def _over_shared(
        self, query: Any, caches: Any, scales: Any, step: LayerZeroMetadata, shared: Shared, output: Any
    ) -> None:
        begin = step.num_decode_tokens
        given = dict(self.bias, return_lse=True, **scales)
        prefix = _paged_prefill(query, *caches, shared.query_start, *shared.pages, self.scale, causal=False, **given)
        rest, lse = torch.empty_like(query), query.new_empty(query.shape[:2], dtype=torch.float32)
        if n := step.num_decodes:
            parts = _paged(query[:n].unsqueeze(1), *caches, *step.decoding, self.scale, **given)
            rest[:n], lse[:n] = parts[0].squeeze(1), parts[1]
        if (prefill := step.prefill) is not None:
            parts = _paged_prefill(
                query[begin:], *caches, prefill.query_start, *prefill.pages, self.scale, causal=True, **given
            )
            rest[begin:], lse[begin:] = parts
        _merge(*prefix, rest, lse, sinks=self.sinks, out=(output, torch.empty_like(lse)))

    # ---- vLLM's tensors as the operations take them

    def _caches(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if kv_cache is not self._seen:
            keys, values = kv_cache.unbind(1)
            if self.stored is not None:
                keys, values = keys.view(self.stored), values.view(self.stored)
            self._seen, self._views = kv_cache, (keys, values)
        return self._views

    def _scales(self, layer: Any) -> dict[str, torch.Tensor]:
        if self.stored is None:
            return {}
        return {"k_scale": layer._k_scale.view(-1), "v_scale": layer._v_scale.view(-1)}


def _between(rows: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    return rows if begin == 0 and end == rows.shape[0] else rows[begin:end]
