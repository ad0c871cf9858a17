"""Attention that a layer computes by torch's own functions: scaled_dot_product_attention, or a product of queries and keys,
a softmax, and a product with values. It becomes a node "attend", as attention through Transformers' interface is one.
"""

import math
from collections.abc import Iterator
from typing import Any

from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.arguments import MASK
from layerzero.integrations.transformers.recognise.layout import MOVES, source_of
from layerzero.integrations.transformers.recognise.match import number_of, uncast
from layerzero.integrations.transformers.recognise.trace import Graph, Node, again
from layerzero.integrations.transformers.run import linear_biases

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_BETWEEN = {"add", "mul", "div", "sub", "masked_fill", "where", "clamp", "maximum", *MOVES}


def add_attends(graph: Graph) -> None:
    """Makes the attention that is written out in a graph one node each."""
    reached = _leading_to(graph.result)
    for node in [each for each in graph.nodes if id(each) in reached]:
        if node.op == "scaled_dot_product_attention":
            _of_function(graph, node)
        elif node.op == "softmax":
            for product in _products_with(graph, node):
                _of_softmax(graph, node, product)


def _leading_to(result: Node) -> set[int]:
    """The ids of the nodes that a result depends on. What else was called meanwhile, a library's test for example, is not
    the layer's."""
    found, todo = set[int](), [result]
    while todo:
        node = todo.pop()
        if id(node) not in found:
            found.add(id(node))
            todo += node.inputs
    return found


def _products_with(graph: Graph, weights: Node) -> Iterator[Node]:
    """The products of which weights, moved at most, are the left operand."""
    for user in graph.users.get(id(weights), ()):
        if user.op in MOVES or user.op == "alias":
            yield from _products_with(graph, user)
        elif user.op == "matmul" and source_of(user.args[0]) is source_of(weights):
            yield user


def _of_function(graph: Graph, node: Node) -> None:
    given = dict(zip(_SDPA, node.args, strict=False)) | node.kwargs
    mask = given.get("attn_mask")
    causal = bool(given.get("is_causal")) or (mask is not None and graph.cache is not None)
    further = {"mask": mask, "is_causal": causal, "scaling": given.get("scale")}
    _replace(graph, node, [given[name] for name in _SDPA[:3]], further)


def _of_softmax(graph: Graph, weights: Node, product: Node) -> None:
    scores = weights.args[0]
    found = _product_below(scores)
    batch = graph.rows.value.shape[0]
    if found is None:
        return
    left, right, factors = found

    def heads(node: Node, turns: bool) -> Node:
        node = uncast(node)
        value = node.value.transpose(-1, -2) if turns else node.value
        shape = (batch, -1, *value.shape[-2:])
        made = Node("reshape", value.reshape(shape), (node,), module=node.module)
        made.call = lambda t: (t.transpose(-1, -2) if turns else t).reshape(shape), (node,), {}
        return made

    query, key, value = heads(left, False), heads(right, True), heads(product.args[1], False)
    other = {
        id(node): structure.normal(*node.value.shape, seed=seed).to(node.value)
        for seed, node in enumerate((uncast(left), uncast(right)))
    }
    seen = again(scores, dict(other)).reshape(batch, -1, *scores.value.shape[-2:])
    known = linear_biases.scores_of(seen, again(query, dict(other)), again(key, dict(other)), factors, graph.arguments)
    if known is not None:
        mask = graph.node_of(graph.arguments[MASK])
        further = {"mask": mask, "is_causal": graph.cache is not None, "scaling": known.scale, "alibi": known.alibi}
        _replace(graph, product, [query, key, value], further)


def _product_below(scores: Node) -> tuple[Node, Node, list[float]] | None:
    """(queries, keys, the numbers by which a sum of their product and of biases is multiplied or divided)."""
    numbers: list[float] = []
    todo = [scores]
    while todo:
        node = uncast(todo.pop())
        if node.op == "matmul":
            return node.args[0], node.args[1], numbers
        if node.op == "baddbmm":
            given = dict(zip(("input", "batch1", "batch2"), node.args, strict=False)) | node.kwargs
            return given["batch1"], given["batch2"], [*numbers, float(given.get("alpha", 1.0))]
        if node.op in _BETWEEN:
            numbers += [abs(n) for n in map(number_of, node.args) if n and math.isfinite(n)]
            todo += node.inputs
    return None


def _replace(graph: Graph, node: Node, heads: Any, further: Any) -> None:
    """The node becomes a view of an "attend", whose result has the axes (batch, positions, heads, size)."""
    shape = node.value.shape
    result = node.value.reshape(graph.rows.value.shape[0], -1, *shape[-2:]).transpose(1, 2)
    attend = Node("attend", result, tuple(heads), further, module=node.module)
    graph.nodes.append(attend)
    node.op, node.args, node.kwargs = "reshape", (attend,), {}
    node.call = lambda t: t.transpose(1, 2).reshape(shape), node.args, {}
