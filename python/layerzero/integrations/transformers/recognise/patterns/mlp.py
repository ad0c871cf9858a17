"""MLPs: out(activation(gate) * up) or out(activation(up)), whose gate and up are linear layers or halves of one."""

from typing import Any

import torch

from layerzero.integrations.transformers.layers import Columns, Mlp
from layerzero.integrations.transformers.recognise.layout import places, rows_of, source_of
from layerzero.integrations.transformers.recognise.match import any_node, call, match_one
from layerzero.integrations.transformers.recognise.nodes import Node
from layerzero.integrations.transformers.recognise.patterns.attention import Found
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.norm import norm_of
from layerzero.integrations.transformers.recognise.trace import Graph, unclear

x, up = any_node("x"), any_node("up")

_ROOT = 0.7978845608028654  # of 2 / pi
# Formulas of each activation. A function of torch with its name is one call.
ACTIVATIONS = {
    "silu": [call("silu", x), x * call("sigmoid", x)],
    "gelu": [
        call("gelu", x),
        0.5 * x * (1.0 + call("erf", x * 0.7071067811865476)),
        0.5 * x * (1.0 + call("erf", x / 1.4142135623730951)),
    ],
    "gelu_tanh": [
        call("gelu_tanh", x),
        0.5 * x * (1.0 + call("tanh", _ROOT * (x + 0.044715 * x**3))),
        0.5 * x * (1.0 + call("tanh", x * _ROOT * (1.0 + 0.044715 * x * x))),
    ],
    "relu": [call("relu", x)],
    "relu2": [call("relu", x) ** 2],
    "quick_gelu": [x * call("sigmoid", 1.702 * x)],
}
_OPERATIONS = {"silu": ("swiglu", None), "gelu": ("geglu", "none"), "gelu_tanh": ("geglu", "tanh")}


def activation_of(node: Any) -> tuple[str, Node] | None:
    """(the activation, what it reads) of a node that is one."""
    found = match_one(ACTIVATIONS, rows_of(node))
    return None if found is None else (found[0], found[1]["x"])


def mlp_of(graph: Graph, linears: Linears, out: Node) -> Found:
    """The Mlp whose last linear layer is `out`; raises Unknown."""
    given = rows_of(out.args[0])
    norm = None
    hidden = _hidden(given)
    if hidden is None:
        normed = norm_of(given, graph)
        if normed is not None:
            norm, given = normed
            hidden = _hidden(rows_of(given))
    if hidden is None:
        raise unclear(given, "mlp: it computes something else than out(activation(gate) * up)")
    kind, *ends = hidden
    columns = [_columns(linears, end) for end in ends]
    reads = [rows_of(source_of(end).args[0]) for end in ends]
    if any(each is not reads[0] for each in reads):
        raise unclear(given, "the linear layers of its MLP read different rows")
    name = linears.use(out)
    if len(columns) == 1:
        return Found(Mlp(columns[0], name, "activation", kind, norm=norm), reads[0])
    operation, further = _OPERATIONS.get(kind, ("activation", kind))
    return Found(Mlp(columns[1], name, operation, further, columns[0], norm), reads[0])


def _hidden(node: Node) -> tuple[Any, ...] | None:
    """(activation, its input) or (activation, gate, up) of the rows that an MLP's last linear layer reads; None of anything else."""
    plain = activation_of(node)
    if plain is not None and name_of(source_of(plain[1])) is not None:
        return plain
    if node.op == "mul" and len(node.args) == 2 and all(isinstance(each, Node) for each in node.args):
        for one, other in (node.args, node.args[::-1]):
            gated = activation_of(one)
            if gated is not None and all(name_of(source_of(end)) is not None for end in (gated[1], other)):
                return *gated, other
    return None


def _columns(linears: Linears, node: Node) -> Columns:
    root = source_of(node)
    found = places(node, root, {})
    width, total = node.value.shape[-1], root.value.shape[-1]
    name = linears.use(root)
    if found is not None:
        first = int(found.flatten()[0])
        rows = torch.arange(root.value.numel() // total)[:, None] * total
        if torch.equal(found.reshape(-1, width), rows + first + torch.arange(width)):
            return Columns(name, first, width)
    raise unclear(node, "the columns of its gate and up are in an unknown order")
