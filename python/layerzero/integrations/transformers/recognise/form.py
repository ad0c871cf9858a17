"""The form of a graph: everything that patterns read, except the numbers in parameters and rows. Layers of one form are matched once."""

from typing import Any

import torch
from torch import nn

from layerzero.integrations.transformers.recognise.nodes import Node
from layerzero.integrations.transformers.recognise.trace import Graph

_PLAIN = (
    int,
    float,
    str,
    bool,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
)
_FEW = 16  # numbers of a constant that are compared by value


def form_of(graph: Graph) -> tuple[Any, ...]:
    """Equal for layers with the same code that made the same calls."""
    places = {id(node): index for index, node in enumerate(graph.nodes)}
    places |= graph.modules

    def plain(value: Any) -> Any:
        if isinstance(value, (Node, nn.Module)):
            return type(value).__name__, places.get(id(value), id(value))
        if isinstance(value, (tuple, list)):
            return type(value).__name__, *map(plain, value)
        if isinstance(value, dict):
            return tuple((name, plain(each)) for name, each in value.items())
        if isinstance(value, slice):
            return "slice", plain(value.start), plain(value.stop), plain(value.step)
        return (type(value).__name__, value) if isinstance(value, _PLAIN) else id(value)

    def said(node: Node) -> tuple[Any, ...]:
        tensor = node.value if isinstance(node.value, torch.Tensor) else None
        shape = None if tensor is None else (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        own: Any = None
        if tensor is not None and node is not graph.rows and node.op in ("input", "constant"):
            own = tuple(tensor.flatten().tolist()) if tensor.numel() <= _FEW else id(tensor)
        if tensor is not None and node.op == "parameter" and tensor.dtype == torch.bool:  # a mask: patterns read it
            own = hash(tensor.cpu().numpy().tobytes())
        return node.op, node.name, node.module, plain(node.args), plain(node.kwargs), shape, own

    modules = [(name, type(module), _facts_of(graph, name, module)) for name, module in graph.layer.named_modules()]
    ends = [places.get(id(node)) for node in (graph.rows, graph.result)]
    return repr(modules), graph.calls, graph.tuples, graph.refused, *ends, *map(said, graph.nodes)


def _facts_of(graph: Graph, name: str, module: nn.Module) -> list[Any]:
    """Attributes of a module that no node shows: switches and configurations; of experts, which are one node, all plain values."""
    experts = [node.kwargs["module"] for node in graph.nodes if node.op == "experts"]
    inner = any(f"{name}.".startswith(f"{graph.modules[id(one)]}.") for one in experts)
    facts = vars(module).items()
    kept = [
        (key, held) for key, held in facts if held is None or type(held) is bool or (inner and type(held) in _PLAIN)
    ]
    return [*((key, held) for key, held in kept if key != "layer_idx"), id(getattr(module, "config", None))]
