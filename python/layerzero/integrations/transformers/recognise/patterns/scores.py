"""Attention that a layer computes by torch's own functions: scaled_dot_product_attention, or a product of queries and keys,
a softmax, and a product with values. It becomes a node "attend", as attention through Transformers' interface is one.

Between product and softmax there may be factors, the layer's mask, ALiBi that the layer gets as an argument, and a lower
bound of the scores, in any order. A program gets only the slopes of ALiBi if the bias is slope * position.
"""

from collections.abc import Iterator
from typing import Any

import torch

import layerzero as lz
from layerzero.integrations.transformers.arguments import MASK
from layerzero.integrations.transformers.layers import Alibi
from layerzero.integrations.transformers.recognise.layout import MOVES, places, source_of
from layerzero.integrations.transformers.recognise.match import number_of, uncast
from layerzero.integrations.transformers.recognise.nodes import Node, below, named
from layerzero.integrations.transformers.recognise.trace import Graph
from layerzero.integrations.transformers.run import linear_biases

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_SHAPES = ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "cast")
_NOT = ("logical_not", "invert", "bitwise_not")


def add_attends(graph: Graph) -> None:
    """Replaces attention that is written out in a graph by one node each."""
    reached = {id(node) for node in below(graph.result)}  # a library's test at its first use is not the layer's
    for node in [each for each in graph.nodes if id(each) in reached]:
        if node.op == "scaled_dot_product_attention":
            _of_function(graph, node)
        elif node.op == "softmax":
            for product in _products_with(graph, node):
                _of_softmax(graph, node, product)


def _products_with(graph: Graph, weights: Node) -> Iterator[Node]:
    """The matrix products whose left operand is these weights, or a move of them."""
    for user in graph.users.get(id(weights), ()):
        if user.op in MOVES or user.op == "alias":
            yield from _products_with(graph, user)
        elif user.op == "matmul" and source_of(user.args[0]) is source_of(weights):
            yield user


def _of_function(graph: Graph, node: Node) -> None:
    given = named(_SDPA, node.args, node.kwargs)
    mask = given.get("attn_mask")
    causal = bool(given.get("is_causal")) or (mask is not None and graph.cache is not None)
    further = {"mask": mask, "is_causal": causal, "scaling": given.get("scale")}
    _replace(graph, node, [given[name] for name in _SDPA[:3]], further)


def _of_softmax(graph: Graph, weights: Node, product: Node) -> None:
    batch, found = graph.rows.value.shape[0], _Scores()
    if not found.walk(weights.args[0], 1.0) or not found.is_known(graph, weights.args[0].value):
        return

    def heads(node: Node, turns: bool) -> Node:
        node = uncast(node)
        value = node.value.transpose(-1, -2) if turns else node.value
        shape = (batch, -1, *value.shape[-2:])
        call: Any = (lambda t: (t.transpose(-1, -2) if turns else t).reshape(shape)), (node,), {}
        return Node("reshape", value.reshape(shape), (node,), module=node.module, call=call)

    given = [heads(found.left, False), heads(found.right, True), heads(product.args[1], False)]
    further = {"mask": found.mask, "is_causal": graph.cache is not None, "scaling": found.scale, "alibi": found.alibi}
    _replace(graph, product, given, further)


