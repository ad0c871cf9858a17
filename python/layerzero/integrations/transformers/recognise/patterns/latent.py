"""Attention over latents (DeepSeek's): keys and values of all heads are products of one normalised row, and each key ends with
a rotated row that all heads share. The cache keeps both."""

import torch

from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.caches.latents import gathered
from layerzero.integrations.transformers.layers import Heads, Latent, Rope, Unshown
from layerzero.integrations.transformers.recognise.layout import heads_in, places, rows_of, source_of
from layerzero.integrations.transformers.recognise.nodes import Node
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.norm import norm_of
from layerzero.integrations.transformers.recognise.patterns.rotary import (
    has_shape_of,
    source_of_rotation,
    tried,
    turned_by,
)
from layerzero.integrations.transformers.recognise.trace import Graph, unclear

_UNKNOWN = "its keys and values are computed in a way that was not recognised"


def latent_of(graph: Graph, linears: Linears, attend: Node) -> tuple[Heads, Heads, Heads, Latent, Rope, Node] | None:
    """(queries, keys and values without their rotated part, Latent, Rope, the node of the rows that all read); None for other attention;
    raises Unknown."""
    query, key, value = attend.args
    parts = _pieces(key)
    up = source_of(value)
    if len(parts) != 2 or name_of(up) is None or source_of(parts[0]) is not up:
        return None
    normed = norm_of(up.args[0], graph) or norm_of(rows_of(up.args[0]), graph)
    down = source_of(normed[1]) if normed is not None else None
    if normed is None or down is None or name_of(down) is None or up.args[2] is not None:
        raise unclear(up, _UNKNOWN)
    unturned, shared = (part.value.shape[-1] for part in parts)
    width, size, heads = normed[1].value.shape[-1], value.value.shape[-1], value.value.shape[1]
    ends = [(parts[0], up, 0, heads, unturned), (value, up, unturned, heads, size)]
    key_heads, value_heads = (_columns(linears, *end, step=unturned + size) for end in ends)
    _columns(linears, _with_heads(normed[1]), down, 0, 1, width, step=width)
    turned, rope, gathers = _turned(graph, parts[1])
    _columns(linears, turned, down, width, 1, shared, step=shared)
    query_parts = _pieces(query)
    if len(query_parts) != 2 or query_parts[0].value.shape[-1] != unturned:
        raise unclear(query, "its queries are computed in a way that was not recognised")
    own = source_of(query_parts[0])
    query_turned, query_rope, query_gathers = _turned(graph, query_parts[1])
    if name_of(own) is None or (query_rope, query_gathers) != (rope, gathers):
        raise unclear(query, "its queries and keys are rotated in different ways")
    whole = unturned + shared
    _columns(linears, query_parts[0], own, 0, heads, unturned, step=whole)
    _columns(linears, query_turned, own, unturned, heads, shared, step=whole)
    low, low_norm, reads = None, None, rows_of(own.args[0])
    below = norm_of(reads, graph)
    if below is not None and name_of(below[1]) is not None:
        low, low_norm, reads = linears.use(below[1]), below[0], rows_of(below[1].args[0])
    if rows_of(down.args[0]) is not reads:
        raise unclear(down, "its queries, keys and values come from different rows")
    _check_cache(graph, attend, rows_of(up.args[0]).value, parts[1].value)
    latent = Latent(
        linears.use(down), width, shared, unturned, size, normed[0], linears.use(up), gathers, low, low_norm
    )
    return Heads(linears.use(own), 0, heads, whole, whole), key_heads, value_heads, latent, rope, reads


def _pieces(node: Node) -> list[Node]:
    """The nodes that are concatenated along the columns of a node; the node alone if it is no concatenation."""
    while node.op == "cast" or (node.op in ("transpose", "reshape", "contiguous") and len(node.inputs) == 1):
        node = node.inputs[0]
    axis = node.kwargs.get("dim", node.args[1] if node.op == "cat" and len(node.args) > 1 else None)
    return list(node.args[0]) if node.op == "cat" and axis in (-1, node.value.dim() - 1) else [node]


def _with_heads(node: Node) -> Node:
    made = Node("reshape", node.value.reshape(node.value.shape[0], 1, -1, node.value.shape[-1]), (node,))
    made.call = torch.reshape, (node, made.value.shape), {}
    return made


def _columns(linears: Linears, node: Node, root: Node, column: int, heads: int, size: int, step: int) -> Heads:
    """Checks that a node (batch, heads, positions, size) is these heads of a linear layer's result; raises Unknown if not."""
    found = places(node, root, {})
    made = heads_in(None if found is None else found.transpose(1, 2), root, linears.use(root))
    wanted = Heads(linears.use(root), column, heads, size, step)
    if made is None or made.starts != wanted.starts or made.size != size:
        raise unclear(node, _UNKNOWN)
    return wanted


def _turned(graph: Graph, node: Node) -> tuple[Node, Rope, bool]:
    """(the node that is rotated, how, whether even columns come first before that); raises Unknown."""
    while node.op in ("expand", "cast", "repeat", "reshape", "view"):
        node = node.inputs[0]
    given = source_of_rotation(node)
    if given is not None and has_shape_of(given, node.value.shape):
        turned = given.value.shape != node.value.shape
        rows, wanted = tried(given, node)
        wanted, rows = wanted.transpose(1, 2), rows if turned else rows.transpose(1, 2)
        for gathers in (False, True):
            for rope, made in turned_by(graph, gathered(rows) if gathers else rows):
                if structure.agrees_by_row(made.flatten(0, 1), wanted.flatten(0, 1).to(made.dtype)):
                    return given, rope, gathers
    raise unclear(node, "its rotation is none that the operation knows")


def _check_cache(graph: Graph, attend: Node, latents: torch.Tensor, turned: torch.Tensor) -> None:
    """Raises Unknown unless the cache keeps the latents, and the shared part after its rotation."""
    if not latents.any() or not turned.any():
        raise Unshown("its latents are zeros: nothing shows what the cache keeps")
    kept = graph.kept(attend.module)
    pairs = [(getattr(kept, "keys", None), latents), (getattr(kept, "values", None), turned[:, :1])]
    for held, wanted in pairs:
        if (
            held is None
            or held.shape[1] != 1
            or not torch.equal(held.flatten(), wanted.reshape(wanted.shape).flatten())
        ):
            raise unclear(attend, "its cache keeps something else than its latents")
