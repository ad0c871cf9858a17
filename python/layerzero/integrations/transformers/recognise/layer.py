"""Reads a layer from its graph: from its result back along the residual stream to its input, and the parts that are added to it."""

import dataclasses
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from layerzero.integrations.transformers import biases, structure, thresholds
from layerzero.integrations.transformers.layers import (
    Attention,
    Delta,
    Experts,
    Layer,
    Norm,
    Norms,
    NotReached,
    Unknown,
    Unshown,
)
from layerzero.integrations.transformers.recognise.layout import rows_of
from layerzero.integrations.transformers.recognise.match import factor_of, terms_of
from layerzero.integrations.transformers.recognise.nodes import Node, below
from layerzero.integrations.transformers.recognise.patterns.attention import Found, attention_of
from layerzero.integrations.transformers.recognise.patterns.delta import delta_of
from layerzero.integrations.transformers.recognise.patterns.experts import experts_part, is_experts, with_shared
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.mlp import mlp_of
from layerzero.integrations.transformers.recognise.patterns.norm import norm_of, scale_of
from layerzero.integrations.transformers.recognise.patterns.scores import add_attends
from layerzero.integrations.transformers.recognise.trace import Graph, unclear
from layerzero.integrations.transformers.run.experts import looks_like_experts


@dataclasses.dataclass
class Part:
    """What is added to the residual stream: factor * after(found)."""

    term: Node
    found: Found
    factor: float
    after: Norm | None

    @property
    def order(self) -> int:
        if isinstance(self.found.part, (Attention, Delta)):
            return 1 if self.found.cross else 0
        return 2


class _Reading:
    """Collects the parts of one layer."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.linears = Linears(graph)
        self.parts: list[Part] = []
        self.shared: list[Node] = []
        self.norms: list[tuple[Norm, Node, list[Node]]] = []  # of the stream: (Norm, its node, the terms that it reads)

    def stream(self, node: Node) -> None:
        """Collects the parts whose sum is this node."""
        terms = terms_of(node)
        experts = [term for term in terms if is_experts(_inner(term))]
        shared: list[Node] = []
        if len(experts) == 1:
            reads = rows_of(_inner(experts[0]).args[0])
            shared = [term for term in terms if term is not experts[0] and _reads_only(term, reads)]
        for term in terms:
            if term is self.graph.rows or any(term is one for one in shared):
                continue
            if any(term is one for one in (part.term for part in self.parts)):
                raise unclear(term, "a part of it is added twice")
            self._term(term, shared if any(term is one for one in experts) else [])
        self.shared = shared

    def _term(self, term: Node, shared: list[Node]) -> None:
        outer = norm_of(term, self.graph)
        inner = rows_of(outer[1]) if outer is not None else None
        if outer is not None and inner is not None and self._is_stream(inner):
            self.norms.append((outer[0], term, terms_of(inner)))
            self.stream(inner)
            return
        self.parts.append(self._part(term, shared))

    def _is_stream(self, node: Node) -> bool:
        """Whether one term of a sum is the layer's input, or a norm of such a sum."""
        for term in terms_of(node):
            if term is self.graph.rows:
                return True
            normed = norm_of(term, self.graph)
            if normed is not None and self._is_stream(normed[1]):
                return True
        return False

    def _part(self, term: Node, shared: list[Node]) -> Part:
        factor, node = factor_of(rows_of(term))
        after = norm_of(node, self.graph) or scale_of(node, self.graph)
        node = rows_of(after[1] if after is not None else node)
        if factor == 1.0:
            factor, node = factor_of(node)
            node = rows_of(node)
        terms = terms_of(node)
        if len(terms) > 1 and any(map(is_experts, terms)):
            (node,) = (each for each in terms if is_experts(each)) if sum(map(is_experts, terms)) == 1 else (node,)
            shared = [each for each in terms if each is not node]
        return Part(term, self._found(rows_of(node), shared), factor, after and after[0])

    def _found(self, node: Node, shared: list[Node]) -> Found:
        if node.op == "experts":
            found = experts_part(self.graph, self.linears, node)
            for each in shared:
                found = with_shared(self.graph, self.linears, found, each)
            return found
        if node.op != "linear":
            raise unclear(node, "is added to the stream, and is no attention, MLP or experts")
        found_or_none = attention_of(self.graph, self.linears, node) or delta_of(self.graph, self.linears, node)
        return found_or_none or mlp_of(self.graph, self.linears, node)


