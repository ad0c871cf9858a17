"""The gated delta rule after a causal convolution, over a state in place of keys and values.

The input of the convolution, the gates, the norm after the rule and the sizes of heads are read from the graph. The rule
between them is written differently in each release: its nodes are computed again on made-up rows, gates and weights, and
have to return the operations' results and leave the same state in the cache. So weights that are zero do not matter.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import LinearAttentionLayer

from layerzero import _layerzero
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.arguments import MASK
from layerzero.integrations.transformers.layers import L2_EPS, Delta, Heads, Unknown
from layerzero.integrations.transformers.recognise.layout import MOVES, places, rows_of, source_of
from layerzero.integrations.transformers.recognise.match import any_node, call, match, number_of, parameter, uncast
from layerzero.integrations.transformers.recognise.nodes import Node, named
from layerzero.integrations.transformers.recognise.patterns.attention import Found
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.norm import norm_of
from layerzero.integrations.transformers.recognise.trace import Graph, again, unclear

_conv, _rule = _layerzero.ops["causal_conv1d"], _layerzero.ops["gated_delta_rule"]
GATED = any_node("normed") * call("silu", any_node("gate"))
_DECAY = call("neg", call("exp", parameter("a_log"))) * call("softplus", any_node("logits") + parameter("dt_bias"))


def delta_of(graph: Graph, linears: Linears, out: Node) -> Found | None:
    """The Delta whose result the linear layer `out` reads; None where it reads no norm with a gate; raises Unknown."""
    convolutions = [node for node in graph.nodes if node.op == "conv1d"]
    mixed = out.args[0]
    while mixed.op in MOVES:
        mixed = mixed.inputs[0]
    found = match(GATED, mixed)
    normed = None if found is None else norm_of(found["normed"], graph)
    if found is None or normed is None or len(convolutions) != 1:
        return None
    conv = _convolution(graph, convolutions[0])
    if normed[0].operation != "rms_norm":
        raise unclear(mixed, "what it reads of its state goes through no rms_norm")
    size = normed[1].value.shape[-1]
    parts, gate = _parts(linears, conv.given, out), _columns(linears, found["gate"])
    roots = {name_of(node): node for node in graph.nodes if name_of(node) is not None}
    for delta, gates in _candidates(graph, linears, conv, parts, gate, size, normed[0], linears.use(out)):
        kept = _kept(graph, delta)
        if _agrees(conv, gates, normed[1], kept, delta):
            reads, masked = _reads(graph, [roots[name] for name in delta.linears])
            return Found(dataclasses.replace(delta, masked=masked), reads)
    raise unclear(mixed, "its state is updated in a way that was not recognised")


@dataclasses.dataclass
class _Convolution:
    """path: of the module; given: the node that it reads, (batch, channels, positions); held: weight, and bias or None."""

    path: str
    given: Node
    held: tuple[Node, Any]


@dataclasses.dataclass
class _Gates:
    """The nodes of the logits of decay and beta, (batch, positions, heads), and of the vectors."""

    decay: Node
    beta: Node
    a_log: Node
    dt_bias: Node


def _convolution(graph: Graph, node: Node) -> _Convolution:
    given = named(("input", "weight", "bias"), node.args, node.kwargs)
    held = source_of(given["weight"])
    path, key = held.place
    module: Any = graph.layer.get_submodule(path) if held.op == "parameter" else None
    plain = isinstance(module, nn.Conv1d) and key == "weight" and not structure.why_not_plain(module)
    if not plain or (module.stride, module.dilation, module.weight.shape[1]) != ((1,), (1,), 1):
        raise unclear(node, "its convolution mixes channels, or is no part of it")
    return _Convolution(path, given["input"], (held, given.get("bias")))


def _parts(linears: Linears, given: Node, out: Node) -> list[Heads]:
    """Queries, keys and values as they go into the convolution (batch, channels, positions)."""
    keys = given.value.shape[1] - out.args[0].value.shape[-1]
    if keys <= 0 or keys % 2:
        raise unclear(given, "its convolution reads something else than queries, keys and values")
    pieces = given
    while pieces.op in ("transpose", "cast"):
        pieces = pieces.inputs[0]
    nodes = list(pieces.args[0]) if pieces.op == "cat" else [pieces]
    columns = [column for node in nodes for column in _places(node)]
    found, start = [], 0
    for width in (keys // 2, keys // 2, given.value.shape[1] - keys):
        found.append(_as_heads(linears, given, columns[start : start + width]))
        start += width
    return found


def _columns(linears: Linears, node: Node) -> Heads:
    return _as_heads(linears, node, _places(node))


def _places(node: Node) -> list[tuple[Node, int]]:
    """(linear layer, its column) of each column of a node; raises Unknown."""
    root = source_of(node)
    found = places(node, root, {}) if name_of(root) is not None else None
    if found is None:
        raise unclear(node, "its columns are those of no linear layer")
    total = root.value.shape[-1]
    rows = root.value.numel() // total
    found = found.reshape(rows, -1) - torch.arange(rows)[:, None] * total
    if not torch.equal(found, found[:1].expand_as(found)):
        raise unclear(node, "its columns are in an unknown order")
    return [(root, column) for column in found[0].tolist()]


def _as_heads(linears: Linears, node: Node, columns: list[tuple[Node, int]]) -> Heads:
    """The Heads at these columns: runs of one size at equal distances; raises Unknown."""
    roots = {id(root): root for root, _ in columns}
    found = [column for _, column in columns]
    size = next((i for i in range(1, len(found)) if found[i] != found[i - 1] + 1), len(found))
    heads, rest = divmod(len(found), size)
    step = found[size] - found[0] if heads > 1 else size
    if len(roots) != 1 or rest or found != [found[0] + i * step + j for i in range(heads) for j in range(size)]:
        raise unclear(node, "its columns are in an unknown order")
    return Heads(linears.use(next(iter(roots.values()))), found[0], heads, size, step)


def _candidates(
    graph: Graph, linears: Linears, conv: _Convolution, parts: Any, gate: Heads, size: int, norm: Any, out: str
) -> Iterator[tuple[Delta, _Gates]]:
    query, key, value = parts
    number, width = value.heads * value.size // size, query.heads * query.size
    shapes = (node.value.shape for node in graph.nodes if node.op in MOVES and isinstance(node.value, torch.Tensor))
    sizes = {(shape[-2], shape[-1]) for shape in shapes if len(shape) == 4 and shape[-2] * shape[-1] == width}
    decays = [found for node in graph.nodes if (found := match(_DECAY, node)) is not None]
    betas = [node for node in graph.nodes if node.op == "sigmoid" and node.value.shape[-1] == number]
    for decay, beta in ((decay, beta) for decay in decays for beta in betas):
        gates = _Gates(decay["logits"], uncast(beta.args[0]), decay["a_log"], decay["dt_bias"])
        vectors = [node.place for node in (gates.a_log, gates.dt_bias)]
        if any(graph.layer.get_submodule(path)._parameters.get(key) is None for path, key in vectors):
            continue
        g, b = _columns(linears, gates.decay), _columns(linears, gates.beta)
        factors = [number_of(arg) for user in graph.users.get(id(beta), ()) if user.op == "mul" for arg in user.args]
        for heads in sorted(heads for heads in sizes if number % heads[0] == 0):
            yield Delta(
                query, key, value, gate, g, b,
                heads=heads, value_heads=(number, size), conv=conv.path, taps=conv.held[0].value.shape[-1],
                a_log=vectors[0], dt_bias=vectors[1], norm=norm, out=out,
                beta_scale=next(filter(None, factors), 1.0), masked=False,
            ), gates  # fmt: skip


def _kept(graph: Graph, delta: Delta) -> tuple[Node, Node]:
    """The nodes of what the cache keeps for the layer: rows for the next convolution, and the state."""
    kept = graph.kept(delta.a_log[0])
    if type(kept) is not LinearAttentionLayer:
        raise Unknown("its state is kept in a cache of another kind")
    return graph.node_of(kept.conv_states[0]), graph.node_of(kept.recurrent_states[0])


def _agrees(conv: _Convolution, gates: _Gates, read: Node, kept: tuple[Node, Node], delta: Delta) -> bool:
    """Whether the graph and the operations return the same for made-up rows, and keep the same in the cache."""
    made: dict[int, torch.Tensor] = {}

    def make(node: Node, factor: float = 1.0) -> torch.Tensor:
        tensor = structure.normal(*node.value.shape, seed=len(made)) * factor
        made[id(node)] = tensor.to(node.value.device)
        return tensor

    rows, (weight, bias) = make(conv.given), conv.held
    rows[..., rows.shape[-1] // 2 :] *= 3e-4  # keys so short that their norm shows what is added to it
    made[id(conv.given)].copy_(rows)
    batch, channels, length = rows.shape
    taps = make(weight, delta.taps**-0.5).reshape(channels, -1)
    before = rows.new_zeros(batch, channels, delta.taps)
    further = {"bias": None if bias is None else make(bias), "activation": "silu"}
    mixed = _conv(rows.transpose(1, 2).contiguous(), taps, before.clone(), **further)
    (heads, key), (number, size) = delta.heads, delta.value_heads
    parts = mixed.split([heads * key, heads * key, number * size], -1)
    shapes = ((heads, key), (heads, key), (number, size))
    q, k, v = (part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True))
    g, beta = (make(node).reshape(batch, length, number) for node in (gates.decay, gates.beta))
    state = rows.new_zeros(batch, number, key, size)
    vectors = {"a_log": make(gates.a_log), "dt_bias": make(gates.dt_bias)}
    expected = _rule(q, k, v, g, beta, state, l2_eps=L2_EPS, beta_scale=delta.beta_scale, **vectors)
    actual, last, states = (again(node, made).cpu() for node in (read, kept[1], kept[0]))
    if not torch.equal(states.float(), torch.cat([before, rows], -1)[..., -delta.taps :].to(states.dtype).float()):
        return False
    same = last.dtype == state.dtype and last.shape == state.shape and structure.agrees(state, last)
    return same and structure.agrees_by_row(expected.reshape(actual.shape).to(actual.dtype), actual)


def _reads(graph: Graph, roots: list[Node]) -> tuple[Node, bool]:
    """(the node of the rows that linear layers read, as if there were no mask; whether there is one)."""
    reads, *others = (rows_of(root.args[0]) for root in roots)
    if any(other is not reads for other in others):
        raise Unknown("the linear layers before its state read different rows")
    found = match(any_node("rows") * any_node("mask"), reads)
    mask = graph.arguments.get(MASK)
    if found is None or mask is None:
        return reads, False
    for name, other in (("rows", "mask"), ("mask", "rows")):
        if source_of(uncast(found[other])).value is mask and mask.shape == reads.value.shape[:2]:
            return rows_of(found[name]), True
    return reads, False
