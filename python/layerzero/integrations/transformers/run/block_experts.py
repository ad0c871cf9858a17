"""The steps of a layer's experts."""

import dataclasses
from typing import Any

import torch

from layerzero.integrations.transformers.layers import Experts
from layerzero.integrations.transformers.run.experts import weights_of
from layerzero.integrations.transformers.run.steps import Steps
from layerzero.program import Rows


def experts_steps(steps: Steps, experts: Experts, source: Any) -> Rows:
    held, axes = steps.tables[experts.name], (steps.width,)
    ids, weights = (steps.rows(experts.chosen, dtype=dtype) for dtype in ("int32", "float32"))
    bias = steps.weight(steps.tables.correction())
    logits = _logits(steps, experts, source)
    steps.call("moe_route", weights, ids, logits=logits, bias=bias, k=experts.chosen, **experts.route.arguments)
    out: Rows = steps.call(
        "fused_moe",
        axes,
        input=source,
        expert_ids=ids,
        expert_weights=weights,
        **{name: steps.weight(tensor) for name, tensor in weights_of(held, experts.transposed).items()},
        **experts.gate.arguments,
    )
    if experts.shared is None:
        return out
    shared = steps.mlp(experts.shared, source)
    if experts.shared_gate is not None:
        logit = steps.linear(source, experts.shared_gate)
        factor = steps.call("activation", (1,), input=logit, function="sigmoid")
        shared = steps.call("elementwise", axes, input=shared, other=factor, function="mul")
    total: Rows = steps.call("elementwise", axes, input=out, other=shared, function="add")
    return total


def _logits(steps: Steps, experts: Experts, source: Any) -> Rows:
    table = steps.tables[experts.router]
    if steps.dtype == "float32" or not experts.route.wide or steps.plan.blocks(table) is not None:
        return steps.linear(source, experts.router)
    rows, weight = steps.copied(source), steps.tables.weight(experts.router)
    logits = steps.rows(len(weight), dtype="float32")
    if table["weight"].dtype == torch.float32:
        wide = steps.call("cast", steps.rows(rows.size, dtype="float32"), input=rows, dtype="float32")
        steps.call("linear", logits, input=wide, weight=steps.weight(weight))
    else:
        one, into = (dataclasses.replace(each, axes=(1, *each.axes)) for each in (rows, logits))
        steps.call("head_linear", into, input=one, weight=steps.weight(weight[None]), dtype="float32")
    return logits
