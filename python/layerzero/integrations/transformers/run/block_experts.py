"""The steps of a layer's experts."""

import dataclasses
from typing import Any

import torch

from layerzero.integrations.transformers.layers import Experts
from layerzero.integrations.transformers.run.experts import weights_of
from layerzero.integrations.transformers.run.steps import Steps
from layerzero.program import Rows


def experts_steps(steps: Steps, experts: Experts, source: Any) -> Rows:
    held, out = steps.tables[experts.name], steps.rows(steps.width)
    ids, weights = (Rows(steps.make.rows(experts.chosen, t), (experts.chosen,)) for t in ("int32", "float32"))
    bias = steps.make.weight(steps.tables.correction())
    logits = _logits(steps, experts, source)
    steps.make.add("moe_route", [weights, ids], logits=logits, bias=bias, k=experts.chosen, **experts.route.arguments)
    steps.make.add(
        "fused_moe",
        [out],
        input=source,
        expert_ids=ids,
        expert_weights=weights,
        **{name: steps.make.weight(tensor) for name, tensor in weights_of(held, experts.transposed).items()},
        **experts.gate.arguments,
    )
    if experts.shared is None:
        return out
    total = steps.rows(steps.width)
    steps.make.add("elementwise", [total], input=out, other=_shared(steps, experts, source), function="add")
    return total


def _logits(steps: Steps, experts: Experts, source: Any) -> Rows:
    table = steps.tables[experts.router]
    if steps.dtype == "float32" or not experts.route.wide or steps.plan.blocks(table) is not None:
        return steps.linear(source, experts.router)
    rows, number = steps.copied(source), steps.tables.sizes(experts.router)[0]
    logits = Rows(steps.make.rows(number, "float32"), (1, number))
    if table["weight"].dtype == torch.float32:
        wide, logits = (
            Rows(steps.make.rows(rows.size, "float32"), (rows.size,)),
            dataclasses.replace(logits, axes=(number,)),
        )
        steps.make.add("cast", [wide], input=rows, dtype="float32")
        steps.make.add("linear", [logits], input=wide, weight=steps.make.weight(steps.tables.weight(experts.router)))
        return logits
    weight = steps.make.weight(steps.tables.weight(experts.router)[None])
    one = dataclasses.replace(rows, axes=(1, rows.size))
    steps.make.add("head_linear", [logits], input=one, weight=weight, dtype="float32")
    return dataclasses.replace(logits, axes=(number,))


def _shared(steps: Steps, experts: Experts, source: Any) -> Rows:
    assert experts.shared is not None
    result = steps.mlp(experts.shared, source)
    if experts.shared_gate is None:
        return result
    factor, weighted = steps.rows(1), steps.rows(steps.width)
    steps.make.add("activation", [factor], input=steps.linear(source, experts.shared_gate), function="sigmoid")
    steps.make.add("elementwise", [weighted], input=result, other=factor, function="mul")
    return weighted
