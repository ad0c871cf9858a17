"""Attention: queries, keys and values are heads of linear layers' results; another linear layer reads the output."""

import dataclasses
from typing import Any

import torch

from layerzero.integrations.transformers.arguments import ENCODED, ENCODED_MASK, MASK
from layerzero.integrations.transformers.layers import Attention, Heads, Norm, Rope
from layerzero.integrations.transformers.recognise.layout import MOVES, heads_in, places, rows_of, source_of
from layerzero.integrations.transformers.recognise.match import any_node, call, factor_of, match, number_of, uncast
from layerzero.integrations.transformers.recognise.nodes import Node
from layerzero.integrations.transformers.recognise.patterns.latent import latent_of
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.norm import norm_of
from layerzero.integrations.transformers.recognise.patterns.rotary import is_rotated, rotation_of
from layerzero.integrations.transformers.recognise.trace import Graph, unclear

_GATED = any_node("mixed") * call("sigmoid", any_node("gate"))


@dataclasses.dataclass
class Found:
    """The description of a part of a layer, and the node of the rows that it reads."""

    part: Any
    reads: Node
    cross: bool = False  # its keys are of an encoder's rows
    node: Any = None  # the one that attends


def attention_of(graph: Graph, linears: Linears, out: Node) -> Found | None:
    """The Attention whose result the linear layer `out` reads; None where it reads none; raises Unknown."""
    mixed, gate, norm = rows_of(out.args[0]), None, None
    gated = match(_GATED, mixed)
    if gated is not None and source_of(gated["mixed"]).op == "attend":
        mixed, gate = gated["mixed"], gated["gate"]
    normed = norm_of(mixed, graph)
    if normed is not None and source_of(normed[1]).op == "attend":
        norm, mixed = normed
    attend = source_of(mixed)
    if attend.op != "attend":
        return None
    order = places(mixed, attend, {})
    if order is None or not torch.equal(order.flatten(), torch.arange(order.numel())):
        raise unclear(mixed, "its heads are put together in another order")
    return _described(graph, linears, attend, out, norm, gate)


def _described(graph: Graph, linears: Linears, attend: Node, out: Node, norm: Norm | None, gate: Any) -> Found:
    further = {name: value for name, value in attend.kwargs.items() if value is not None}
    latents = latent_of(graph, linears, attend)
    if latents is not None:
        return _of_latents(graph, linears, attend, out, latents, further, bool(norm or gate))
    query, key, value = (Projection(graph, linears, node, index) for index, node in enumerate(attend.args))
    encoded = graph.arguments.get(ENCODED)
    cross = encoded is not None and rows_of(key.reads).value is encoded
    _check_mask(graph, attend, ENCODED_MASK if cross else MASK)
    if attend.args[1].value.shape != attend.args[2].value.shape:
        raise unclear(attend, "its keys and values have different sizes")
    if query.rope != key.rope or value.rope is not None:
        raise unclear(attend, "its queries and keys are rotated in different ways")
    others = (value,) if cross else (key, value)
    base = key if cross else query
    if not all(each.reads is base.reads for each in others):
        raise unclear(attend, "its queries, keys and values come from different rows")
    gates = None if gate is None else _gate_of(linears, query, gate)
    causal = bool(further.get("is_causal", True))
    window = further.get("sliding_window")
    made = Attention(
        query.heads, key.heads, value.heads, linears.use(out),
        scale=float(further.get("scaling", query.heads.size**-0.5)),
        causal=causal,
        rope=query.rope,
        window=window if causal else None,
        masked_window=None if causal or cross else window,
        softcap=further.get("softcap"),
        sinks=_sinks(graph, further["s_aux"]) if "s_aux" in further else None,
        alibi=further.get("alibi"),
        gate=gates,
        mixed=norm,
    )  # fmt: skip
    plain = all(each.heads.is_plain and each.heads.linear not in linears.transposed for each in (key, value))
    odd = causal or made.rope or made.sinks or made.alibi or gates or norm or not plain or made.key.norm
    if cross and (odd or "position_bias" in further and further["position_bias"].value.any()):
        raise unclear(attend, "its attention to an encoder's rows is of an unknown kind")
    if gates and norm:
        raise unclear(attend, "its attention is normalised and has a gate")
    return Found(made, query.reads, cross, attend)


def _of_latents(
    graph: Graph, linears: Linears, attend: Node, out: Node, found: Any, further: Any, is_odd: bool
) -> Found:
    query, key, value, latent, rope, reads = found
    _check_mask(graph, attend, MASK)
    causal = bool(further.get("is_causal", True))
    if not causal or is_odd or further.get("s_aux") is not None or further.get("alibi") is not None:
        raise unclear(attend, "its attention over latents is of an unknown kind")
    made = Attention(
        query, key, value, linears.use(out),
        scale=float(further.get("scaling", query.size**-0.5)), causal=True, rope=rope,
        window=further.get("sliding_window"), softcap=further.get("softcap"), latent=latent,
    )  # fmt: skip
    return Found(made, reads, False, attend)


def _check_mask(graph: Graph, attend: Node, role: str) -> None:
    mask = attend.kwargs.get("mask")
    if mask is not None and mask.value is not graph.arguments.get(role):
        raise unclear(attend, "its attention gets another mask than the layer")


