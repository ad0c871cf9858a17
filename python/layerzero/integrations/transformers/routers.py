"""Recognises how the experts of a recorded call were chosen: `moe_route` is tried on what a router's weight makes of its rows."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.integrations.transformers import experts as experts_interface
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.layers import Experts, Unknown

_route = _layerzero.ops["moe_route"]
_TIE = 1e-5  # logits that are nearer may have one score
_RULES = [*itertools.product(("softmax", "sigmoid", "sqrt_softplus"), (False, True))]


class Dispatched(NamedTuple):
    """A call of experts: rows (tokens, d), ids and weights (tokens, k) of the chosen ones, and the weighted sums."""

    name: str
    module: nn.Module
    rows: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    result: torch.Tensor


def experts_of(dispatched: Dispatched, readers: list[Any]) -> tuple[Experts, Any]:
    """(Experts, the call of their router) among the calls that read the same rows; raises Unknown."""
    module: Any = dispatched.module
    gate, reason = experts_interface.gate_of(module)
    if reason:
        raise Unknown(f"{dispatched.name}: {reason}")
    number = experts_interface.sizes_of(module)[0]
    reason = f"no weight of {number} rows chooses among its experts"
    for call in readers:
        weight = call.module._parameters.get("weight")
        if weight is None or weight.shape != (number, dispatched.rows.shape[-1]):
            continue
        try:
            scoring, renormalize = _rule_of(dispatched, call)
        except Unknown as unknown:
            reason = f"{call.name}: {unknown}"
            continue
        chosen = dispatched.ids.shape[-1]
        transposed = bool(module.is_transposed)
        return Experts(dispatched.name, call.name, chosen, scoring, renormalize, gate, transposed), call
    raise Unknown(f"{dispatched.name}: {reason}")


def _why_not_router(call):
    if call.result.dtype != call.given.dtype:
        return f"it gives {call.result.dtype} for rows of {call.given.dtype}"
    further = {*call.module._parameters, *call.module._buffers} - {"weight", "bias"}
    return f"its choice depends on {min(further)} too" if further else structure.why_not_plain(call.module)


def _rule_of(dispatched, call):
    """(scoring, renormalize) that give the same weights of the same experts, in all rows whose choice is no tie."""
    reason = _why_not_router(call)
    if reason:
        raise Unknown(reason)
    held = call.module._parameters
    with torch.inference_mode():
        logits = nn.functional.linear(dispatched.rows, held["weight"], held.get("bias"))
    chosen, number = dispatched.ids.shape[-1], logits.shape[-1]
    best = logits.sort(descending=True).values
    clear = best[:, 0] - best[:, -1] > _TIE  # and none between the last that is chosen and the next one
    if chosen < number:
        clear = best[:, chosen - 1] - best[:, chosen] > _TIE
    if not clear.any():
        raise Unknown("it gives all experts the same: nothing tells how it chooses")
    expected = _spread(dispatched.weights, dispatched.ids, number)[clear]
    bound = max(torch.finfo(dispatched.weights.dtype).eps, 1e-5)
    found = []
    for scoring, renormalize in _RULES:
        weights, ids = _route(logits, chosen, scoring=scoring, renormalize=renormalize)
        if torch.allclose(_spread(weights, ids, number)[clear], expected, rtol=bound, atol=0):
            found.append((scoring, renormalize))
    if not found:
        raise Unknown("it chooses in a way that was not recognised")
    one = chosen == 1 and all(renormalize for _, renormalize in found)  # has the weight 1 by any scoring
    every = chosen == number and {scoring for scoring, _ in found} == {"softmax"}  # sum to 1 by themselves
    if len(found) > 1 and not one and not every:
        raise Unknown("its weights are such that nothing tells how it makes them of its logits")
    return found[0]


def _spread(weights, ids, number):
    """(tokens, experts): 0 for those that were not chosen."""
    return torch.zeros(len(ids), number, dtype=torch.float32).scatter_(1, ids.long(), weights.float())
