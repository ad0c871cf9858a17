"""Mixtures of experts: one node of the graph, with the ids and weights of the chosen ones that a router computes."""

import dataclasses
from typing import Any

from layerzero.integrations.transformers.recognise.layout import rows_of
from layerzero.integrations.transformers.recognise.match import any_node, call, match, uncast
from layerzero.integrations.transformers.recognise.patterns.attention import Found
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.mlp import mlp_of
from layerzero.integrations.transformers.recognise.trace import Graph, Node, unclear
from layerzero.integrations.transformers.routers import Dispatched, Reader, experts_of

_GATED = call("sigmoid", any_node("gate")) * any_node("rows")


def experts_part(graph: Graph, linears: Linears, node: Node) -> Found:
    """The Experts that a node is; raises Unknown. How they are chosen is tried by `routers`, with the weights that they read."""
    rows, ids, weights = node.args[:3]
    module = node.kwargs["module"]
    name = graph.modules[id(module)]
    dispatched = Dispatched(name, module, rows.value, ids.value, weights.value, node.value)
    found, router = experts_of(dispatched, _readers(graph, weights), graph.layer)
    linears.used.append(router.name)
    return Found(found, rows_of(rows))


def _readers(graph: Graph, weights: Node) -> list[Reader]:
    """The modules whose weight has a part in the weights of the chosen experts."""
    names: dict[str, None] = {}
    todo, done = [weights], set()
    while todo:
        node = todo.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if node.op == "parameter" and node.name.endswith(".weight"):
            names[node.name.removesuffix(".weight")] = None
        elif node.op not in ("attend", "experts"):
            todo += node.inputs
    return [Reader(name, graph.layer.get_submodule(name)) for name in names]


def with_shared(graph: Graph, linears: Linears, experts: Found, term: Node) -> Found:
    """The Experts with the MLP that is added for all rows, perhaps times the sigmoid of a linear layer; raises Unknown."""
    term, gate = rows_of(term), None
    gated = match(_GATED, term)
    if gated is not None and gated["gate"].value.shape[-1] == 1:
        term, gate = rows_of(gated["rows"]), uncast(gated["gate"])
        if name_of(gate) is None or rows_of(gate.args[0]) is not experts.reads:
            raise unclear(gate, "the gate of its shared expert reads other rows")
    if term.op != "linear":
        raise unclear(term, "something else than an MLP is added to its experts")
    shared = mlp_of(graph, linears, term)
    if shared.reads is not experts.reads:
        raise unclear(term, "its shared expert reads other rows than the experts")
    return Found(
        dataclasses.replace(experts.part, shared=shared.part, shared_gate=gate and linears.use(gate)), experts.reads
    )


def is_experts(term: Any) -> bool:
    return rows_of(term).op == "experts"