def _sinks(graph: Graph, node: Node) -> tuple[str, str]:
    held = uncast(node)
    path, name = held.place
    module = graph.layer.get_submodule(path) if held.op == "parameter" else None
    if module is None or [n for n, tensor in module._parameters.items() if tensor is not None] != [name]:
        raise unclear(node, "its attention has sinks that are no parameter of their own")
    return path, name


def _gate_of(linears: Linears, query: "Projection", gate: Node) -> Heads:
    """The columns of the gate of each head, next to the queries' columns or alone."""
    root = source_of(gate)
    name = name_of(root)
    if name is None or rows_of(root.args[0]) is not query.reads:
        raise unclear(root, "its gate reads other rows than its queries")
    found = places(gate, root, {})
    shape = (*query.node.value.transpose(1, 2).shape,)
    heads = heads_in(
        None if found is None or found.numel() != query.node.value.numel() else found.reshape(shape),
        root,
        linears.use(root),
    )
    if heads is None:
        raise unclear(gate, "its gate has columns in an unknown order")
    return heads


class Projection:
    """Queries, keys or values: heads of a linear layer's result, and what is computed between the two.

    reads: the node of the rows that the linear layer reads. The order is: linear layer, norm, bounds, rotation, norm, factor.
    """

    _NAMES = ("queries", "keys", "values")

    def __init__(self, graph: Graph, linears: Linears, node: Node, index: int) -> None:
        self.graph, self.node = graph, node
        self.rope: Rope | None = None
        self.norm: tuple[Norm, Node] | None = None
        self.behind = False
        self.clip: Any = None
        self.factor = 1.0
        self.through: dict[int, Any] = {}
        self.called = self._NAMES[index]
        root = self._walk(node)
        self.reads = rows_of(root.args[0])
        name = linears.use(root)
        moved = places(node, root, self.through)
        heads = heads_in(None if moved is None else moved.transpose(1, 2), root, name)
        if heads is None:
            raise unclear(node, f"its {self.called} are columns of {name} in an unknown order")
        whole = self.norm is not None and self._is_whole(root, heads)
        self.heads = dataclasses.replace(
            heads, norm=self.norm and self.norm[0], whole=whole, behind=self.behind, factor=self.factor, clip=self.clip
        )

    def _walk(self, node: Node) -> Node:
        """Walks back to the linear layer, and keeps what is computed on the way."""
        while name_of(node) is None:
            computed = self._computed(node)
            if computed is not None:
                node = computed
            elif is_rotated(node) and (node.op not in MOVES or node.op in ("cat", "stack") or _is_folded(node)):
                node = self._rotated(node)
            elif node.op in MOVES and node.inputs:
                node = self._moved_from(node)
            else:
                raise unclear(node, f"its {self.called} are computed in a way that was not recognised")
        return node

    def _rotated(self, node: Node) -> Node:
        if self.rope is not None or self.clip is not None:
            raise unclear(node, f"its {self.called} are rotated before something else")
        self.behind = self.norm is not None
        self.rope, given, turned = rotation_of(self.graph, node, self._has_positions_first(node))
        self.through[id(node)] = given, turned
        return given

    def _has_positions_first(self, node: Node) -> bool:
        """Whether a node has the axes (batch, positions, heads, size) and not (batch, heads, positions, size)."""
        found, own = places(self.node, node, self.through), torch.arange(node.value.numel()).reshape(node.value.shape)
        for first in (False, True):
            if (
                found is not None
                and node.value.dim() == 4
                and torch.equal(found, own.transpose(1, 2) if first else own)
            ):
                return first
        raise unclear(node, f"its {self.called} are moved after the rotation")

    def _moved_from(self, node: Node) -> Node:
        below = source_of(node) if len(node.inputs) > 1 else node.inputs[0]
        if below is node:
            raise unclear(node, f"its {self.called} are put together from several sources")
        return below

    def _computed(self, node: Node) -> Node | None:
        """The input of a norm, a factor or bounds; None if the node is none of them."""
        found = norm_of(node, self.graph)
        factor, below = factor_of(node)
        if found is not None:
            if self.norm is not None:
                raise unclear(node, f"its {self.called} are normalised twice")
            self.norm, below = found, found[1]
        elif below is not uncast(node):
            if self.rope is not None or self.norm is not None or self.clip is not None:
                raise unclear(node, f"its {self.called} have a factor before something else")
            self.factor *= factor
        elif node.op == "clamp":
            bounds = [number_of(each) for each in node.args[1:]]
            if self.norm is not None or self.clip is not None or None in bounds:
                raise unclear(node, f"its {self.called} are bounded in a way that was not recognised")
            self.clip, below = tuple(bounds), node.args[0]
        else:
            return None
        self.through[id(node)] = below, False
        return below

    def _is_whole(self, root: Node, heads: Heads) -> bool:
        """Whether the norm is over all columns at once, not over each head; raises Unknown if it is neither."""
        norm, given = self.norm or (None, root)
        width = given.value.shape[-1]
        if width == heads.size and heads.heads != 1:
            return False
        if width == root.value.shape[-1] == heads.heads * heads.size:
            return heads.heads != 1 or given.value.dim() != 4
        raise unclear(given, f"its {self.called} are normalised in other pieces than heads")


def _is_folded(node: Node) -> bool:
    """Whether a move ends a rotation: it flattens pairs or complex numbers into rows."""
    return len(node.inputs) == 1 and node.value.dim() == 4 and node.inputs[0].value.dim() > 4
