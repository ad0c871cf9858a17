"""block.decoder: all layers of a base model as one program, from the parameter tables that the fused forward found."""

from typing import Any

import torch
from transformers.cache_utils import StaticCache

from layerzero.integrations.transformers import rows_cache
from layerzero.integrations.transformers.blocks import add_product
from layerzero.program import Program, ProgramBuilder, Rows

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class DecoderProgram:
    """What `DecoderPlan` found, bound to the weights as they are now.

    Run with hidden states (batch, length, width), cos and sin (1 or batch, length, rotary_dim) and a mask that the
    attention operation takes, or None for the causal one.
    """

    def __init__(self, plan: Any) -> None:
        self.layers: list[tuple[int, int, int]] = []  # index in the cache, key heads, head_dim
        self.dtype = plan.embedding["weight"].dtype
        self.width = plan.embedding["weight"].shape[1]
        self.program = self._build(plan)

    def run(self, hidden: Any, cos: Any, sin: Any, mask: Any, cache: Any, past: int) -> torch.Tensor:
        length = hidden.shape[1]
        output = torch.empty_like(hidden, memory_format=torch.contiguous_format)
        if cache is None:
            rows = rows_cache.no_rows(hidden, self.layers, length)
        elif type(cache) is StaticCache:
            rows = rows_cache.static_rows(cache, hidden, self.layers)
        else:
            rows = rows_cache.adopt(cache, hidden, self.layers, past, length)
        self.program.run((hidden, cos, sin, mask), (output,), rows, past)
        if cache is not None:
            rows_cache.appended(cache, length)
        return output

    def arguments(self, batch: int, length: int, past: int) -> tuple[Any, Any, Any, int]:
        """Tensors of a run of these sizes, for questions about it: their contents mean nothing."""
        hidden = torch.empty(batch, length, self.width, dtype=self.dtype)
        angles = torch.empty(1, length, self.layers[0][2], dtype=self.dtype)
        rows = rows_cache.no_rows(hidden, self.layers, past + length)
        return (hidden, angles, angles, None), (torch.empty_like(hidden),), rows, past

    def cache_bytes(self) -> int:
        """Keys and values of all layers for one token of one sequence."""
        return sum(2 * heads * head_dim for _, heads, head_dim in self.layers) * self.dtype.itemsize

    def _build(self, plan: Any) -> Program:
        make = ProgramBuilder()
        dtype, width = DTYPES[self.dtype], self.width
        hidden, cos, sin, mask = (make.input() for _ in range(4))
        stream: Any = hidden  # the residual stream so far
        delta: Any = None  # what the layer before adds to it

        def rows(size: int) -> Rows:
            return Rows(make.rows(size, dtype), (size,))

        def norm(table: Any, eps: float, into: Rows) -> None:
            """The stream plus what is to be added to it, normalised."""
            nonlocal stream, delta
            given = {"weight": make.weight(table["weight"]), "eps": eps, "weight_offset": plan.offset}
            if delta is None:
                make.add("rms_norm", [into], input=stream, **given)
                return
            total = rows(width)
            make.add("fused_add_rms_norm", [into, total], input=delta, residual=stream, **given)
            stream, delta = total, None

        def linear(source: Rows, table: Any) -> Rows:
            out, blocks = rows(table["weight"].shape[0]), plan.blocks(table)
            if blocks is None:
                bias = make.weight(table["bias"])
                make.add("linear", [out], input=source, weight=make.weight(table["weight"]), bias=bias)
                return out
            add_product(make, out, source, blocks.product(table["bias"]), dtype)
            return out

        def linears(source: Rows, tables: tuple[Any, ...]) -> list[Rows]:
            """Products with one input: one call where their blocks can lie behind each other."""
            joined = plan.joined(tables)
            if joined is None:
                return [linear(source, table) for table in tables]
            sizes = [table["weight"].shape[0] for table in tables]
            out = rows(sum(sizes))
            add_product(make, out, source, joined, dtype)
            return [Rows(out.value, (n,), column=sum(sizes[:i])) for i, n in enumerate(sizes)]

        def rotated(source: Rows, into: Rows) -> None:
            make.add("rope", [into], input=source, cos=cos, sin=sin)

        for layer in plan.layers:
            normed = rows(width)
            norm(layer.norms[0], layer.eps[0], normed)
            delta = self._attention(make, layer, normed, (linear, linears), rotated, mask, dtype)
            normed = rows(width)
            norm(layer.norms[1], layer.eps[1], normed)
            gate, up, down = layer.mlp
            gated = rows(gate["weight"].shape[0])
            gate_rows, up_rows = linears(normed, (gate, up))
            make.add("swiglu", [gated], gate=gate_rows, up=up_rows)
            delta = linear(gated, down)
        norm(plan.norm, plan.eps, Rows(make.output(width, dtype), (width,)))
        return make.build()

    def _attention(
        self, make: ProgramBuilder, layer: Any, normed: Rows, products: Any, rotated: Any, mask: int, dtype: str
    ) -> Rows:
        linear, linears = products
        q, k, v, o = layer.attention
        head_dim = layer.head_dim

        def heads(source: Rows) -> Rows:
            return Rows(source.value, (source.size // head_dim, head_dim), column=source.column)

        def alike(source: Rows) -> Rows:
            return Rows(make.rows(source.size, dtype), source.axes)

        query, key, value = map(heads, linears(normed, (q, k, v)))
        if layer.head_norms is not None:
            q_norm, q_eps, k_norm, k_eps = layer.head_norms
            normed_query, normed_key = alike(query), alike(key)
            for source, table, eps, into in ((query, q_norm, q_eps, normed_query), (key, k_norm, k_eps, normed_key)):
                weight = make.weight(table["weight"])
                make.add("rms_norm", [into], input=source, weight=weight, eps=eps, weight_offset=layer.offset)
            query, key = normed_query, normed_key
        turned = alike(query)
        rotated(query, turned)
        keys, values = make.cache(dtype), make.cache(dtype)
        rotated(key, Rows(keys, key.axes))
        make.add("cast", [Rows(values, value.axes)], input=value, dtype=dtype)
        self.layers.append((layer.index, key.axes[0], head_dim))
        mixed = make.rows(turned.size, dtype)
        make.add(
            "attention",
            [Rows(mixed, turned.axes)],
            query=turned,
            key=Rows(keys, key.axes, past=True),
            value=Rows(values, value.axes, past=True),
            attn_mask=mask,
            scale=layer.scaling,
        )
        return linear(Rows(mixed, (turned.size,)), o)
