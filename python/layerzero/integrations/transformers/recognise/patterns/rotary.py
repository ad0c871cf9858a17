"""Rotary embeddings of queries and keys: everything that is computed from one source and tables of cosines and sines.

Which kind of `rope` it is follows from comparing results on made-up numbers.
"""

from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.arguments import POSITIONS, TABLES, tables_of
from layerzero.integrations.transformers.layers import Rope, Table, kind_of
from layerzero.integrations.transformers.recognise.layout import MOVES
from layerzero.integrations.transformers.recognise.nodes import Node, below
from layerzero.integrations.transformers.recognise.trace import Graph, again, unclear

_rope = _layerzero.ops["rope"]
_COMPLEX = {"view_as_complex", "view_as_real", "real", "imag"}
_TURNS = {*MOVES, *_COMPLEX, "add", "sub", "mul", "neg", "zeros_like", "empty_like"}
# What may be done to tables before: rows of positions, moves, and the two numbers of a complex one.
_ROWS = {*MOVES, *_COMPLEX, "parameter", "gather", "embedding", "index", "take_along_dim"}


def is_rotated(node: Node) -> bool:
    """Whether a node is part of a rotation: it depends on tables or positions through calls that a rotation makes."""
    nodes = below(node, lambda each: each.op not in ("linear", "attend")) if node.op in _TURNS else ()
    return any(each.op == "input" and _is_of_positions(each) for each in nodes)


def _is_of_positions(given: Node) -> bool:
    return given.name.partition(".")[0] in (TABLES, POSITIONS)


def rotation_of(graph: Graph, node: Node, positions_first: bool) -> tuple[Rope, Node, bool]:
    """(Rope, the node that is rotated, whether its axes 1 and 2 are the other way round); raises Unknown.

    node: heads with four axes, (batch, positions, heads, size) or, not `positions_first`, (batch, heads, positions, size).
    """
    given = source_of_rotation(node)
    if given is None:
        raise unclear(node, "its rotation reads more than one source")
    rows, wanted = tried(given, node)
    wanted = wanted if positions_first else wanted.transpose(1, 2)
    for turned in (False, True):
        heads = rows if positions_first != turned else rows.transpose(1, 2)
        for rope, made in turned_by(graph, heads) if heads.shape == wanted.shape else ():
            if structure.agrees_by_row(made.flatten(0, 1), wanted.flatten(0, 1).to(made.dtype)):
                return rope, given, turned
    raise unclear(node, "its rotation is none that the operation knows")


def tried(given: Node, node: Node) -> tuple[torch.Tensor, torch.Tensor]:
    """(made-up numbers for the node `given`, the result of the layer's calls for them): the layer's own numbers may be all zero."""
    rows = structure.normal(*given.value.shape).to(given.value)
    return rows, again(node, {id(given): rows})


def source_of_rotation(node: Node) -> Node | None:
    """The nearest node of the result's size from which everything but the tables comes by moves."""
    ways = [_ways(each) for each in _edge(node)]
    first, *others = ways or [[]]
    common = [each for each in first if all(any(each is one for one in way) for way in others)]
    shape = node.value.shape
    fitting = (each for each in common if has_shape_of(each, shape))
    return next(fitting, None)


def has_shape_of(node: Node, shape: Any) -> bool:
    return isinstance(node.value, torch.Tensor) and node.value.shape in (
        shape,
        (shape[0], shape[2], shape[1], shape[3]),
    )


def _edge(node: Node) -> list[Node]:
    """The inputs of a rotation that are no tables: nodes that do not depend on tables and are read by nodes that do."""
    nodes = below(node, lambda each: is_rotated(each) and not _is_table(each))
    tensors = (each for each in nodes if isinstance(each.value, torch.Tensor) and each.value.numel() > 1)
    return [each for each in tensors if not is_rotated(each) and not _is_table(each)]


def _is_table(node: Node) -> bool:
    """Whether a node is rows of tables, only moved. Other functions of positions may equal 1 just for the first positions."""
    reads = False
    for each in below(node):
        if each.op not in _ROWS and not (each.op == "input" and _is_of_positions(each)):
            return False
        reads |= each.op == "input"
    return reads


def _ways(node: Node) -> list[Node]:
    """The node, and the nodes that it is a move or the negative of, the nearest first."""
    found = [node]
    while (node.op in MOVES or node.op in ("neg", "view_as_complex")) and node.inputs:
        if len(node.inputs) == 1:
            node = node.inputs[0]
            found.append(node)
            continue
        first, *others = map(_ways, node.inputs)
        return found + [each for each in first if all(any(each is one for one in way) for way in others)]
    return found


def turned_by(graph: Graph, heads: torch.Tensor) -> Any:
    """Yields (Rope, the rotated heads) for each kind of rotation and each pair of tables that the layer has."""
    for *tables, place in _tables(graph):
        width = tables[0].shape[-1]
        kinds = [(False, width, width), (True, width, width), (False, 2 * width, width), (True, 2 * width, width)]
        kinds += [(True, width, width // 2)]
        for interleaved, rotary_dim, read in kinds:
            if rotary_dim <= heads.shape[-1]:
                cos, sin = (table[..., :read].expand(heads.shape[0], -1, -1) for table in tables)
                made = _rope(
                    heads.contiguous(), cos, sin, interleaved=interleaved, rotary_dim=rotary_dim, layout="BSHD"
                )
                yield Rope(interleaved, rotary_dim, read, **place), made


def _tables(graph: Graph) -> Any:
    """Yields (cosines, sines, fields of a Rope that name their source): the layer's arguments, else rows of its own buffers."""
    cos, sin = tables_of(graph.arguments.get(TABLES))
    if cos is not None and cos.dim() == sin.dim() == 3:
        yield cos, sin, {}
        yield sin, cos, {"sines_first": True}
    positions: Any = graph.arguments.get(POSITIONS)
    if cos is not None or kind_of(positions) != (2, "torch.int64"):
        return
    read = {id(node.value) for node in graph.nodes if node.op == "parameter"}
    for name, module in graph.layer.named_modules():
        for key, held in module._buffers.items():
            rows = held if id(held) in read and kind_of(held) == (2, "floating point") else None
            if rows is not None and rows.shape[1] % 2 == 0 and positions.max() < len(rows):
                for table in (Table(name, key, False), Table(name, key, True)):
                    yield *table.at(rows, positions), {"table": table}