def _inner(term: Node) -> Node:
    return rows_of(factor_of(rows_of(term))[1])


def _reads_only(term: Node, reads: Node) -> bool:
    """Whether a term is computed only from these rows and parameters."""
    nodes = below(term, lambda node: rows_of(node) is not reads)
    return not any(node.op in ("input", "attend", "experts") and rows_of(node) is not reads for node in nodes)


@dataclasses.dataclass
class Read:
    """A graph that was read: its Layer, the nodes of its linear layers, and its parts in their order."""

    graph: Graph
    layer: Layer
    linears: list[Node]
    parts: list[Part]


def read(graph: Graph) -> Read:
    """Reads a graph; raises Unknown with the node that no pattern fits, and why."""
    if graph.rows is None:
        raise NotReached("was not reached by a small input")
    if graph.calls > 1:
        raise Unknown("is called several times in one forward")
    if graph.refused:
        raise Unknown(graph.refused)
    if graph.result is None:
        raise Unknown("returns more than rows")
    add_attends(graph)
    reading = _Reading(graph)
    reading.stream(graph.result)
    parts = sorted(reading.parts, key=lambda part: part.order)
    kinds = [part.order for part in parts]
    if kinds not in ([0, 2], [0, 1, 2]):
        raise Unknown(f"has {kinds.count(0) + kinds.count(1)} attentions and {kinds.count(2)} MLPs")
    if len({part.factor for part in parts}) > 1:
        raise Unknown("its parts are added with different factors")
    linears = [node for node in graph.nodes if name_of(node) in reading.linears.used]
    _refuse_unshown(graph, linears, [(part.order, part.term) for part in parts])
    _refuse_unseen(graph)
    norms = _in_turn(graph, reading, parts)
    parallel = norms is None
    if norms is None:
        norms = _side_by_side(graph, reading, parts)
    if norms is None:
        raise _why_in_no_order(graph, parts)
    return Read(graph, _layer(graph, reading, parts, parallel, norms), linears, parts)


def read_again(known: Read, graph: Graph) -> Layer:
    """The Layer of a graph with the same form as `known`; only what depends on its numbers is checked again."""
    places = {id(node): index for index, node in enumerate(known.graph.nodes)}

    def same(node: Node) -> Node:
        return graph.nodes[places[id(node)]]

    terms = [(part.order, same(part.term)) for part in known.parts]
    _refuse_unshown(graph, [same(node) for node in known.linears], terms)
    holder = graph.layer.get_submodule(_holder_of(known.parts))
    return dataclasses.replace(known.layer, index=_index_of(holder), bias=_bias(graph, holder))


_NAMES = ("attention", "attention to an encoder", "MLP")


def _refuse_unshown(graph: Graph, linears: list[Node], parts: list[tuple[int, Node]]) -> None:
    """Raises Unshown if the weights are such that comparing results could not show what a part computes."""
    if not all(node.value.any() for node in linears):
        raise Unshown("its weights are zeros: a comparison of numbers would not show what they are for")
    for order, term in parts:
        if torch.equal(graph.given + term.value.reshape(graph.given.shape), graph.given):
            raise Unshown(f"its {_NAMES[order]} adds nothing to its input: a comparison of numbers would not show it")


def _refuse_unseen(graph: Graph) -> None:
    """Raises Unknown if some code or tensor of the layer had no part in this run."""
    unread = _unread_tensor(graph)
    if unread:
        raise Unknown(f"{unread} is in it, and its code does not read it")
    clamped = [node.module for node in graph.nodes if node.op == "clamp"]
    for name, module in graph.layer.named_modules():
        if not looks_like_experts(module) and clamped.count(name) < thresholds.clamps_of(module, half=False):
            raise Unknown(f"{name}: its code calls clamp: no small input shows what that does")


