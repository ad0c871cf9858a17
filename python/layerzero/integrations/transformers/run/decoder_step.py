"""A step of a decoder by calls of operations, as it is captured: from the inputs in the step's memory to the last norm."""

from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers.run import variants
from layerzero.integrations.transformers.run.captured_step import Branches, Step
from layerzero.integrations.transformers.run.layer_calls import run_layers, scores_of, turns_where_stored
from layerzero.integrations.transformers.run.products import Products
from layerzero.integrations.transformers.run.rotation import Rotation

_OPS = _layerzero.ops
_attention = _OPS["attention"]
_append = _OPS["kv_append_paged"]
_rope_append = _OPS["kv_rope_append_paged"]
_paged_attention = _OPS["paged_attention"]
_paged_prefill = _OPS["paged_prefill_attention"]


class DecoderStep:
    """For CapturedSteps: what runs a step of a base model, for which `plan` describes the layers."""

    def __init__(self, base: Any, plan: Any) -> None:
        self.base, self.plan = base, plan
        self.branches = Branches(2, plan.device)
        self.rotation = Rotation(base.rotary_emb)
        self.are_turned_late = all(turns_where_stored(layer.shape.attention) for layer in plan.layers)

    def state(self) -> Any:
        """Graphs are right as long as it stays the same."""
        return self.rotation.state()

    def variants(self) -> list[variants.Variant]:
        """Choices for single parts of a decode step; the products are known once one has run."""
        return variants.of_one_part(self.plan.products().parts)

    def __call__(self, step: Step, rows: Any) -> torch.Tensor:
        """rows: keys and values of each layer. Returns the last hidden states (b, length, width)."""
        ids, mask = step.inputs.rows, step.inputs.mask
        hidden = self.plan.embed(ids, step.kernels.get(variants.EMBEDDING)) if ids.dim() == 2 else ids
        (cos, sin), places = self._tables(step, hidden)
        if mask is None and step.length > 1 and hidden.dtype == torch.float32:
            mask = step.causal()  # kernels of packed queries are for 16 bits
        pairs = iter(zip(rows[::2], rows[1::2], strict=True))  # of each layer, in the order in which they run

        def attend(layer: Any, query: Any, key: Any, value: Any, tables: Any) -> torch.Tensor:
            cache = next(pairs)
            query = _stored(layer, (query, key, value), tables, places, cache, step.slots)
            return _attended(layer, query, cache, mask, step)

        products = Products(self.plan, step.kernels) if step.kernels else self.plan.products()
        return run_layers(self.plan, products, hidden, cos, sin, attend, self.branches)

    def _tables(self, step: Step, hidden: torch.Tensor) -> Any:
        """((cosines, sines), which of their rows belongs to each row of the step; None: they have one for each)."""
        from_tables = step.inputs.positions is None and self.are_turned_late
        step.tables = self.rotation.tables(step.capacity, hidden) if from_tables else None
        if step.tables is not None:
            return step.tables, step.places
        made = self.base.rotary_emb(hidden, position_ids=step.positions())
        return [table.expand(len(hidden), -1, -1).contiguous() for table in made], None


def _rotation(layer: Any, tables: Any, places: Any, size: int) -> tuple[Any, dict[str, Any]]:
    """The tables with a row for each row of the step, or for each position, and how heads of `size` are turned by them."""
    rope = layer.shape.attention.rope
    if places is None:
        tables = [table.flatten(0, 1) for table in tables]
    partly = {} if rope.rotary_dim == size else {"rotary_dim": rope.rotary_dim}
    return tables, {"position_ids": places, "interleaved": rope.interleaved} | partly


def _stored(layer: Any, new: Any, tables: Any, places: Any, cache: Any, slots: torch.Tensor) -> torch.Tensor:
    """Stores new keys and values; returns the queries. tables: None, or by what queries and keys are turned first."""
    query, key, value = (part.flatten(0, 1) for part in new)
    if tables is None:
        _append(*cache, key, value, slots, layout="NHD")
        return new[0]
    tables, how = _rotation(layer, tables, places, query.shape[-1])
    turned: torch.Tensor = _rope_append(query, key, value, *tables, *cache, slots, layout="NHD", **how)
    return turned.view(new[0].shape)


def _attended(layer: Any, query: torch.Tensor, cache: Any, mask: Any, step: Step) -> torch.Tensor:
    """(b, length, heads, size) for queries of the same shape, over all keys and values of `cache`."""
    scale, capped = scores_of(layer)
    if mask is not None:
        found = _attention(query, *cache, causal=False, scale=scale, attn_mask=mask, layout="BSHD", **capped)
    elif step.length == 1:
        found = _paged_attention(query, *cache, step.pages[:, None], step.lengths, scale=scale, **capped)
    else:
        place = step.first_query, step.first_page, step.pages, step.lengths
        found = _paged_prefill(query.flatten(0, 1), *cache, *place, scale, **capped)
        found = found.view(*query.shape[:3], -1)
    return found
