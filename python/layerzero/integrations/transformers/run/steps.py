"""Parts of a program of layers: rows, the residual stream, norms, products, MLPs."""

from typing import Any

import torch

from layerzero.integrations.transformers.caches import rows_cache, states_cache
from layerzero.integrations.transformers.layers import Columns, Mlp, Norm, Rope
from layerzero.integrations.transformers.run.blocks import add_product
from layerzero.program import ProgramBuilder, Rows

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Steps:
    """Turns descriptions of layers into steps of a program. Outputs of parts wait to be added to the residual stream until a step
    reads it, because fused norms add the last one themselves.

    layers, states: sizes of what the layers keep in a cache. ropes: the Rope of each group, or None. groups: the program's inputs
    (mask, cosines, sines) of each group. tables: the weights of the current layer. cross: whether layers attend to an encoder.
    """

    tables: Any

    def __init__(self, plan: Any) -> None:
        self.plan, self.torch_dtype, self.dtype = plan, plan.dtype, DTYPES[plan.dtype]
        self.layers: rows_cache.Sizes = []
        self.states: list[states_cache.State] = []
        first = plan.layers[0]
        self.width: int = first.sizes(first.shape.attention.linears[0])[1]
        self.ropes: list[Rope | None] = [None] * plan.stack.groups
        for layer in plan.stack.layers:
            self.ropes[layer.group] = self.ropes[layer.group] or layer.attention.rope
        self.cross = plan.stack.cross
        self.make = ProgramBuilder()
        self.stream: Any = self.make.input()
        self.waiting: list[tuple[Rows, float]] = []
        self.groups = [tuple(self.make.input() for _ in range(3)) for _ in self.ropes]
        self.slopes = {group: self.make.input() for group in plan.alibis}
        self.encoded_mask = self.make.input() if self.cross else None

    def rows(self, *axes: int) -> Rows:
        rows = Rows(0, axes)
        return Rows(self.make.rows(rows.size, self.dtype), axes)

    def add_up(self, output: Rows | None = None) -> Any:
        """Adds everything that waits to the stream and returns it; the last sum is written to `output` if that is given."""
        while self.waiting:
            delta, factor = self.waiting.pop(0)
            into = self.rows(self.width) if self.waiting or output is None else output
            self.make.add("elementwise", [into], input=self.stream, other=delta, function="add", scale=factor)
            self.stream = into
        return self.stream

    def normed_stream(self, norm: Norm, into: Rows | None = None) -> Rows:
        """Adds everything that waits to the stream, and returns the norm of the sum."""
        into = into or self.rows(self.width)
        last = self.waiting.pop() if self.waiting and self.waiting[-1][1] == 1.0 else None
        stream = self.add_up()
        if last is None:
            self.make.add(norm.operation, [into], input=stream, **self.norm_arguments(norm, self.width))
        else:
            self.stream = self.rows(self.width)
            given = {"input": last[0], "residual": stream} | self.norm_arguments(norm, self.width)
            self.make.add(f"fused_add_{norm.operation}", [into, self.stream], **given)
        return into

    def norm_arguments(self, norm: Norm, width: int) -> dict[str, Any]:
        table = self.tables[norm.name]
        given = {"weight": self.make.weight(table.get("weight")), "eps": norm.eps, "weight_offset": norm.offset}
        if norm.operation == "rms_norm":
            return given
        return given | {"normalized_shape": width, "bias": self.make.weight(table.get("bias"))}

    def normed(self, source: Rows, norm: Norm | None, into: Rows | None = None) -> Rows:
        if norm is None:
            return source
        into = into or self.rows(*source.axes)
        if norm.operation == "elementwise":
            factors = self.tables[norm.name][norm.vector]
            self.make.add("elementwise", [into], input=source, other=self.make.weight(factors), function="mul")
        else:
            self.make.add(norm.operation, [into], input=source, **self.norm_arguments(norm, source.axes[-1]))
        return into

    def linear(self, source: Any, name: str) -> Rows:
        table, out = self.tables[name], self.rows(self.tables.sizes(name)[0])
        blocks = self.plan.blocks(table)
        if blocks is None:
            weight, bias = self.make.weight(self.tables.weight(name)), self.make.weight(table.get("bias"))
            self.make.add("linear", [out], input=source, weight=weight, bias=bias)
        else:
            add_product(self.make, out, self.copied(source), blocks.product(table["bias"]), self.dtype)
        return out

    def copied(self, source: Any) -> Rows:
        """Returns Rows unchanged, and copies the program's input (the stream before any sum) into Rows."""
        if isinstance(source, Rows):
            return source
        into = self.rows(self.width)
        self.make.add("cast", [into], input=source, dtype=self.dtype)
        return into

    def linears(self, source: Any, names: tuple[str, ...]) -> dict[str, Rows]:
        """Products of several linear layers with the same input: one call if their blocks can be adjacent."""
        tables = [self.tables[name] for name in names]
        joined = self.plan.joined(tables) if len(names) > 1 else None
        if joined is None:
            return {name: self.linear(source, name) for name in names}
        sizes = [table["weight"].shape[0] for table in tables]
        out = self.rows(sum(sizes))
        add_product(self.make, out, self.copied(source), joined, self.dtype)
        return {
            name: Rows(out.value, (n,), column=sum(sizes[:i]))
            for i, (name, n) in enumerate(zip(names, sizes, strict=True))
        }

    def normed_of(self, stream: Any, norm: Norm) -> Rows:
        into = self.rows(self.width)
        self.make.add(norm.operation, [into], input=stream, **self.norm_arguments(norm, self.width))
        return into

    def mlp(self, mlp: Mlp, source: Any) -> Rows:
        given = self.linears(source, mlp.linears)

        def part(columns: Columns) -> Rows:
            rows = given[columns.linear]
            return Rows(rows.value, (columns.width,), column=rows.column + columns.column)

        hidden = self.rows(mlp.up.width)
        if mlp.operation == "activation":
            self.make.add("activation", [hidden], input=part(mlp.gate or mlp.up), function=mlp.kind)
            if mlp.gate is not None:
                gated, hidden = hidden, self.rows(mlp.up.width)
                self.make.add("elementwise", [hidden], input=gated, other=part(mlp.up), function="mul")
        elif mlp.gate is not None:
            further = {} if mlp.kind is None else {"approximate": mlp.kind}
            self.make.add(mlp.operation, [hidden], gate=part(mlp.gate), up=part(mlp.up), **further)
        return self.linear(self.normed(hidden, mlp.norm), mlp.out)