def _unread_tensor(graph: Graph) -> str | None:
    """The name of a tensor that the layer's code did not read and may read in another call, or None. Linear layers and norms of
    other branches do not count; of buffers only those near experts do, which may correct their choice.
    """
    read = {node.name for node in graph.nodes if node.op == "parameter" and id(node) in graph.users}
    experts = [name for name, module in graph.layer.named_modules() if name and looks_like_experts(module)]
    for name, module in graph.layer.named_modules():
        around = any(f"{each}.".startswith(f"{name}." if name else "") for each in experts)
        shares_parent = any(name.rpartition(".")[0] == each.rpartition(".")[0] for each in experts)
        held = [*module._parameters.items(), *(module._buffers.items() if around or shares_parent else ())]
        names = [f"{name}.{key}".lstrip(".") for key, tensor in held if tensor is not None]
        plain = isinstance(module, (nn.Linear, Conv1D)) or structure.looks_like_norm(module)
        if name in experts or (plain and not read.intersection(names)):
            continue
        for each in names:
            if each not in read:
                return each
    return None


def _layer(graph: Graph, reading: _Reading, parts: list[Part], parallel: bool, norms: list[Norms]) -> Layer:
    attention, mlp = parts[0].found.part, parts[-1].found.part
    cross = parts[1].found.part if len(parts) == 3 else None
    holder = graph.layer.get_submodule(_holder_of(parts))
    return Layer(
        attention, mlp, norms[0], norms[-1], parallel, parts[0].factor,
        index=_index_of(holder), transposed=tuple(reading.linears.transposed),
        cross=cross, cross_norms=norms[1] if cross else Norms(), bias=_bias(graph, holder),
    )  # fmt: skip


def _holder_of(parts: list[Part]) -> str:
    """The path of the module that computes attention or keeps a state."""
    own, attention = parts[0].found.node, parts[0].found.part
    return own.module if own is not None else attention.a_log[0]


def _index_of(holder: Any) -> int:
    indices = (getattr(holder, name, None) for name in ("layer_idx", "layer_id"))
    return next((index for index in indices if index is not None), -1)


def _bias(graph: Graph, holder: Any) -> Any:
    return None if graph.bias is None else biases.of_attention(holder, graph.modules[id(holder)], graph.bias)


def _why_in_no_order(graph: Graph, parts: list[Part]) -> Unknown:
    """The refusal of a layer: it names what a part reads if that is neither a sum nor a norm of one, else the order of the parts."""
    for part in parts:
        reads = part.found.reads
        normed = norm_of(reads, graph)
        reads = rows_of(normed[1]) if normed is not None else reads
        if reads is not graph.rows and len(terms_of(reads)) == 1 and norm_of(reads, graph) is None:
            return unclear(reads, f"is read by its {_NAMES[part.order]}, and is no norm of the stream")
    return Unknown("the order of its norms and sums was not recognised")


def _ids(nodes: Any) -> frozenset[int]:
    return frozenset(map(id, nodes))


def _in_turn(graph: Graph, reading: _Reading, parts: list[Part]) -> list[Norms] | None:
    """The Norms of parts that each read the stream after the part before; None if they do not."""
    stream = _ids([graph.rows])
    found = []
    for part in parts:
        before = _before(graph, part, stream)
        if before is False:
            return None
        stream = stream | _ids([part.term, *(reading.shared if isinstance(part.found.part, Experts) else ())])
        following = next(((norm, node) for norm, node, terms in reading.norms if _ids(terms) == stream), None)
        if following is not None:
            stream = _ids([following[1]])
        found.append(Norms(before, part.after, following and following[0]))
    return found if _ids(terms_of(graph.result)) == stream else None


def _side_by_side(graph: Graph, reading: _Reading, parts: list[Part]) -> list[Norms] | None:
    """The Norms of two parts that both read the layer's input; None if they do not."""
    stream = _ids([graph.rows])
    befores = [_before(graph, part, stream) for part in parts]
    terms = stream | _ids([*(part.term for part in parts), *reading.shared])
    if False in befores or reading.norms or len(parts) != 2 or _ids(terms_of(graph.result)) != terms:
        return None
    return [Norms(before, part.after) for before, part in zip(befores, parts, strict=True)]


def _before(graph: Graph, part: Part, stream: frozenset[int]) -> Any:
    """The norm between the stream, given by the ids of its terms, and a part, or None; False if the part reads something else."""
    reads = part.found.reads
    if _ids(terms_of(reads)) == stream:
        return None
    normed = norm_of(reads, graph)
    return normed[0] if normed is not None and _ids(terms_of(normed[1])) == stream else False
