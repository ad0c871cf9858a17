"""The steps of a layer that keeps a state, which a builder of a model's program mixes in."""

import dataclasses
from typing import Any

from layerzero.integrations.transformers.caches.states_cache import State
from layerzero.integrations.transformers.layers import L2_EPS, Delta, Heads, Layer
from layerzero.program import Rows


class DeltaSteps:
    def _delta(self: Any, layer: Layer, own: Delta, source: Any) -> Rows:
        if own.masked:
            shown = self._rows(self.width)
            self.make.add("elementwise", [shown], input=source, other=self.groups[layer.group][0], function="mul")
            source = shown
        given = self._linears(source, own.linears)
        (heads, key), (number, size) = own.heads, own.value_heads
        self.program.states.append(State(layer.index, own.channels, own.taps, number, key, size))
        conv, mixed = self.tables[own.conv], self._rows(own.channels)
        self.make.add(
            "causal_conv1d",
            [mixed],
            input=self._beside(given, own.query, own.key, own.value),
            weight=self.make.weight(conv["weight"].detach().squeeze(1)),
            state=self.make.input(),
            bias=self.make.weight(conv.get("bias")),
            activation="silu",
        )
        read = self._rows(number, size)
        self.make.add(
            "gated_delta_rule",
            [read],
            query=Rows(mixed.value, (heads, key)),
            key=Rows(mixed.value, (heads, key), heads * key),
            value=Rows(mixed.value, (number, size), 2 * heads * key),
            g=self._beside(given, own.decay),
            beta=self._beside(given, own.beta),
            state=self.make.input(),
            a_log=self.make.weight(self.tables[own.a_log[0]][own.a_log[1]]),
            dt_bias=self.make.weight(self.tables[own.dt_bias[0]][own.dt_bias[1]]),
            l2_eps=L2_EPS,
            beta_scale=own.beta_scale,
        )
        gate, normed, gated = self._part(given, own.gate), self._normed(read, own.norm), self._rows(number * size)
        up, into = (Rows(rows.value, gate.axes) for rows in (normed, gated))
        self.make.add("swiglu", [into], gate=gate, up=up)
        return self._linear(gated, own.out)

    @staticmethod
    def _part(given: dict[str, Rows], part: Heads) -> Rows:
        rows, step = given[part.linear], part.step if part.step != part.size else 0
        return Rows(rows.value, (part.heads, part.size), rows.column + part.column, step=step)

    def _beside(self: Any, given: dict[str, Rows], *parts: Heads) -> Rows:
        """Returns adjacent columns, copied if they are not."""
        rows = [self._part(given, part) for part in parts]
        size = sum(part.size for part in rows)
        ends = [part.column + part.size for part in rows]
        plain = all(part.step == 0 and part.value == rows[0].value for part in rows)
        if plain and ends[:-1] == [part.column for part in rows[1:]]:
            return Rows(rows[0].value, (size,), rows[0].column)
        into, column = self._rows(size), 0
        for part in rows:
            self.make.add(
                "cast", [dataclasses.replace(into, axes=part.axes, column=column)], input=part, dtype=self.dtype
            )
            column += part.size
        return into
