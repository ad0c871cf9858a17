"""Attention graphs of cudnn-frontend, planned once for each kind of call. A plan takes tens of milliseconds."""

import functools
import threading
from typing import Any, NamedTuple

import cudnn
import torch

MOST_GRAPHS = 512  # kept plans; a growing cache makes one for each length


NAMES = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT", torch.float64: "DOUBLE"}


class Kind(NamedTuple):
    """What a plan is made for. Shapes are (b, h, s, d); of pages (pages, h_kv, size, d)."""

    dtype: torch.dtype
    device: int
    query: tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides
    key: tuple[tuple[int, ...], tuple[int, ...]]
    value: tuple[tuple[int, ...], tuple[int, ...]]
    output: tuple[tuple[int, ...], tuple[int, ...]]
    scale: float
    left: int | None  # keys that a row sees up to its own position; None: all
    right: int | None  # 0: causal
    stats: bool
    pages: int = 0  # of a sequence's row in the page table; 0: keys and values are dense
    packed: bool = False  # sequences are rows of one tensor, found by offsets; s is the bound of their lengths


class Plan(NamedTuple):
    graph: Any
    tensors: dict[str, Any]
    workspace: int  # bytes


@functools.lru_cache(maxsize=MOST_GRAPHS)
def plan(kind: Kind) -> Plan:
    dtype = getattr(cudnn.data_type, NAMES[kind.dtype])
    graph = cudnn.pygraph(
        handle=handle(kind.device),
        io_data_type=dtype,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    batch = kind.query[0][0]

    def tensor(name: str, form: tuple[tuple[int, ...], tuple[int, ...]], data_type: Any) -> Any:
        return graph.tensor(name=name, dim=list(form[0]), stride=list(form[1]), data_type=data_type)

    tensors = {name: tensor(name, getattr(kind, name), dtype) for name in ("query", "key", "value")}
    options: dict[str, Any] = {}
    int32 = cudnn.data_type.INT32
    if kind.pages or kind.packed:
        tensors |= {name: tensor(name, ((batch, 1, 1, 1), (1, 1, 1, 1)), int32) for name in ("rows", "lengths")}
        options = {"use_padding_mask": True, "seq_len_q": tensors["rows"], "seq_len_kv": tensors["lengths"]}
    if kind.packed:
        starts = (
            "query_starts",
            "key_starts",
            "value_starts",
            "output_starts",
            *(("stats_starts",) if kind.stats else ()),
        )
        tensors |= {name: tensor(name, ((batch + 1, 1, 1, 1), (1, 1, 1, 1)), int32) for name in starts}
        for name in ("query", "key", "value"):
            tensors[name].set_ragged_offset(tensors[f"{name}_starts"])
    if kind.pages:
        row = ((batch, 1, kind.pages, 1), (kind.pages, kind.pages, 1, 1))
        tensors |= {name: tensor(name, row, int32) for name in ("key_table", "value_table")}
        options |= {
            "paged_attention_k_table": tensors["key_table"],
            "paged_attention_v_table": tensors["value_table"],
            "paged_attention_max_seq_len_kv": kind.pages * kind.key[0][2],
        }
    output, stats = graph.sdpa(
        name="attention",
        q=tensors["query"],
        k=tensors["key"],
        v=tensors["value"],
        generate_stats=kind.stats,
        attn_scale=kind.scale,
        diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT,
        diagonal_band_left_bound=kind.left,
        diagonal_band_right_bound=kind.right,
        **options,
    )
    output.set_output(True).set_dim(list(kind.output[0])).set_stride(list(kind.output[1])).set_data_type(dtype)
    tensors["output"] = output.set_ragged_offset(tensors["output_starts"]) if kind.packed else output
    if kind.stats:
        b, h, s, _ = kind.query[0]
        stats.set_output(True).set_dim([b, h, s, 1]).set_data_type(cudnn.data_type.FLOAT)
        stats.set_stride([h * s, 1, h, 1] if kind.packed else [h * s, s, 1, 1])
        tensors["stats"] = stats.set_ragged_offset(tensors["stats_starts"]) if kind.packed else stats
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return Plan(graph, tensors, graph.get_workspace_size())


_own = threading.local()


def handle(device: int) -> Any:
    """This thread's handle of a device, on the current stream."""
    handles = _own.__dict__.setdefault("handles", {})
    if device not in handles:
        handles[device] = cudnn.create_handle()
    if torch.cuda.is_available():
        cudnn.set_stream(handle=handles[device], stream=torch.cuda.current_stream(device).cuda_stream)
    return handles[device]


def run(kind: Kind, given: dict[str, torch.Tensor]) -> None:
    """Runs a plan; `given` has a tensor for each of its tensors."""
    found = plan(kind)
    workspace = torch.empty(found.workspace, dtype=torch.uint8, device=given["query"].device)
    values = {tensor: given[name] for name, tensor in found.tensors.items()}
    found.graph.execute(values, workspace, handle=handle(kind.device))
