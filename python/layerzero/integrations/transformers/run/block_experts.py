"""The steps of a layer's experts, which a builder of a model's program mixes in."""

import dataclasses
from typing import Any

import torch

from layerzero.integrations.transformers.layers import Experts
from layerzero.integrations.transformers.run.experts import weights_of
from layerzero.program import Rows


class ExpertSteps:
    def _experts(self: Any, experts: Experts, source: Any) -> Rows:
        held, out = self.tables[experts.name], self._rows(self.width)
        ids, weights = (Rows(self.make.rows(experts.chosen, t), (experts.chosen,)) for t in ("int32", "float32"))
        bias = self.make.weight(self.tables.correction())
        logits = self._logits(experts, source)
        self.make.add(
            "moe_route", [weights, ids], logits=logits, bias=bias, k=experts.chosen, **experts.route.arguments
        )
        self.make.add(
            "fused_moe",
            [out],
            input=source,
            expert_ids=ids,
            expert_weights=weights,
            **{name: self.make.weight(tensor) for name, tensor in weights_of(held, experts.transposed).items()},
            **experts.gate.arguments,
        )
        if experts.shared is None:
            return out
        total = self._rows(self.width)
        self.make.add("elementwise", [total], input=out, other=self._shared(experts, source), function="add")
        return total

    def _logits(self: Any, experts: Experts, source: Any) -> Rows:
        table = self.tables[experts.router]
        if self.dtype == "float32" or not experts.route.wide or self.plan.blocks(table) is not None:
            return self._linear(source, experts.router)
        rows, number = self._copied(source), self.tables.sizes(experts.router)[0]
        logits = Rows(self.make.rows(number, "float32"), (1, number))
        if table["weight"].dtype == torch.float32:
            wide, logits = (
                Rows(self.make.rows(rows.size, "float32"), (rows.size,)),
                dataclasses.replace(logits, axes=(number,)),
            )
            self.make.add("cast", [wide], input=rows, dtype="float32")
            self.make.add("linear", [logits], input=wide, weight=self.make.weight(self.tables.weight(experts.router)))
            return logits
        weight = self.make.weight(self.tables.weight(experts.router)[None])
        one = dataclasses.replace(rows, axes=(1, rows.size))
        self.make.add("head_linear", [logits], input=one, weight=weight, dtype="float32")
        return dataclasses.replace(logits, axes=(number,))

    def _shared(self: Any, experts: Experts, source: Any) -> Rows:
        assert experts.shared is not None
        result = self._mlp(experts.shared, source)
        if experts.shared_gate is None:
            return result
        factor, weighted = self._rows(1), self._rows(self.width)
        self.make.add("activation", [factor], input=self._linear(source, experts.shared_gate), function="sigmoid")
        self.make.add("elementwise", [weighted], input=result, other=factor, function="mul")
        return weighted
