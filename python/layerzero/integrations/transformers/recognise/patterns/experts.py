"""Mixtures of experts: one node of the graph, with the ids and weights of the chosen ones that a router computes."""

import dataclasses
from typing import Any

from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.layers import Experts, Unknown
from layerzero.integrations.transformers.recognise.layout import rows_of
from layerzero.integrations.transformers.recognise.match import any_node, call, match, uncast
from layerzero.integrations.transformers.recognise.nodes import Node
from layerzero.integrations.transformers.recognise.patterns.attention import Found
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.mlp import mlp_of
from layerzero.integrations.transformers.recognise.patterns.router import routed
from layerzero.integrations.transformers.recognise.trace import Graph, unclear
from layerzero.integrations.transformers.run import experts as experts_interface

_GATED = call("sigmoid", any_node("gate")) * any_node("rows")


def experts_part(graph: Graph, linears: Linears, node: Node) -> Found:
    """The Experts that a node is; raises Unknown."""
    rows, ids, weights = node.args[:3]
    module = node.kwargs["module"]
    name = graph.modules[id(module)]
    gate, reason = experts_interface.gate_of(module)
    if reason:
        raise Unknown(f"{name}: {reason}")
    found = routed(ids, weights, experts_interface.sizes_of(module)[0], rows_of(rows))
    router = name_of(found.logits) or ""
    reason = structure.why_not_plain(graph.layer.get_submodule(router))
    if reason or found.logits.kwargs["transposed"]:
        raise unclear(found.logits, reason or "its router's weight is stored as [inputs, outputs]")
    linears.used.append(router)
    made = Experts(name, router, ids.value.shape[-1], found.route, gate, bool(module.is_transposed))
    return Found(made, rows_of(rows))


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
