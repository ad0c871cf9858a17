"""The walk through layers that programs and calls have in common: how their parts read and write the residual stream."""

from typing import Any

import torch

from layerzero.integrations.transformers.layers import Experts, Layer, Mlp, Norm, Norms


class Walk:
    """Walks through layers by their descriptions. `steps.Steps` makes steps of a program from the walk, `layer_calls` runs the
    operations. Outputs of parts wait to be added to the residual stream until something reads it, because fused norms add
    the last one themselves.

    stream: the rows of the residual stream. width: of these rows. tables: the weights of the current layer.
    """

    tables: Any

    def __init__(self, stream: Any, width: int) -> None:
        self.stream, self.width = stream, width
        self.waiting: list[tuple[Any, float]] = []

    # ---- what a subclass computes

    def call(self, operation: str, *outputs: Any, **operands: Any) -> Any:
        """The result of an operation, or its results. outputs: for each the axes of a row, or the Rows that it is written to."""
        raise NotImplementedError

    def weight(self, tensor: torch.Tensor | None) -> Any:
        """A parameter as an operand."""
        raise NotImplementedError

    def axes_of(self, rows: Any) -> tuple[int, ...]:
        raise NotImplementedError

    def columns(self, rows: Any, column: int, width: int) -> Any:
        raise NotImplementedError

    def linear(self, source: Any, name: str) -> Any:
        raise NotImplementedError

    def linears(self, source: Any, names: tuple[str, ...]) -> dict[str, Any]:
        """Products of several linear layers with the same input, by name."""
        raise NotImplementedError

    def attention(self, layer: Layer, source: Any) -> Any:
        raise NotImplementedError

    def attention_to_encoder(self, layer: Layer, source: Any) -> Any:
        raise NotImplementedError

    def experts(self, experts: Experts, source: Any) -> Any:
        raise NotImplementedError

    # ---- the walk

    def layer(self, layer: Layer) -> None:
        source = self._source(layer.attention_norms)
        read = self.stream
        self._push(self.attention(layer, source), layer.attention_norms, layer)
        if layer.cross is not None:
            source = self._source(layer.cross_norms)
            self._push(self.attention_to_encoder(layer, source), layer.cross_norms, layer)
        if not layer.parallel:
            source = self._source(layer.mlp_norms)
        elif layer.mlp_norms.before != layer.attention_norms.before:
            source = self.normed(read, layer.mlp_norms.before)
        mlp = layer.mlp
        result = self.experts(mlp, source) if isinstance(mlp, Experts) else self.mlp(mlp, source)
        self._push(result, layer.mlp_norms, layer)

    def _source(self, norms: Norms) -> Any:
        """The input of a part of a layer."""
        return self.add_up() if norms.before is None else self.normed_stream(norms.before)

    def _push(self, result: Any, norms: Norms, layer: Layer) -> None:
        self.waiting.append((self.normed(result, norms.after), layer.factor))
        if norms.behind is not None:
            self.stream = self.normed_stream(norms.behind)

    def add_up(self, into: Any = None) -> Any:
        """Adds everything that waits to the stream and returns it; the last sum is written to `into` if that is given."""
        while self.waiting:
            delta, factor = self.waiting.pop(0)
            output = (self.width,) if self.waiting or into is None else into
            self.stream = self.call("elementwise", output, input=self.stream, other=delta, function="add", scale=factor)
        return self.stream

    def normed_stream(self, norm: Norm, into: Any = None) -> Any:
        """Adds everything that waits to the stream, and returns the norm of the sum."""
        last = self.waiting.pop()[0] if self.waiting and self.waiting[-1][1] == 1.0 else None
        stream = self.add_up()
        if last is None:
            return self.normed(stream, norm, into)
        given = {"input": last, "residual": stream} | self._arguments(norm, self.width)
        axes = (self.width,)
        normed, self.stream = self.call(f"fused_add_{norm.operation}", into or axes, axes, **given)
        return normed

    def normed(self, rows: Any, norm: Norm | None, into: Any = None) -> Any:
        """The norm of rows; without one the rows themselves."""
        if norm is None:
            return rows
        axes = self.axes_of(rows)
        if norm.operation == "elementwise":
            factors = self.weight(self.tables[norm.name][norm.vector])
            return self.call("elementwise", into or axes, input=rows, other=factors, function="mul")
        return self.call(norm.operation, into or axes, input=rows, **self._arguments(norm, axes[-1]))

    def _arguments(self, norm: Norm, width: int) -> dict[str, Any]:
        table = self.tables[norm.name]
        given = {"weight": self.weight(table.get("weight")), "eps": norm.eps, "weight_offset": norm.offset}
        if norm.operation == "rms_norm":
            return given
        return given | {"normalized_shape": width, "bias": self.weight(table.get("bias"))}

    def mlp(self, mlp: Mlp, source: Any) -> Any:
        given, axes = self.linears(source, mlp.linears), (mlp.up.width,)
        gate, up = (part and self.columns(given[part.linear], part.column, part.width) for part in (mlp.gate, mlp.up))
        if mlp.operation == "activation":
            hidden = self.call("activation", axes, input=up if gate is None else gate, function=mlp.kind)
            if gate is not None:
                hidden = self.call("elementwise", axes, input=hidden, other=up, function="mul")
        else:
            further = {} if mlp.kind is None else {"approximate": mlp.kind}
            hidden = self.call(mlp.operation, axes, gate=gate, up=up, **further)
        return self.linear(self.normed(hidden, mlp.norm), mlp.out)
