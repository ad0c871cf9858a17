"""What both backends share: SGLang's pools, the metadata of a step, and its CUDA graph hooks."""

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from layerzero.integrations.sglang.metadata import GraphState, Step, Tables, build

_MODES = ("EXTEND", "DECODE", "MIXED", "IDLE", "SPLIT_PREFILL", "PREBUILT")


class StepBackend(AttentionBackend):
    needs_cpu_seq_lens = True  # bounds of tables and lists, so that nothing waits for the device

    def __init__(self, runner: Any) -> None:
        """runner: SGLang's ModelRunner, whose pools exist."""
        super().__init__()
        pool = runner.token_to_kv_pool
        translates = getattr(pool, "swa_layer_nums", 0) and hasattr(pool, "translate_loc_from_full_to_swa")
        self.pool, self.page_size, self.device = pool, runner.page_size, runner.device
        self.split_layers = getattr(pool, "layers_mapping", {}) if translates else {}
        self.tables = Tables(
            runner.req_to_token_pool.req_to_token,
            runner.page_size,
            runner.model_config.context_len,
            pool.translate_loc_from_full_to_swa if translates else None,
        )
        self.state: GraphState | None = None
        self.forward_metadata: Step | None = None

    # ---- once a step

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self._check(forward_batch)
        self.forward_metadata = build(forward_batch, self.tables)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        self.state = GraphState(self.tables, max_bs, max_num_tokens, self.device)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Before a capture and before each replay. SGLang's capture and replay pass the same kind of batch."""
        self._check(forward_batch)
        if not forward_batch.forward_mode.is_decode_or_idle():
            raise NotImplementedError(
                "layerzero: prefill in a full CUDA graph; start SGLang with --cuda-graph-backend-prefill breakable, or disabled"
            )
        if self.state is None:
            raise RuntimeError("layerzero: init_cuda_graph_state is to be called before a graph is captured")
        self.forward_metadata = self.state.fill(forward_batch)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1  # padded requests have the key in slot 0, which belongs to nobody

    def _check(self, forward_batch: Any) -> None:
        mode = forward_batch.forward_mode
        if mode.name not in _MODES or getattr(forward_batch, "spec_info", None) is not None:
            raise NotImplementedError(
                f"layerzero: steps of mode {mode.name} (speculative decoding, diffusion of tokens)"
            )

    def _step(self) -> Step:
        if self.forward_metadata is None:
            raise RuntimeError("layerzero: init_forward_metadata is to be called before the layers of a step")
        return self.forward_metadata

    # ---- of a layer

    def _window_pool(self, layer: Any) -> bool:
        """Whether the layer's keys are in the pool for windows."""
        return bool(self.split_layers) and bool(self.split_layers[layer.layer_id][1])

    def _paged(self, buffer: torch.Tensor) -> torch.Tensor:
        """(slots, heads, size) to (pages, page size, heads, size), a view."""
        rows = buffer.stride(0)
        shape = (buffer.shape[0] // self.page_size, self.page_size, *buffer.shape[1:])
        return buffer.as_strided(shape, (rows * self.page_size, rows, *buffer.stride()[1:]))


def refuse_further(given: dict[str, Any], known: tuple[str, ...] = ()) -> None:
    """Raises NotImplementedError for arguments of a model's attention that would change the result."""
    further = sorted(
        name for name, value in given.items() if name not in known and value is not None and value is not False
    )
    if further:
        raise NotImplementedError(f"layerzero: attention with {', '.join(further)}")
