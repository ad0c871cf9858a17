"""The steps of attention over latents, which a builder of a model's program mixes in."""

import dataclasses
from typing import Any

import torch

from layerzero.integrations.transformers.caches.latents import gathered
from layerzero.integrations.transformers.layers import Attention, Latent, Layer
from layerzero.program import Rows


class LatentSteps:
    def _over_latents(self: Any, layer: Layer, latent: Latent, given: dict[str, Rows]) -> Rows:
        """Each head's part of `up` is multiplied with its queries and with what it mixes: keys and values are the latents."""
        own, down = layer.attention, given[latent.down]
        rows = given[own.linears[0]]
        if latent.query_down is not None:
            rows = self._linear(self._normed(rows, latent.query_norm), own.query.linear)
        heads, size, wide = own.query.heads, own.query.size, latent.width + latent.shared
        weight = self.tables.weight(latent.up).unflatten(0, (heads, -1))
        query, kept = self._rows(heads, wide), self._rows(1, wide)
        self._multiply_heads(
            Rows(rows.value, (heads, latent.unturned), rows.column, step=size),
            weight[:, : latent.unturned].transpose(1, 2),
            Rows(query.value, (heads, latent.width), step=wide),
        )
        turned = Rows(rows.value, (heads, latent.shared), rows.column + latent.unturned, step=size)
        self._turn(layer, latent, turned, Rows(query.value, turned.axes, latent.width, step=wide))
        latents = Rows(kept.value, (latent.width,))
        self._normed(Rows(down.value, latents.axes, down.column), latent.norm, latents)
        turned = Rows(down.value, (1, latent.shared), down.column + latent.width)
        self._turn(layer, latent, turned, Rows(kept.value, turned.axes, latent.width))
        mixed, result = self._rows(heads, latent.width), self._rows(heads, latent.size)
        self._attend_latents(layer, latent, query, kept, mixed)
        self._multiply_heads(mixed, weight[:, latent.unturned :], result)
        return Rows(result.value, (result.size,))

    def _multiply_heads(self: Any, source: Rows, weight: torch.Tensor, into: Rows) -> None:
        self.make.add("head_linear", [into], input=source, weight=self.make.weight(weight), dtype=self.dtype)

    def _turn(self: Any, layer: Layer, latent: Latent, source: Rows, into: Rows) -> None:
        """The rotated part of heads; gathered first by a product with ones and zeros."""
        if latent.gathers:
            order = gathered(torch.eye(latent.shared, dtype=self.program.dtype)).t()
            rows = self._rows(*source.axes)
            self._multiply_heads(source, order.expand(source.axes[0], -1, -1), rows)
            source = rows
        rope, (_, cos, sin) = layer.attention.rope, self.groups[layer.group]
        assert rope is not None
        tables = {"cos": cos, "sin": sin, "interleaved": rope.interleaved, "rotary_dim": rope.rotary_dim}
        self.make.add("rope", [into], input=source, **tables)

    def _attend_latents(self: Any, layer: Layer, latent: Latent, query: Rows, kept: Rows, mixed: Rows) -> None:
        """Passes the cache twice: latents with their shared columns, and alone."""
        self.program.layers.append((layer.index, 1, latent.width, latent.shared))
        keys, values = (Rows(self.make.cache(self.dtype), (1, n)) for n in (kept.size, latent.width))
        for rows in (keys, values):
            self.make.add("cast", [rows], input=dataclasses.replace(kept, axes=rows.axes), dtype=self.dtype)
        operands: dict[str, Any] = {"query": query, "attn_mask": self.groups[layer.group][0]}
        operands |= {n: dataclasses.replace(r, past=True) for n, r in {"key": keys, "value": values}.items()}
        self.make.add("attention", [mixed], **operands, **self._limits(layer.attention))

    @staticmethod
    def _limits(own: Attention) -> dict[str, Any]:
        further = {"window": own.window, "softcap": own.softcap}
        return {"scale": own.scale} | {name: value for name, value in further.items() if value is not None}
