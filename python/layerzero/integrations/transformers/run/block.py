"""block.decoder and block.encoder: all layers of a model as one program, built from their descriptions (`layers.Layer`)."""

import dataclasses
from typing import Any, cast

import torch
from transformers.cache_utils import StaticCache

from layerzero.integrations.transformers.caches import rows_cache, states_cache
from layerzero.integrations.transformers.caches.paged_cache import PagedCache
from layerzero.integrations.transformers.layers import Attention, Delta, Experts, Heads, Latent, Layer
from layerzero.integrations.transformers.run.block_deltas import delta_steps
from layerzero.integrations.transformers.run.block_experts import experts_steps
from layerzero.integrations.transformers.run.block_latents import latent_steps
from layerzero.integrations.transformers.run.encoded import Encoded, keys_and_values
from layerzero.integrations.transformers.run.steps import Steps
from layerzero.program import Program, Rows

PIECE = 256  # rows of a prompt that a program takes at a time, for one sequence


class BlockProgram:
    """The program of a StackPlan, bound to the current weights.

    It runs with hidden states (batch, length, width) and, for each group of layers, (mask, cos, sin): a mask for the attention
    operation or None for causal attention (in an encoder for no mask), and tables (1 or batch, length, width) or None without a
    rotation. The program's inputs are these in order; then, if layers attend to an encoder, its mask and the keys and values
    (batch, positions, heads, size) of each such layer; then two states of each layer that keeps some.
    """

    def __init__(self, plan: Any) -> None:
        self.plan, self.dtype = plan, plan.dtype
        builder = _Builder(plan)
        self.program = builder.build()
        self.layers, self.states = builder.layers, builder.states
        self.width, self.ropes, self.cross = builder.width, builder.ropes, builder.cross
        self.masked = {group for group, delta in plan.stack.deltas.items() if delta.masked}
        self.shown = torch.ones(1, 1, 1, dtype=self.dtype)  # the mask of masked groups in a call without one
        self._paged: dict[bool, Program] = {}  # the same over blocks; True: with scales

    def run(
        self,
        hidden: Any,
        groups: Any,
        cache: Any,
        past: int,
        pads: Any = None,
        encoded: Encoded | None = None,
        slopes: Any = None,
    ) -> torch.Tensor:
        """pads: for a PagedCache, the result of its `padding`. encoded: the encoder's rows. slopes: of ALiBi by group, if the mask does not
        contain the bias.
        """
        length = hidden.shape[1]
        output = torch.empty_like(hidden, memory_format=torch.contiguous_format)
        if isinstance(cache, PagedCache):
            return self._run_paged(hidden, groups, cache, pads, output, slopes)
        if cache is None:
            rows = rows_cache.no_rows(hidden, self.layers, length)
        elif type(cache) is StaticCache:
            rows = rows_cache.static_rows(cache, hidden, self.layers)
        else:
            rows = rows_cache.adopt(cache, hidden, self.layers, past, length)
        further = () if encoded is None else (encoded.mask, *keys_and_values(self.plan, encoded))
        further = (*further, *self._states(cache, hidden))
        for piece in self._pieces(hidden, groups, cache, encoded):
            part = [(mask, *(t if t is None else t[:, piece] for t in tables)) for mask, *tables in groups]
            given = (hidden[:, piece], *self._inputs(part, slopes), *further)
            self._call(self.program, given, (output[:, piece],), rows, past + piece.start)
        if cache is not None:
            rows_cache.appended(cache, length)
            states_cache.begun(cache, self.states)
        return output

    def _states(self, cache: Any, hidden: Any) -> list[torch.Tensor]:
        if cache is None or not self.states:
            return states_cache.fresh(hidden, self.states)
        return states_cache.of_cache(cache, hidden, self.states)

    def _call(self, program: Program, *arguments: Any) -> None:
        if not torch.autograd._profiler_enabled():
            return program.run(*arguments)
        name = f"layerzero::block.{self.plan.stack.kind} [{len(program.operations)} steps]"
        with torch.profiler.record_function(name):
            return program.run(*arguments)

    @staticmethod
    def _pieces(hidden: Any, groups: Any, cache: Any, encoded: Any) -> list[slice]:
        """Splits a long prompt, so that the arena holds only the rows of one part; each part reads the earlier ones from the cache."""
        length = hidden.shape[1]
        masked = encoded is not None or any(mask is not None for mask, *_ in groups)
        if cache is None or masked or hidden.shape[0] != 1:
            return [slice(0, length)]
        return [slice(begin, min(begin + PIECE, length)) for begin in range(0, length, PIECE)]

    def _run_paged(self, hidden: Any, groups: Any, cache: PagedCache, pads: Any, output: Any, slopes: Any) -> Any:
        scaled = cache.manager.has_scales
        if scaled not in self._paged:
            self._paged[scaled] = _PagedBuilder(self.plan, scaled).build()
        groups = [(None, *tables) for _, *tables in groups]  # the lists of pages replace the masks
        with cache.extended(self.layers, hidden, pads) as blocks:
            self._call(self._paged[scaled], (hidden, *self._inputs(groups, slopes), *blocks), (output,))
        return output

    def _inputs(self, groups: Any, slopes: Any) -> Any:
        for group, ((mask, cos, sin), rope) in enumerate(zip(groups, self.ropes, strict=True)):
            yield self.shown if mask is None and group in self.masked else mask
            if rope is None:
                yield from (None, None)
            else:
                yield from (table[..., : rope.width] for table in (cos, sin))
        yield from (slopes.get(group) for group in self.plan.alibis)

    def arguments(self, batch: int, length: int, past: int) -> tuple[Any, Any, Any, int]:
        """Tensors of a run of these sizes, to ask which kernels it has; their contents do not matter."""
        hidden = torch.empty(batch, length, self.width, dtype=self.dtype)
        widths = [rope.width if rope else 0 for rope in self.ropes]
        groups = [(None, *[torch.empty(1, length, width, dtype=self.dtype)] * 2) for width in widths]
        rows = rows_cache.no_rows(hidden, self.layers, past + length)
        seen = rows if self.cross else ()  # as many positions of an encoder
        further = (None, *seen) if self.cross else ()
        slopes = {group: slopes for group, (_, slopes, _) in self.plan.alibis.items()}
        states = states_cache.fresh(hidden, self.states)
        return (hidden, *self._inputs(groups, slopes), *further, *states), (torch.empty_like(hidden),), rows, past

    def cache_bytes(self) -> int:
        """Keys and values of all layers for one token of one sequence."""
        return sum(heads * (key + value) for _, heads, key, value in self.layers) * self.dtype.itemsize


