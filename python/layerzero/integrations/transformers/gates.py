"""Recognises what is between attention and the linear layer after it: nothing, or a gate."""

from typing import Any

import torch

from layerzero.integrations.transformers.layers import Heads, Unknown
from layerzero.integrations.transformers.recorded import Call, same


def out_of(trace: Any, mixed: torch.Tensor, query: Heads, source: Call) -> tuple[Call, Heads | None]:
    """(the call that reads what is mixed, the columns whose sigmoid is a factor of that, or None); raises Unknown."""
    for out in trace.linears:
        if same(out.given, mixed):
            return out, None
    for call in trace.linears:
        columns = call.result.shape[-1] // query.heads
        if columns not in (query.size, 2 * query.size) or not same(call.given, source.given):
            continue
        gate = call.result.unflatten(-1, (query.heads, columns))[..., -query.size :]
        for out in trace.linears:
            if same(out.given, mixed * torch.sigmoid(gate.reshape(mixed.shape))):
                return out, Heads(trace.use(call), columns - query.size, query.heads, query.size, columns)
    raise Unknown("no linear layer reads the output of its attention")
