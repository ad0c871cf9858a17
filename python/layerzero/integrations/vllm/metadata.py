"""What the layers of one step share: which requests decode, which have several new tokens, and where their keys are.

It is built once a step. Lengths and block tables stay on the device; the host knows upper bounds of the lengths alone.
"""

import copy
import functools
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from layerzero.integrations.serving.pages import Pages, pages_of
from layerzero.torch import offsets

FEWEST_SHARED = 512  # keys of a common prefix that are worth a pass of their own
FEWEST_SHARING = 8  # requests that share them


@dataclass
class Prefill:
    """Requests with several new tokens, n of them."""

    query_start: torch.Tensor  # (n + 1) int32, from 0
    end: int  # of the step's tokens; after it come padded ones
    longest: int  # new tokens of one request
    fresh: bool  # every request begins in this step, so that its keys are those that the layer has computed
    tables: torch.Tensor  # (n, width) int32
    lengths: torch.Tensor  # (n) int32 keys
    page_size: int
    most: int  # an upper bound of the pages of all

    @functools.cached_property
    def pages(self) -> Pages:
        """For layers that read the cache; a step that needs no list makes none."""
        return pages_of(self.tables, self.lengths, self.page_size, self.most)


def first(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The first rows; the tensor itself where they are all, since a view costs the host as much as a small kernel."""
    return rows if rows.shape[0] == count else rows[:count]


class Shared(NamedTuple):
    """A prefix of all requests (cascade): attention over it and over the rest is merged."""

    pages: Pages  # one sequence: the prefix
    query_start: torch.Tensor  # (2) int32: all new tokens
    num_pages: int


@dataclass
class LayerZeroMetadata(AttentionMetadata):
    num_decodes: int
    num_decode_tokens: int
    num_tokens: int  # of the step; may be padded
    query_start: torch.Tensor  # (requests + 1) int32 of all requests
    longest: int  # new tokens of one request
    # (requests, width) int32 blocks, those that decode first, and (requests) int32 keys; both without a shared prefix
    tables: torch.Tensor
    lengths: torch.Tensor
    causal: bool
    decoding: tuple[torch.Tensor, torch.Tensor]  # the rows of tables and lengths that decode, for all layers
    prefill: Prefill | None = None
    shared: Shared | None = None


class LayerZeroMetadataBuilder(AttentionMetadataBuilder[LayerZeroMetadata]):
    # A graph of a decode step reads lengths and tables from vLLM's own buffers, so that it is right for later steps.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    supports_update_block_table = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        self.page_size = kv_cache_spec.block_size

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> LayerZeroMetadata:
        return self._build(common_attn_metadata, common_prefix_len, captured=False)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> LayerZeroMetadata:
        return self._build(common_attn_metadata, 0, captured=True)

    def use_cascade_attention(
        self,
        common_prefix_len: int,
        query_lens: Any,
        num_query_heads: int,
        num_kv_heads: int,
        use_alibi: bool,
        use_sliding_window: bool,
        use_local_attention: bool,
        num_sms: int,
        dcp_world_size: int,
    ) -> bool:
        plain = not (use_alibi or use_sliding_window or use_local_attention) and dcp_world_size == 1
        return plain and common_prefix_len >= FEWEST_SHARED and len(query_lens) >= FEWEST_SHARING

    def update_block_table(
        self, metadata: LayerZeroMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> LayerZeroMetadata:
        new = copy.copy(metadata)
        if (shared := metadata.shared) is not None:
            prefix = shared.pages._replace(indices=blk_table[0, : shared.num_pages])
            new.shared = shared._replace(pages=prefix)
            blk_table = blk_table[:, shared.num_pages :]
        new.tables = blk_table[:, : metadata.tables.shape[1]]
        new.decoding = first(new.tables, metadata.num_decodes), metadata.decoding[1]
        if metadata.prefill is not None:
            new.prefill = replace(metadata.prefill, tables=new.tables[-len(metadata.prefill.tables) :])
        return new

    def _build(self, common: CommonAttentionMetadata, prefix: int, captured: bool) -> LayerZeroMetadata:
        if isinstance(common.causal, torch.Tensor):
            raise NotImplementedError("layerzero: attention that is causal for some requests alone")
        decodes, prefills, decode_tokens, _ = split_decodes_and_prefills(common, decode_threshold=1)
        requests = common.num_reqs
        tables, lengths = first(common.block_table_tensor, requests), first(common.seq_lens, requests)
        if not captured:  # a graph has to serve all lengths
            tables = tables[:, : max(-(-common.max_seq_len // self.page_size), 1)]
        shared = None
        if prefix:
            shared = self._shared(tables, prefix // self.page_size, common.num_actual_tokens)
            tables, lengths = tables[:, shared.num_pages :], (lengths - prefix).clamp_(min=0)
        metadata = LayerZeroMetadata(
            num_decodes=decodes,
            num_decode_tokens=decode_tokens,
            num_tokens=common.num_actual_tokens,
            query_start=common.query_start_loc[: requests + 1],  # an object of this step alone: offsets.declare
            longest=common.max_query_len,
            tables=tables,
            lengths=lengths,
            causal=common.causal,
            decoding=(first(tables, decodes), first(lengths, decodes)),
            shared=shared,
        )
        if prefills:
            metadata.prefill = self._prefill(common, metadata, prefix)
        return metadata

    def _prefill(self, common: CommonAttentionMetadata, step: LayerZeroMetadata, prefix: int) -> Prefill:
        # Lists: for so few numbers an operation of NumPy or torch takes longer than a loop.
        begin, decoded = step.num_decodes, step.num_decode_tokens
        starts = [at - decoded for at in common.query_start_loc_cpu.tolist()[begin : common.num_reqs + 1]]
        new = [end - start for start, end in pairwise(starts)]
        query_start = step.query_start
        if begin:
            query_start = query_start[begin:] - decoded
        offsets.declare(query_start, starts)
        fresh, most = False, len(new) * step.tables.shape[1]
        # Exact where a request has several new tokens; None: of virtual batches.
        if (bound := common.seq_lens_cpu_upper_bound) is not None:
            keys = bound.tolist()[begin : common.num_reqs]
            fresh = not prefix and keys == new
            most = sum(-(-max(key - prefix, 0) // self.page_size) for key in keys)
        rest = (step.tables[begin:], step.lengths[begin:]) if begin else (step.tables, step.lengths)
        return Prefill(query_start, decoded + starts[-1], max(new), fresh, *rest, self.page_size, max(most, 1))

    def _shared(self, tables: torch.Tensor, count: int, tokens: int) -> Shared:
        def numbers(*values: int) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=tables.device)

        return Shared(Pages(numbers(0, count), tables[0, :count], numbers(self.page_size)), numbers(0, tokens), count)