class _Builder(Steps):
    def build(self) -> Program:
        for layer in self.plan.layers:
            self.tables = layer
            self.layer(layer.shape)
        output = Rows(self.make.output(self.width, self.dtype), (self.width,))
        if self.plan.norm is not None:
            norm, self.tables = self.plan.norm[0], {self.plan.norm[0].name: self.plan.norm[1]}
            self.normed_stream(norm, output)
        elif self.waiting:
            self.add_up(output)
        else:
            self.call("cast", output, input=self.stream, dtype=self.dtype)
        return self.make.build()

    def experts(self, experts: Experts, source: Any) -> Rows:
        return experts_steps(self, experts, source)

    def attention(self, layer: Layer, source: Any) -> Rows:
        own = layer.attention
        if isinstance(own, Delta):
            return delta_steps(self, layer, own, source)
        given = self.linears(source, own.linears)
        if own.latent is not None:
            return latent_steps(self, layer, own.latent, given, self._attend_latents)
        query, key, value = (self._heads(given, part) for part in (own.query, own.key, own.value))
        query = self._turned(query, own.query, layer)
        mixed = self.rows(*query.axes)
        self._attend(layer, query, key, value, mixed)
        if own.gate is not None:
            factors = self.call("activation", mixed.axes, input=self._heads(given, own.gate), function="sigmoid")
            mixed = self.call("elementwise", mixed.axes, input=mixed, other=factors, function="mul")
        return self.linear(self.normed(Rows(mixed.value, (mixed.size,)), own.mixed), own.out)

    def _turned(self, rows: Rows, part: Heads, layer: Layer, into: Rows | None = None) -> Rows:
        """Rotates heads, and normalises them if the norm comes after the rotation; writes to `into` if that is given."""
        rope, (_, cos, sin) = layer.attention.rope, self.groups[layer.group]
        if rope is not None:
            tables = {"cos": cos, "sin": sin, "interleaved": rope.interleaved, "rotary_dim": rope.rotary_dim}
            if part.behind:
                return self.normed(self.call("rope", rows.axes, input=rows, **tables), part.norm, into)
            return self.call("rope", into or rows.axes, input=rows, **tables)
        return rows if into is None else self.call("cast", into, input=rows, dtype=self.dtype)

    def _attend(self, layer: Layer, query: Rows, key: Rows, value: Rows, mixed: Rows) -> None:
        """Adds attention; a decoder's keys and values are written into its cache first."""
        own: Any = layer.attention
        if own.causal:
            keys, values = (Rows(self.make.cache(self.dtype), rows.axes) for rows in (key, value))
            self.layers.append((layer.index, own.key.heads, own.key.size, own.value.size))
            self._turned(key, own.key, layer, keys)
            self.call("cast", values, input=value, dtype=self.dtype)
        else:
            keys, values = self._turned(key, own.key, layer), value
        keys, values = (dataclasses.replace(rows, past=own.causal) for rows in (keys, values))
        given = self._limits(own) | ({} if own.causal else {"causal": False})
        operands: dict[str, Any] = {
            "query": query,
            "key": keys,
            "value": values,
            "attn_mask": self.groups[layer.group][0],
            "sinks": self._sinks(own),
            "alibi_slopes": self.slopes.get(layer.group),
        }
        self.call("attention", mixed, **operands, **given)

    def _sinks(self, own: Attention) -> Any:
        return None if own.sinks is None else self.weight(self.tables[own.sinks[0]][own.sinks[1]])

    def attention_to_encoder(self, layer: Layer, source: Any) -> Rows:
        own = cast(Attention, layer.cross)
        query = self._heads(self.linears(source, (own.query.linear,)), own.query)
        seen = {"key": self.make.input(), "value": self.make.input(), "attn_mask": self.encoded_mask}
        mixed = self.call("attention", query.axes, query=query, **seen, causal=False, **self._limits(own))
        return self.linear(Rows(mixed.value, (mixed.size,)), own.out)

    def _heads(self, given: dict[str, Rows], part: Heads) -> Rows:
        rows = given[part.linear]
        if part.norm is not None and part.whole:
            rows = self.normed(rows, part.norm)
        grouped = part.groups > 1 or part.step == 0
        heads = self._beside_each_other(rows, part) if grouped else self.heads(rows, part)
        heads = heads if part.whole or part.behind else self.normed(heads, part.norm)
        for bound, function in zip(part.clip or (), ("maximum", "minimum"), strict=False):
            limit = self.weight(torch.tensor([bound], dtype=self.torch_dtype))
            heads = self.call("elementwise", heads.axes, input=heads, other=limit, function=function)
        return heads

    def _beside_each_other(self, rows: Rows, part: Heads) -> Rows:
        """Copies heads that are stored in groups into one row: the first head of each group, then the second, and so on."""
        into, each = self.rows(part.heads, part.size), part.heads // part.groups
        for index in range(each):
            column = rows.column + part.column + index * part.step
            source = Rows(rows.value, (part.groups, part.size), column, step=part.group_step)
            target = dataclasses.replace(into, axes=source.axes, column=index * part.size, step=each * part.size)
            self.call("cast", target, input=source, dtype=self.dtype)
        return into

    def _attend_latents(self, layer: Layer, latent: Latent, query: Rows, kept: Rows, mixed: Rows) -> None:
        """Adds attention over latents. The cache is passed twice: keys are latents with the shared columns, values the latents alone."""
        self.layers.append((layer.index, 1, latent.width, latent.shared))
        keys, values = (Rows(self.make.cache(self.dtype), (1, n)) for n in (kept.size, latent.width))
        for rows in (keys, values):
            self.call("cast", rows, input=dataclasses.replace(kept, axes=rows.axes), dtype=self.dtype)
        operands: dict[str, Any] = {"query": query, "attn_mask": self.groups[layer.group][0]}
        operands |= {n: dataclasses.replace(r, past=True) for n, r in {"key": keys, "value": values}.items()}
        self.call("attention", mixed, **operands, **self._limits(cast(Attention, layer.attention)))

    @staticmethod
    def _limits(own: Attention) -> dict[str, Any]:
        further = {"window": own.window, "softcap": own.softcap}
        given = {name: value for name, value in further.items() if value is not None}
        return given | {"scale": own.scale * own.query.factor}


