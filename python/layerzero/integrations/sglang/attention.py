"""Attention of heads with keys and values of their own, for SGLang: paged decode, and packed or paged prefill."""

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from layerzero import _layerzero
from layerzero.integrations.sglang.backend import StepBackend, refuse_further
from layerzero.integrations.sglang.metadata import Extend

_decode = _layerzero.ops["paged_attention"]
_prefill = _layerzero.ops["paged_prefill_attention"]
_packed = _layerzero.ops["ragged_attention"]
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


class LayerZeroBackend(StepBackend):
    """SGLang's pool keeps keys and values (slots, heads, size) and writes them; LayerZero reads them."""

    def __init__(self, runner: Any) -> None:
        super().__init__(runner)
        self.kv_cache_dtype = runner.kv_cache_dtype
        self.rounded = runner.kv_cache_dtype in _EIGHT_BITS  # keys are attended to as they are stored
        self._known: dict[int, dict[str, Any]] = {}

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> torch.Tensor:
        """q (requests, heads * size), k and v (requests, kv heads, size) or None; returns (requests, heads * v size)."""
        given = self._given(layer, kwargs)
        self._write(layer, forward_batch, k, v, save_kv_cache)
        step = self._step()
        tables = step.tables
        if step.window_tables is not None and self._window_pool(layer):
            tables = step.window_tables
        query = q.reshape(-1, 1, layer.tp_q_head_num, layer.qk_head_dim)
        count = min(len(query), len(step.lengths))
        out = self._output(q, layer)
        window = layer.sliding_window_size
        _decode(
            query[:count],
            *self._caches(layer),
            tables[:count],
            step.lengths[:count],
            layer.scaling,
            window=window + 1 if window > -1 else None,  # SGLang counts the keys before the row's own
            out=out[:count].unsqueeze(1),
            **given,
            **self._scales(layer),
        )
        return out.view(len(out), -1)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> torch.Tensor:
        """q (tokens, heads * size), k and v (tokens, kv heads, size) or None; returns (tokens, heads * v size)."""
        given = self._given(layer, kwargs)
        own = k is not None and not self.rounded
        if k is not None and self.rounded and not save_kv_cache:
            raise NotImplementedError("layerzero: keys that the cache of 8 bits does not get")
        self._write(layer, forward_batch, k, v, save_kv_cache)
        extend = self._step().extend
        if extend is None:
            raise RuntimeError("layerzero: the metadata of this step is of one that decodes")
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = self._output(q, layer)
        causal = layer.attn_type.value == "decoder"
        if own and extend.fresh:
            self._over_own(query, k, v, layer, extend, causal, out, given)
        else:
            self._over_cache(query, layer, extend, causal, out, given)
        return out.view(len(out), -1)

    # ---- calls of operations

    def _over_own(
        self, query: Any, k: Any, v: Any, layer: Any, extend: Extend, causal: bool, out: Any, given: dict[str, Any]
    ) -> None:
        window = layer.sliding_window_size
        _packed(
            query,
            k.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim),
            v.reshape(-1, layer.tp_v_head_num, layer.v_head_dim),
            extend.query_start,
            extend.query_start,
            causal=causal,
            scale=layer.scaling,
            window=window + 1 if window > -1 else None,
            max_seqlen_q=extend.longest,
            max_seqlen_kv=extend.longest,
            out=out,
            **given,
        )

    def _over_cache(
        self, query: Any, layer: Any, extend: Extend, causal: bool, out: Any, given: dict[str, Any]
    ) -> None:
        _prefill(
            query,
            *self._caches(layer),
            extend.query_start,
            *(extend.window_pages if self._window_pool(layer) else extend.pages),
            layer.scaling,
            causal=causal,
            window_left=layer.sliding_window_size,
            out=out,
            **given,
            **self._scales(layer),
        )

    # ---- SGLang's layers and pools as the operations take them

    def _given(self, layer: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        refuse_further(kwargs, known=("sinks",))
        known = self._known.get(layer.layer_id)
        if known is None:
            known = self._known[layer.layer_id] = _checked(layer)
        sinks = kwargs.get("sinks")
        return known if sinks is None else known | {"sinks": sinks}

    def _write(self, layer: Any, forward_batch: Any, k: Any, v: Any, save_kv_cache: bool) -> None:
        if save_kv_cache and k is not None:
            place = KVWriteLoc(forward_batch.out_cache_loc, self._step().window_slots)
            self.pool.set_kv_buffer(layer, place, k, v, layer.k_scale, layer.v_scale)

    def _caches(self, layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.pool.get_kv_buffer(layer.layer_id)
        if keys.dim() == 3:
            return self._paged(keys), self._paged(values)
        if keys.dim() == 4 and keys.shape[2] == self.page_size:  # heads before positions
            return keys.transpose(1, 2), values.transpose(1, 2)
        raise NotImplementedError(f"layerzero: a KV cache of shape {tuple(keys.shape)}; served: NHD and HND")

    def _scales(self, layer: Any) -> dict[str, Any]:
        if not self.rounded or layer.k_scale is None:
            return {}
        return {"k_scale": layer.k_scale.view(-1), "v_scale": layer.v_scale.view(-1)}

    @staticmethod
    def _output(q: torch.Tensor, layer: Any) -> torch.Tensor:
        heads, size = layer.tp_q_head_num, layer.v_head_dim
        return q.new_empty(q.numel() // (heads * layer.qk_head_dim), heads, size)


def _checked(layer: Any) -> dict[str, Any]:
    """What the calls of a layer have in common. Raises NotImplementedError for a layer that is not served."""
    window = layer.sliding_window_size
    refusals = {
        "attention between an encoder and a decoder": layer.is_cross_attention,
        "attention within chunks": layer.use_irope,
        "soft-caps that are not tanh": layer.logit_cap > 0 and layer.logit_capping_method != "tanh",
        "a temperature by position": layer.xai_temperature_len > 0,
        f"positions of kind {layer.pos_encoding_mode}": layer.pos_encoding_mode != "NONE",
        f"attention of kind {layer.attn_type.value}": layer.attn_type.value not in ("decoder", "encoder_only"),
        "windows of attention that is not causal": layer.attn_type.value != "decoder" and window > -1,
    }
    if found := [text for text, is_met in refusals.items() if is_met]:
        raise NotImplementedError(f"layerzero: layer {layer.layer_id}: {'; '.join(found)}")
    return {"softcap": layer.logit_cap or None}
