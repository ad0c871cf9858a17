"""The steps of a layer that keeps a state."""

import dataclasses
from typing import Any

from layerzero.integrations.transformers.caches.states_cache import State
from layerzero.integrations.transformers.layers import L2_EPS, Delta, Heads, Layer
from layerzero.integrations.transformers.run.steps import Steps
from layerzero.program import Rows


def delta_steps(steps: Steps, layer: Layer, own: Delta, source: Any) -> Rows:
    if own.masked:
        shown = steps.rows(steps.width)
        steps.make.add("elementwise", [shown], input=source, other=steps.groups[layer.group][0], function="mul")
        source = shown
    given = steps.linears(source, own.linears)
    (heads, key), (number, size) = own.heads, own.value_heads
    steps.states.append(State(layer.index, own.channels, own.taps, number, key, size))
    conv, mixed = steps.tables[own.conv], steps.rows(own.channels)
    steps.make.add(
        "causal_conv1d",
        [mixed],
        input=_beside(steps, given, own.query, own.key, own.value),
        weight=steps.make.weight(conv["weight"].detach().squeeze(1)),
        state=steps.make.input(),
        bias=steps.make.weight(conv.get("bias")),
        activation="silu",
    )
    read = steps.rows(number, size)
    steps.make.add(
        "gated_delta_rule",
        [read],
        query=Rows(mixed.value, (heads, key)),
        key=Rows(mixed.value, (heads, key), heads * key),
        value=Rows(mixed.value, (number, size), 2 * heads * key),
        g=_beside(steps, given, own.decay),
        beta=_beside(steps, given, own.beta),
        state=steps.make.input(),
        a_log=steps.make.weight(steps.tables[own.a_log[0]][own.a_log[1]]),
        dt_bias=steps.make.weight(steps.tables[own.dt_bias[0]][own.dt_bias[1]]),
        l2_eps=L2_EPS,
        beta_scale=own.beta_scale,
    )
    gate, normed, gated = _part(given, own.gate), steps.normed(read, own.norm), steps.rows(number * size)
    up, into = (Rows(rows.value, gate.axes) for rows in (normed, gated))
    steps.make.add("swiglu", [into], gate=gate, up=up)
    return steps.linear(gated, own.out)


def _part(given: dict[str, Rows], part: Heads) -> Rows:
    rows, step = given[part.linear], part.step if part.step != part.size else 0
    return Rows(rows.value, (part.heads, part.size), rows.column + part.column, step=step)


def _beside(steps: Steps, given: dict[str, Rows], *parts: Heads) -> Rows:
    """Returns the parts as adjacent columns; copies them if they are not adjacent."""
    rows = [_part(given, part) for part in parts]
    size = sum(part.size for part in rows)
    ends = [part.column + part.size for part in rows]
    plain = all(part.step == 0 and part.value == rows[0].value for part in rows)
    if plain and ends[:-1] == [part.column for part in rows[1:]]:
        return Rows(rows[0].value, (size,), rows[0].column)
    into, column = steps.rows(size), 0
    for part in rows:
        steps.make.add(
            "cast", [dataclasses.replace(into, axes=part.axes, column=column)], input=part, dtype=steps.dtype
        )
        column += part.size
    return into
