"""Parts of a program of layers: rows, products, heads."""

from typing import Any

import torch

from layerzero.integrations.transformers.caches import rows_cache, states_cache
from layerzero.integrations.transformers.layers import Heads, Rope
from layerzero.integrations.transformers.run.blocks import add_product
from layerzero.integrations.transformers.run.walk import Walk
from layerzero.program import ProgramBuilder, Rows

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Steps(Walk):
    """Turns descriptions of layers into steps of a program.

    layers, states: sizes of what the layers keep in a cache. ropes: the Rope of each group, or None. groups: the program's inputs
    (mask, cosines, sines) of each group. cross: whether layers attend to an encoder.
    """

    def __init__(self, plan: Any) -> None:
        first, self.make = plan.layers[0], ProgramBuilder()
        super().__init__(self.make.input(), first.sizes(first.shape.attention.linears[0])[1])
        self.plan, self.torch_dtype, self.dtype = plan, plan.dtype, DTYPES[plan.dtype]
        self.layers: rows_cache.Sizes = []
        self.states: list[states_cache.State] = []
        self.ropes: list[Rope | None] = [None] * plan.stack.groups
        for layer in plan.stack.layers:
            self.ropes[layer.group] = self.ropes[layer.group] or layer.attention.rope
        self.cross = plan.stack.cross
        self.groups = [tuple(self.make.input() for _ in range(3)) for _ in self.ropes]
        self.slopes = {group: self.make.input() for group in plan.alibis}
        self.encoded_mask = self.make.input() if self.cross else None

    def rows(self, *axes: int, dtype: str | None = None) -> Rows:
        rows = Rows(0, axes)
        return Rows(self.make.rows(rows.size, dtype or self.dtype), axes)

    def call(self, operation: str, *outputs: Any, **operands: Any) -> Any:
        written: list[Rows | None] = [each if isinstance(each, Rows) else self.rows(*each) for each in outputs]
        self.make.add(operation, written, **operands)
        return written[0] if len(written) == 1 else written

    def weight(self, tensor: torch.Tensor | None) -> int | None:
        return self.make.weight(tensor)

    def axes_of(self, rows: Any) -> tuple[int, ...]:
        return rows.axes if isinstance(rows, Rows) else (self.width,)  # else the program's input

    def columns(self, rows: Rows, column: int, width: int) -> Rows:
        return Rows(rows.value, (width,), rows.column + column)

    def heads(self, rows: Rows, part: Heads) -> Rows:
        step = part.step if part.step != part.size else 0
        return Rows(rows.value, (part.heads, part.size), rows.column + part.column, step=step)

    def linear(self, source: Any, name: str) -> Rows:
        table, out = self.tables[name], self.rows(self.tables.sizes(name)[0])
        blocks = self.plan.blocks(table)
        if blocks is None:
            weight, bias = self.weight(self.tables.weight(name)), self.weight(table.get("bias"))
            self.call("linear", out, input=source, weight=weight, bias=bias)
        else:
            add_product(self.make, out, self.copied(source), blocks.product(table["bias"]), self.dtype)
        return out

    def copied(self, source: Any) -> Rows:
        """Returns Rows unchanged, and copies the program's input (the stream before any sum) into Rows."""
        if isinstance(source, Rows):
            return source
        rows: Rows = self.call("cast", (self.width,), input=source, dtype=self.dtype)
        return rows

    def linears(self, source: Any, names: tuple[str, ...]) -> dict[str, Rows]:
        """One call if their blocks can be adjacent."""
        tables = [self.tables[name] for name in names]
        joined = self.plan.joined(tables) if len(names) > 1 else None
        if joined is None:
            return {name: self.linear(source, name) for name in names}
        sizes = [table["weight"].shape[0] for table in tables]
        out = self.rows(sum(sizes))
        add_product(self.make, out, self.copied(source), joined, self.dtype)
        places = [sum(sizes[:index]) for index in range(len(sizes))]
        return {name: self.columns(out, *place) for name, *place in zip(names, places, sizes, strict=True)}
