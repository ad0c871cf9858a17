"""Routers of experts: which experts a row chooses and what they weigh, from the logits of a linear layer.

Scoring, sum, factor and correction are read from the graph. Groups of experts and sparse mixers are written in many ways, so
only their sizes are read. In both cases the nodes are computed again on made-up logits and have to return the operation's
result. So weights that are zero do not matter.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.layers import Route
from layerzero.integrations.transformers.recognise.layout import MOVES, rows_of
from layerzero.integrations.transformers.recognise.match import any_node, call, match_one
from layerzero.integrations.transformers.recognise.nodes import Node, below
from layerzero.integrations.transformers.recognise.patterns.linear import name_of
from layerzero.integrations.transformers.recognise.trace import again, unclear

_route = _layerzero.ops["moe_route"]
_x = any_node("x")
SCORINGS = {
    "softmax": [call("softmax", _x)],
    "sigmoid": [call("sigmoid", _x)],
    "sqrt_softplus": [call("sqrt", call("softplus", _x)), call("softplus", _x) ** 0.5],
}
# Functions in a choice of experts that only pick, move, hide or add scores.
_CHOOSES = {*MOVES, "topk", "add", "masked_fill", "scatter", "bool", "logical_not", "invert", "bitwise_not", "sum", "max", "amax",
            "zeros_like", "ones_like", "zeros", "ones", "new_zeros", "new_ones"}  # fmt: skip
_MIXES = {*MOVES, "gather", "softmax", "max", "masked_fill", "scatter", "gt", "div", "sub", "clamp", "abs"}
_NO_ADDEND = 1e-18  # what is added to a sum of scores only so that it is not 0
_TRIALS = 8


@dataclasses.dataclass
class Routed:
    """route: without the place of the correction. logits: the node of the linear layer. correction: the node of the parameter, or None."""

    route: Route
    logits: Node
    correction: Node | None = None


def routed(ids: Node, weights: Node, number: int, reads: Node) -> Routed:
    """The router that chooses among `number` experts for the rows `reads`; raises Unknown."""
    linears = [node for node in _below(weights) if name_of(node) is not None]
    fitting = [node for node in linears if rows_of(node.args[0]) is reads and node.value.shape[-1] == number]
    if len(linears) != 1 or len(fitting) != 1:
        raise unclear(weights, f"no weight of {number} rows chooses among its experts")
    (logits,) = fitting
    for found in _candidates(weights, ids, logits):
        if _agrees(found, ids, weights):
            wide = _is_wide(logits)
            if wide and logits.args[2] is not None:
                raise unclear(logits, "it adds a bias to logits that are made in float32")
            place = None if found.correction is None else found.correction.place
            return dataclasses.replace(found, route=found.route._replace(wide=wide, correction=place))
    raise unclear(logits, "it chooses in a way that was not recognised")


def _is_wide(logits: Node) -> bool:
    """Whether logits are computed in float32 whatever the dtype of the weights is."""
    given, weight = logits.args[:2]
    return logits.value.dtype == torch.float32 and (weight.widened or "cast" in (given.op, weight.op))


def _below(node: Node, ends: Any = ()) -> list[Node]:
    """The nodes that a node depends on. The walk stops at linear layers, attention, experts and `ends`."""
    stops = ("linear", "attend", "experts")
    return [*below(node, lambda each: each.op not in stops and not any(each is end for end in ends))]


def _candidates(weights: Node, ids: Node, logits: Node) -> Iterator[Routed]:
    scale, weights = _scaled(weights)
    renormalize, least, weights = _normalised(weights)
    pick = rows_of(ids)
    while pick.op in ("to", "long", "int", "type"):
        pick = rows_of(pick.inputs[0])
    topk = pick.args[0] if pick.op == "item" and pick.args[1] == 1 else None
    if topk is None or topk.op != "topk":
        yield from _sparse(weights, ids, logits)
        return
    scored = _scored(weights, pick, topk, logits)
    if scored is None:
        return
    scoring, scores, sums_to_one = scored
    ends = [logits, scores]
    choice = [node for node in _below(topk.args[0], ends) if not any(node is end for end in ends)]
    corrections = [node for node in choice if node.op == "parameter"]
    if len(corrections) > 1 or any(node.op not in _CHOOSES and node.op not in ("cast", "parameter") for node in choice):
        return
    for groups in _groupings(choice, logits.value.shape[-1]):
        route = Route(scoring, renormalize or sums_to_one, scale, *groups, min_sum=least)
        yield Routed(route, logits, corrections[0] if corrections else None)


def _scaled(node: Node) -> tuple[float, Node]:
    """(f, x) of f * x where f is a plain number, not a tensor that may change."""
    factor, node = 1.0, rows_of(node)
    while node.op in ("mul", "div") and type(node.args[1]) in (int, float):
        factor = factor * node.args[1] if node.op == "mul" else factor / node.args[1]
        node = rows_of(node.args[0])
    return factor, node


def _normalised(node: Node) -> tuple[bool, float, Node]:
    """(True, the least sum, x) of x / sum of x; (False, 0, the node) of anything else."""
    if node.op != "div" or not isinstance(node.args[1], Node):
        return False, 0.0, node
    given, total, least = rows_of(node.args[0]), rows_of(node.args[1]), 0.0
    if total.op == "add" and type(total.args[1]) is float and total.args[1] <= _NO_ADDEND:
        total = rows_of(total.args[0])
    elif total.op == "clamp" and type(total.args[1]) is float and total.args[2] is None:
        least, total = total.args[1], rows_of(total.args[0])
    whole = total.op == "sum" and rows_of(total.args[0]) is given and total.value.shape == (*given.value.shape[:-1], 1)
    return (True, least, given) if whole else (False, 0.0, node)


def _scored(weights: Node, pick: Node, topk: Node, logits: Node) -> tuple[str, Node, bool] | None:
    """(the scoring, the node of the scores that top-k compares, whether the weights already sum to 1) or None."""
    before = _scoring_of(weights)
    if before is not None and _picked(before[1], pick, topk) is logits:
        return before[0], logits, before[0] == "softmax"  # of the chosen logits: that of all, by their sum
    scores = _picked(weights, pick, topk)
    while scores is not None and scores.op == "masked_fill":  # it hides experts of other groups
        scores = rows_of(scores.args[0])
    after = None if scores is None else _scoring_of(scores)
    return (after[0], scores, False) if after is not None and scores is not None and after[1] is logits else None


def _scoring_of(node: Node) -> tuple[str, Node] | None:
    found = match_one(SCORINGS, rows_of(node))
    return None if found is None else (found[0], rows_of(found[1]["x"]))


def _picked(node: Node, pick: Node, topk: Node) -> Node | None:
    """The node whose numbers of the chosen experts a node holds; None if it is something else."""
    node = rows_of(node)
    if node.op == "item" and node.args == (topk, 0):
        return rows_of(topk.args[0])
    index = node.kwargs.get("index", node.args[-1] if node.args else None)
    return rows_of(node.args[0]) if node.op == "gather" and isinstance(index, Node) and rows_of(index) is pick else None


def _groupings(choice: list[Node], number: int) -> Iterator[tuple[int, int, str]]:
    """Yields (number of groups, number of groups that are kept, group score) for the sizes in a choice, no groups first."""
    yield 1, 1, "max"
    shapes = (tuple(node.value.shape) for node in choice if isinstance(node.value, torch.Tensor))
    sizes = {shape[-2] for shape in shapes if len(shape) > 2 and shape[-2] * shape[-1] == number}
    kept = {node.value.shape[-1] for node in choice if node.op == "item" and node.value.dim() == 2}
    for groups in sorted(sizes - {1}):
        for top in sorted(top for top in kept if top < groups):
            yield groups, top, "max"
            yield groups, top, "top2_sum"


def _sparse(weights: Node, ids: Node, logits: Node) -> Iterator[Routed]:
    """Yields a sparse mixer: experts are chosen one by one, each weighed among those with logits near the best one."""
    nodes = [node for end in (weights, ids) for node in _below(end, [logits]) if node is not logits]
    bounds = {node.args[1] for node in nodes if node.op == "gt"}
    clamps = [node.args for node in nodes if node.op == "clamp"]
    sizes = all(given.op == "abs" and isinstance(least, Node) and most is None for given, least, most in clamps)
    if sizes and len(bounds) == 1 and all(node.op in _MIXES or node.op == "cast" for node in nodes):
        (bound,) = bounds
        if type(bound) is float:
            yield Routed(Route("sparsemixer", False, jitter=bound / 2), logits)


def _logits_like(value: torch.Tensor, seed: int) -> torch.Tensor:
    """Made-up logits in float32 that are all different, and exact in the dtype of `value`."""
    made = structure.normal(*value.shape, seed=seed) * 2
    if value.dtype == torch.float32:
        made.flatten(0, -2)[seed::_TRIALS] -= 30  # what is added to a sum of scores shows there
        return made
    number = value.shape[-1]
    return (made.argsort(-1).argsort(-1) - number // 2) * (8 / (1 << (number - 1).bit_length()))


def _agrees(found: Routed, ids: Node, weights: Node) -> bool:
    """Whether the graph and the operation choose the same experts with the same weights for made-up logits."""
    number = found.logits.value.shape[-1]
    near = 1e-5 if weights.value.dtype == torch.float32 else 2 * torch.finfo(weights.value.dtype).eps
    for seed in range(_TRIALS):
        made = _logits_like(found.logits.value, seed)
        others = {id(found.logits): made.to(found.logits.value.device)}
        correction = None
        if found.correction is not None:
            correction = structure.normal(number, seed=seed + _TRIALS) / 4
            held = found.correction.value
            others[id(found.correction)] = correction.view(held.shape).to(held.device)
        chosen, weighed = (again(node, others).flatten(0, -2).cpu() for node in (ids, weights))
        expected = _spread(weighed, chosen, number)
        made_weights, made_ids = _route(made.flatten(0, -2), chosen.shape[-1], bias=correction, **found.route.arguments)
        actual = _spread(made_weights, made_ids, number)
        if not torch.equal(actual != 0, expected != 0) or not torch.allclose(actual, expected, rtol=near, atol=0):
            return False
    return True


def _spread(weights: torch.Tensor, ids: torch.Tensor, number: int) -> torch.Tensor:
    """(tokens, experts): 0 for those that were not chosen."""
    return torch.zeros(len(ids), number, dtype=torch.float32).scatter_(1, ids.long(), weights.float())
