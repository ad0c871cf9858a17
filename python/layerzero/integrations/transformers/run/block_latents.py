"""The steps of attention over latents."""

from collections.abc import Callable

import torch

from layerzero.integrations.transformers.caches.latents import gathered
from layerzero.integrations.transformers.layers import Latent, Layer
from layerzero.integrations.transformers.run.steps import Steps
from layerzero.program import Rows


def latent_steps(
    steps: Steps, layer: Layer, latent: Latent, given: dict[str, Rows], attend: Callable[..., None]
) -> Rows:
    """Multiplies each head's part of `up` with its query and with its output, so that keys and values are the latents themselves."""
    own, down = layer.attention, given[latent.down]
    rows = given[own.linears[0]]
    if latent.query_down is not None:
        rows = steps.linear(steps.normed(rows, latent.query_norm), own.query.linear)
    heads, size, wide = own.query.heads, own.query.size, latent.width + latent.shared
    weight = steps.tables.weight(latent.up).unflatten(0, (heads, -1))
    query, kept = steps.rows(heads, wide), steps.rows(1, wide)
    _multiply_heads(
        steps,
        Rows(rows.value, (heads, latent.unturned), rows.column, step=size),
        weight[:, : latent.unturned].transpose(1, 2),
        Rows(query.value, (heads, latent.width), step=wide),
    )
    turned = Rows(rows.value, (heads, latent.shared), rows.column + latent.unturned, step=size)
    _turn(steps, layer, latent, turned, Rows(query.value, turned.axes, latent.width, step=wide))
    latents = Rows(kept.value, (latent.width,))
    steps.normed(Rows(down.value, latents.axes, down.column), latent.norm, latents)
    turned = Rows(down.value, (1, latent.shared), down.column + latent.width)
    _turn(steps, layer, latent, turned, Rows(kept.value, turned.axes, latent.width))
    mixed = steps.rows(heads, latent.width)
    attend(layer, latent, query, kept, mixed)
    result = _multiply_heads(steps, mixed, weight[:, latent.unturned :], (heads, latent.size))
    return steps.linear(Rows(result.value, (result.size,)), own.out)


def _multiply_heads(steps: Steps, source: Rows, weight: torch.Tensor, into: Rows | tuple[int, ...]) -> Rows:
    made: Rows = steps.call("head_linear", into, input=source, weight=steps.weight(weight), dtype=steps.dtype)
    return made


def _turn(steps: Steps, layer: Layer, latent: Latent, source: Rows, into: Rows) -> None:
    """Rotates part of the heads. If even columns come first, a product with a permutation matrix orders them before."""
    if latent.gathers:
        order = gathered(torch.eye(latent.shared, dtype=steps.torch_dtype)).t()
        source = _multiply_heads(steps, source, order.expand(source.axes[0], -1, -1), source.axes)
    rope, (_, cos, sin) = layer.attention.rope, steps.groups[layer.group]
    assert rope is not None
    tables = {"cos": cos, "sin": sin, "interleaved": rope.interleaved, "rotary_dim": rope.rotary_dim}
    steps.call("rope", into, input=source, **tables)
