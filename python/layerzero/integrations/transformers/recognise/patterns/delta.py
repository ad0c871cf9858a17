"""The gated delta rule after a causal convolution, over a state in place of keys and values.

The graph shows what the convolution reads, the gates and the norm after the rule. The rule between them is a loop over pieces of
a text, different in each release: it is compared as a whole, with weights made up (`deltas.Trial`).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.arguments import MASK
from layerzero.integrations.transformers.layers import Delta, Heads, Unknown, Unshown
from layerzero.integrations.transformers.recognise import deltas
from layerzero.integrations.transformers.recognise.layout import MOVES, places, rows_of, source_of
from layerzero.integrations.transformers.recognise.match import any_node, call, match, parameter, uncast
from layerzero.integrations.transformers.recognise.patterns.attention import Found
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, name_of
from layerzero.integrations.transformers.recognise.patterns.norm import norm_of
from layerzero.integrations.transformers.recognise.trace import Graph, Node, unclear

_GATED = any_node("normed") * call("silu", any_node("gate"))
_DECAY = call("neg", call("exp", parameter("a_log"))) * call("softplus", any_node("logits") + parameter("dt_bias"))
_BETA_SCALES = (1.0, 2.0)


def delta_of(graph: Graph, linears: Linears, out: Node) -> Found | None:
    """The Delta whose result the linear layer `out` reads; None where it reads no norm with a gate; raises Unknown."""
    convolutions = [node for node in graph.nodes if node.op == "conv1d"]
    mixed = out.args[0]
    while mixed.op in MOVES:
        mixed = mixed.inputs[0]
    found = match(_GATED, mixed)
    normed = None if found is None else norm_of(found["normed"], graph)
    if found is None or normed is None or len(convolutions) != 1:
        return None
    conv, given = _convolution(graph, convolutions[0])
    if normed[0].operation != "rms_norm":
        raise unclear(mixed, "what it reads of its state goes through no rms_norm")
    size = normed[1].value.shape[-1]
    rows = given.value.transpose(1, 2).contiguous()
    parts, gate = _parts(linears, given, out, size), _columns(linears, found["gate"])
    roots = {name_of(node): node for node in graph.nodes if name_of(node) is not None}
    trial = deltas.Trial(graph.layer, conv, linears.use(out))
    for delta in _candidates(graph, linears, conv, parts, gate, size, normed[0], linears.use(out)):
        if trial.agrees(delta):
            reads, masked = _reads(graph, [roots[name] for name in delta.linears])
            _check_cache(graph, roots, rows, delta)
            return Found(dataclasses.replace(delta, masked=masked), reads)
    raise unclear(mixed, "its state is updated in a way that was not recognised")


def _convolution(graph: Graph, node: Node) -> tuple[str, Node]:
    """(path of the convolution, the node that it reads)."""
    given = dict(zip(("input", "weight"), node.args, strict=False)) | node.kwargs
    held = source_of(given["weight"])
    path, _, key = held.name.rpartition(".")
    module: Any = graph.layer.get_submodule(path) if held.op == "parameter" else None
    plain = isinstance(module, nn.Conv1d) and key == "weight" and not structure.why_not_plain(module)
    if not plain or (module.stride, module.dilation, module.weight.shape[1]) != ((1,), (1,), 1):
        raise unclear(node, "its convolution mixes channels, or is no part of it")
    return path, given["input"]


def _parts(linears: Linears, given: Node, out: Node, size: int) -> list[Heads]:
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
    """Columns as equal runs, equally far apart; raises Unknown."""
    roots = {id(root): root for root, _ in columns}
    found = [column for _, column in columns]
    size = next((i for i in range(1, len(found)) if found[i] != found[i - 1] + 1), len(found))
    heads, rest = divmod(len(found), size)
    step = found[size] - found[0] if heads > 1 else size
    if len(roots) != 1 or rest or found != [found[0] + i * step + j for i in range(heads) for j in range(size)]:
        raise unclear(node, "its columns are in an unknown order")
    return Heads(linears.use(next(iter(roots.values()))), found[0], heads, size, step)


def _candidates(
    graph: Graph, linears: Linears, conv: str, parts: Any, gate: Heads, size: int, norm: Any, out: str
) -> Iterator[Delta]:
    query, key, value = parts
    number, width = value.heads * value.size // size, query.heads * query.size
    decays = [found for node in graph.nodes if (found := match(_DECAY, node)) is not None]
    betas = [node.args[0] for node in graph.nodes if node.op == "sigmoid" and node.value.shape[-1] == number]
    taps = graph.layer.get_parameter(f"{conv}.weight").shape[-1]
    for decay, logits in ((decay, logits) for decay in decays for logits in betas):
        vectors: Any = [tuple(decay[name].name.rpartition(".")[::2]) for name in ("a_log", "dt_bias")]
        if any(graph.layer.get_submodule(path)._parameters.get(key) is None for path, key in vectors):
            continue
        g, beta = _columns(linears, decay["logits"]), _columns(linears, logits)
        # Many heads first: a trial costs the less, the smaller a state is.
        for heads in (n for n in range(number, 0, -1) if number % n == 0 and width % n == 0):
            for scale in _BETA_SCALES:
                yield Delta(
                    query, key, value, gate, g, beta,
                    heads=(heads, width // heads), value_heads=(number, size), conv=conv, taps=taps,
                    a_log=vectors[0], dt_bias=vectors[1], norm=norm, out=out, beta_scale=scale, masked=False,
                )  # fmt: skip


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


def _check_cache(graph: Graph, roots: Any, rows: torch.Tensor, delta: Delta) -> None:
    """Raises Unknown unless the cache keeps the rows that the convolution reads again, and the state."""
    if not all(root.value.any() for name, root in roots.items() if name in delta.linears):
        raise Unshown("its weights are zeros: nothing shows what the cache keeps")
    layers: Any = getattr(graph.arguments.get(graph.cache or ""), "layers", ())
    index = getattr(graph.layer.get_submodule(delta.a_log[0]), "layer_idx", -1)
    results = {name: roots[name].value.reshape(*rows.shape[:2], -1) for name in delta.linears}
    deltas.check_cache(graph.layer, layers[index] if 0 <= index < len(layers) else None, results, rows, delta)