class _PagedBuilder(_Builder):
    """The same layers over the blocks of a PagedCache: its tables, then keys and values of each layer, with their scales
    if `scaled`, are inputs."""

    def __init__(self, plan: Any, scaled: bool) -> None:
        super().__init__(plan)
        self.scaled = scaled
        self.tables_of_blocks = [self.make.input() for _ in range(5)]

    def _attend(self, layer: Layer, query: Rows, key: Rows, value: Rows, mixed: Rows) -> None:
        own: Any = layer.attention
        stored = self.make.input(), self.make.input()
        scales = {"k_scale": self.make.input(), "v_scale": self.make.input()} if self.scaled else {}
        self._append(stored, self._turned(key, own.key, layer), value, scales)
        further = {"sinks": self._sinks(own), "alibi_slopes": self.slopes.get(layer.group), **scales}
        self._attend_blocks(own, query, stored, mixed, **further)

    def _attend_latents(self, layer: Layer, latent: Latent, query: Rows, kept: Rows, mixed: Rows) -> None:
        keys, values, whole = (self.make.input() for _ in range(3))
        shared = Rows(kept.value, (1, latent.shared), latent.width)
        self._append((keys, values), Rows(kept.value, (1, latent.width)), shared, {})
        self._attend_blocks(cast(Attention, layer.attention), query, (whole, keys), mixed)

    def _append(self, stored: Any, key: Rows, value: Rows, scales: dict[str, Any]) -> None:
        given: dict[str, Any] = dict(zip(("key_cache", "value_cache"), stored, strict=True)) | scales
        key, value = (dataclasses.replace(rows, packed=True) for rows in (key, value))
        self.call("kv_append_paged", key=key, value=value, slots=self.tables_of_blocks[0], **given)

    def _attend_blocks(self, own: Attention, query: Rows, stored: Any, mixed: Rows, **further: Any) -> None:
        names = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len")
        further |= {} if own.softcap is None else {"softcap": own.softcap}
        self.call(
            "paged_prefill_attention",
            dataclasses.replace(mixed, packed=True),
            query=dataclasses.replace(query, packed=True),
            paged_k_cache=stored[0],
            paged_v_cache=stored[1],
            sm_scale=own.scale * own.query.factor,
            window_left=-1 if own.window_of_pages is None else own.window_of_pages - 1,
            **dict(zip(names, self.tables_of_blocks[1:], strict=True)),
            **further,
        )
