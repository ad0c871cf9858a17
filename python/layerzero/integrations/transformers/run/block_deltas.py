"""The steps of a layer that keeps a state."""

import dataclasses
from typing import Any

from layerzero.integrations.transformers.caches.states_cache import State
from layerzero.integrations.transformers.layers import L2_EPS, Delta, Heads, Layer
from layerzero.integrations.transformers.run.steps import Steps
from layerzero.program import Rows


def delta_steps(steps: Steps, layer: Layer, own: Delta, source: Any) -> Rows:
    if own.masked:
        mask = steps.groups[layer.group][0]
        source = steps.call("elementwise", (steps.width,), input=source, other=mask, function="mul")
    given = steps.linears(source, own.linears)
    (heads, key), (number, size) = own.heads, own.value_heads
    steps.states.append(State(layer.index, own.channels, own.taps, number, key, size))
    conv = steps.tables[own.conv]
    mixed = steps.call(
        "causal_conv1d",
        (own.channels,),
        input=_beside(steps, given, own.query, own.key, own.value),
        weight=steps.weight(conv["weight"].detach().squeeze(1)),
        state=steps.make.input(),
        bias=steps.weight(conv.get("bias")),
        activation="silu",
    )
    read = steps.call(
        "gated_delta_rule",
        (number, size),
        query=Rows(mixed.value, (heads, key)),
        key=Rows(mixed.value, (heads, key), heads * key),
        value=Rows(mixed.value, (number, size), 2 * heads * key),
        g=_beside(steps, given, own.decay),
        beta=_beside(steps, given, own.beta),
        state=steps.make.input(),
        a_log=steps.weight(steps.tables[own.a_log[0]][own.a_log[1]]),
        dt_bias=steps.weight(steps.tables[own.dt_bias[0]][own.dt_bias[1]]),
        l2_eps=L2_EPS,
        beta_scale=own.beta_scale,
    )
    gate = steps.heads(given[own.gate.linear], own.gate)
    up = Rows(steps.normed(read, own.norm).value, gate.axes)
    gated = steps.call("swiglu", gate.axes, gate=gate, up=up)
    return steps.linear(Rows(gated.value, (gated.size,)), own.out)


def _beside(steps: Steps, given: dict[str, Rows], *parts: Heads) -> Rows:
    """Returns the parts as adjacent columns; copies them if they are not adjacent."""
    rows = [steps.heads(given[part.linear], part) for part in parts]
    size = sum(part.size for part in rows)
    ends = [part.column + part.size for part in rows]
    plain = all(part.step == 0 and part.value == rows[0].value for part in rows)
    if plain and ends[:-1] == [part.column for part in rows[1:]]:
        return Rows(rows[0].value, (size,), rows[0].column)
    into, column = steps.rows(size), 0
    for part in rows:
        place = dataclasses.replace(into, axes=part.axes, column=column)
        steps.call("cast", place, input=part, dtype=steps.dtype)
        column += part.size
    return into