class _Scores:
    """What is computed between the product of queries and keys and the softmax. left, right: operands of the product. mask: node of the
    layer's mask."""

    left: Any = None
    right: Any = None
    scale = 1.0
    mask: Any = None
    inverted = False  # whether a boolean mask is True where it hides
    alibi: Alibi | None = None

    def __init__(self) -> None:
        self.added: list[tuple[Node, float]] = []
        self.hidden: list[tuple[Node, bool]] = []  # (where, whether True hides)

    def walk(self, node: Node, factor: float) -> bool:
        """Walks down to the product; False if something else is on the way. factor: what the node is multiplied with."""
        if node.op in _SHAPES:
            return self.walk(node.inputs[0], factor)
        if node.op == "matmul":
            (self.left, self.right), self.scale = node.args, factor
            return True
        if node.op == "baddbmm":
            given = named(("input", "batch1", "batch2"), node.args, node.kwargs)
            self.left, self.right, self.scale = given["batch1"], given["batch2"], factor * given.get("alpha", 1.0)
            self.added.append((given["input"], factor * given.get("beta", 1.0)))
            return True
        if node.kwargs or len(node.args) < 2:
            return False
        operands: list[Any] = [*node.args]
        first, second, further = *operands[:2], operands[2:]
        if node.op in ("mul", "div", "add"):
            return self._walk_of_two(node.op, first, second, factor)
        if node.op in ("masked_fill", "where"):
            where, inner = (second, first) if node.op == "masked_fill" else (first, second)
            self.hidden.append((where, node.op == "masked_fill"))
            return _is_hidden(number_of(further[0]), node) and self.walk(inner, factor)
        bound = number_of(second) if node.op in ("maximum", "clamp") and further in ([], [None]) else None
        return _is_hidden(bound, node) and self.walk(first, factor)

    def _walk_of_two(self, op: str, first: Any, second: Any, factor: float) -> bool:
        if op == "add":
            pair = (first, second) if _has_product(first) else (second, first)
            self.added.append((pair[1], factor))
            return isinstance(pair[1], Node) and _has_product(pair[0]) and self.walk(pair[0], factor)
        number = number_of(second)
        if op == "mul" and number is None:
            first, number = second, number_of(first)
        return bool(number) and self.walk(first, factor * float(number or 0) ** (1 if op == "mul" else -1))

    def is_known(self, graph: Graph, scores: torch.Tensor) -> bool:
        """Whether only the layer's mask and ALiBi are added, and only what the mask hides is hidden."""
        mask, (rows, keys) = graph.arguments.get(MASK), scores.shape[-2:]
        if not isinstance(mask, torch.Tensor) or mask.dim() != 4:
            return False
        biases = [(node, factor) for node, factor in self.added if factor <= 0 or not self._is_mask(node, mask)]
        causal = torch.ones(rows, keys, dtype=torch.bool, device=mask.device).tril(keys - rows)
        own = [_is_triangle(where, causal) for where, hides in self.hidden if not self._is_mask(where, mask, hides)]
        if self.mask is None or len(biases) > 1 or not all(own):
            return False
        shown = mask == self.inverted if mask.dtype == torch.bool else ~linear_biases.hidden_by(mask)
        if (mask.is_floating_point() and bool(mask[shown].any())) or (own and bool((shown & ~causal).any())):
            return False
        heads = scores.numel() // (graph.rows.value.shape[0] * rows * keys)
        return all(self._is_bias(node, factor, heads, keys, shown) for node, factor in biases) and (
            self.alibi is not None or not self.inverted
        )

    def _is_mask(self, node: Node, mask: torch.Tensor, hides: bool | None = None) -> bool:
        """Whether a node is the mask. hides: whether True hides a key, None if the mask is added to scores."""
        root, whole = source_of(node), _is_whole(node)
        while root.op in _NOT and hides is not None:
            node, hides = root.inputs[0], not hides
            root, whole = source_of(node), whole and _is_whole(node)
        if not whole or root.value is not mask or (hides is None) is not mask.is_floating_point():
            return False
        self.mask, self.inverted = root, bool(hides)
        return True

    def _is_bias(self, node: Node, factor: float, heads: int, keys: int, shown: torch.Tensor) -> bool:
        """Whether a node is an argument of the layer that `linear_biases.applied` can extend to more positions."""
        root = source_of(node)
        found, given = places(node, root, {}), root.value
        if factor != 1.0 or root.op != "input" or found is None or not given.is_floating_point():
            return False
        order = linear_biases.rows_of(torch.arange(given.numel()).reshape(given.shape), heads, keys, keys)
        rows = linear_biases.rows_of(given, heads, keys, keys)
        if order is None or rows is None or order.numel() != found.numel():
            return False
        self.alibi = Alibi(root.name, _slopes_of(rows.double(), shown), self.inverted)
        return torch.equal(found.reshape(order.shape[0], heads, 1, keys), order)


def _has_product(node: Any) -> bool:
    """Whether a node depends on a product, so that it has the scores and not a mask or bias."""
    return isinstance(node, Node) and any(each.op in ("matmul", "baddbmm") for each in below(node))


def _is_whole(node: Node) -> bool:
    """Whether a node is its whole source in the same order, perhaps with expanded axes."""
    root = source_of(node)
    found, order = places(node, root, {}), torch.arange(root.value.numel()).reshape(root.value.shape)
    if found is None or found.dim() != order.dim() or found.numel() < order.numel():
        return False
    fits = all(size in (1, own) for size, own in zip(order.shape, found.shape, strict=True))
    return fits and torch.equal(found, order.expand_as(found))


def _is_hidden(number: float | None, node: Node) -> bool:
    """Whether a score of this value hides its key."""
    return number is not None and number <= torch.finfo(node.value.dtype).min / 64


def _is_triangle(where: Node, causal: torch.Tensor) -> bool:
    """Whether a node is part of a buffer with a causal mask."""
    root = source_of(where)
    held = root.value
    if root.op != "parameter" or held.dtype != torch.bool or held.dim() < 2 or where.value.numel() != causal.numel():
        return False
    return torch.equal(held.bool(), torch.ones_like(held, dtype=torch.bool).tril()) and torch.equal(
        where.value.reshape(causal.shape).bool(), causal
    )


def _slopes_of(bias: torch.Tensor, shown: torch.Tensor) -> tuple[float, ...] | None:
    """The published slopes for this number of heads if the bias has them, else the slopes of the bias; None if it is not linear."""
    seen = shown.any(dim=(1, 2))
    last = bias[-1, :, 0]  # of a sequence without padding
    for slopes in (lz.alibi_slopes(last.shape[0]).double(), (last[:, -1] - last[:, 0]) / max(last.shape[-1] - 1, 1)):
        exact = bias.float() if bool((bias.float().double() == bias).all()) else bias
        if linear_biases.are_linear(exact.to(torch.float32), slopes.float(), seen):
            return tuple(slopes.float().tolist())
    return None


def _replace(graph: Graph, node: Node, heads: Any, further: Any) -> None:
    """Turns the node into a view of a new node "attend", whose result has the axes (batch, positions, heads, size)."""
    shape = node.value.shape
    result = node.value.reshape(graph.rows.value.shape[0], -1, *shape[-2:]).transpose(1, 2)
    attend = Node("attend", result, tuple(heads), further, module=node.module)
    graph.nodes.append(attend)
    node.op, node.args, node.kwargs = "reshape", (attend,), {}
    node.call = lambda t: t.transpose(1, 2).reshape(shape), node.args, {}
