"""Models with latents (MLA) in SGLang: decode over latents, prefill over keys of each head, which SGLang makes itself.

A slot of SGLang's pool holds a latent and its rotated part in one row, which are two views for the operation.
"""

import copy
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.serving.pages import Pages, pages_of
from layerzero.integrations.sglang.backend import StepBackend, refuse_further
from layerzero.integrations.sglang.metadata import Step

_decode = _layerzero.ops["mla_decode_paged"]
_packed = _layerzero.ops["ragged_attention"]


def forward_method(attention: Any, forward_batch: Any) -> Any:
    """Which of SGLang's ways a layer takes: prefill with keys of each head (a prefix in chunks, or at once where SGLang
    has no chunks), decode with latents."""
    from sglang.srt.models.deepseek_common.attention_forward_methods import forward_methods

    methods = forward_methods.AttnForwardMethod
    if not forward_batch.forward_mode.is_extend():
        return methods.MLA
    if _is_captured():
        return methods.MLA  # which LayerZeroMLABackend refuses when SGLang captures it, before it serves
    prefixes = forward_batch.extend_prefix_lens_cpu or ()
    if not any(prefixes) or not attention.disable_chunked_prefix_cache:
        return methods.MHA_CHUNKED_KV
    return methods.MHA_ONE_SHOT


def _is_captured() -> bool:
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers

    return bool(handlers.is_in_tc_piecewise_cuda_graph() or handlers.is_in_breakable_cuda_graph())


class LayerZeroMLABackend(StepBackend):
    def __init__(self, runner: Any) -> None:
        super().__init__(runner)
        self.latent = runner.model_config.kv_lora_rank
        self.lists: Pages | None = None  # of the step
        self.kept: Pages | None = None  # in memory that captured steps share

    # ---- once a step

    def init_forward_metadata(self, forward_batch: Any) -> None:
        super().init_forward_metadata(forward_batch)
        step = self._step()
        self.lists = None if step.extend is not None else self._listed(step)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        super().init_cuda_graph_state(max_bs, max_num_tokens)
        sizes = max_bs + 1, max_bs * self.tables.width, max_bs
        self.kept = Pages(*(torch.zeros(size, dtype=torch.int32, device=self.device) for size in sizes))

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        step, kept = self._step(), self.kept
        assert kept is not None
        count, width = step.tables.shape
        if forward_batch.seq_lens_cpu is not None and not in_capture:  # columns that hold keys
            step = copy.copy(step)
            step.tables = step.tables[:, : self.tables.width_of(forward_batch.seq_lens_cpu)]
        new = self._listed(step)
        self.lists = Pages(kept.indptr[: count + 1], kept.indices[: count * width], kept.last_len[:count])
        for own, part in zip(self.lists, new, strict=True):
            own[: len(part)].copy_(part)

    def _listed(self, step: Step) -> Pages:
        count, width = step.tables.shape
        return pages_of(step.tables, step.lengths, self.page_size, max(count * width, 1))

    # ---- layers

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> torch.Tensor:
        """q (requests, heads * latent) with q_rope (requests, heads, rotated), or both in one row of a head; k a latent
        and k_rope its rotated part, (requests, 1, size) each. Returns (requests, heads * latent)."""
        rotated_q, rotated_k = kwargs.pop("q_rope", None), kwargs.pop("k_rope", None)
        refuse_further(kwargs)
        if layer.logit_cap > 0 or layer.sliding_window_size > -1:
            raise NotImplementedError("layerzero: caps and windows of attention over latents")
        if save_kv_cache and k is not None:
            self._write(layer, forward_batch.out_cache_loc, k, v, rotated_k)
        heads = layer.tp_q_head_num
        if rotated_q is None:
            rows = q.reshape(-1, heads, layer.head_dim)
            query, rotated_q = rows[..., : self.latent], rows[..., self.latent :]
        else:
            query, rotated_q = q.reshape(-1, heads, self.latent), rotated_q.reshape(len(q), heads, -1)
        pages = self.lists
        if pages is None:
            raise RuntimeError("layerzero: the metadata of this step is not of one that decodes")
        cache = self._paged(self.pool.get_key_buffer(layer.layer_id)).squeeze(2)
        out = _decode(query, rotated_q, cache[..., : self.latent], cache[..., self.latent :], *pages, layer.scaling)
        return out.reshape(len(query), -1)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> Any:
        """q (tokens, heads * size), k and v (keys, heads, size) of each head. Returns (tokens, heads * v size), or with the
        lse (tokens, heads), natural, where SGLang merges chunks of a prefix."""
        if kwargs.get("q_rope") is not None or layer.tp_k_head_num != layer.tp_q_head_num:
            raise NotImplementedError(
                "layerzero: prefill over latents, which SGLang captures in CUDA graphs of prefill; "
                "start it with --disable-prefill-cuda-graph"
            )
        refuse_further(kwargs)
        if save_kv_cache:
            raise NotImplementedError("layerzero: keys of each head in a pool of latents")
        start, starts, longest, longest_keys, causal = self._ranges(forward_batch)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        result = _packed(
            query,
            k.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.reshape(-1, layer.tp_v_head_num, layer.v_head_dim),
            start,
            starts,
            causal=causal,
            scale=layer.scaling,
            max_seqlen_q=longest,
            max_seqlen_kv=longest_keys,
            return_lse=bool(getattr(forward_batch, "mha_return_lse", False)),
        )
        return result if isinstance(result, tuple) else result.reshape(len(query), -1)

    def _ranges(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor, int, int, bool]:
        """Offsets of queries and keys, upper bounds, and whether keys are the step's own, seen up to each row."""
        extend = self._step().extend
        if extend is None:
            raise RuntimeError("layerzero: the metadata of this step is of one that decodes")
        start, longest = extend.query_start, extend.longest
        if getattr(batch, "attn_attend_prefix_cache", None):
            chunk = batch.prefix_chunk_idx
            return (
                start,
                batch.prefix_chunk_cu_seq_lens[chunk],
                longest,
                int(batch.prefix_chunk_max_seq_lens[chunk]),
                False,
            )
        if getattr(batch, "mha_one_shot", False):
            starts = torch.nn.functional.pad(extend.lengths.cumsum(0, dtype=torch.int32), (1, 0))
            return start, starts, longest, extend.tables.shape[1] * self.page_size, True
        return start, start, longest, longest, True

    def _write(self, layer: Any, slots: torch.Tensor, k: Any, v: Any, rotated: Any) -> None:
        if rotated is None:
            self.pool.set_kv_buffer(layer, slots, k, v)
        else:
            self.pool.set_mla_kv_buffer(layer, slots, k, rotated)
