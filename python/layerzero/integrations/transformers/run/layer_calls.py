"""Runs the layers of a decoder by calls of operations: a captured step records them, and they run if no program does."""

from functools import partial
from typing import Any, cast

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers.layers import Attention, Heads, Layer, Mlp, Rope, Stack
from layerzero.integrations.transformers.run.walk import Walk

_OPS = _layerzero.ops
_NORMS = ("rms_norm", "layer_norm")


def why_not_called(stack: Stack, always_masked: bool) -> str | None:
    """None, or what in the layers of a stack these calls do not compute. always_masked: whether every call gets a mask."""
    if stack.groups != 1:
        return "its layers get different masks or tables"
    reasons = (_why_not_layer(layer, always_masked) for layer in stack.layers)
    return next((reason for reason in reasons if reason), None)


def _why_not_layer(layer: Layer, always_masked: bool) -> str | None:
    own, mlp = layer.attention, layer.mlp
    if not isinstance(own, Attention):
        return "it has layers with a state in place of attention"
    if not isinstance(mlp, Mlp):
        return "it has experts"
    for given, what in (
        (own.latent, "its keys and values are latent"),
        (own.window or own.masked_window, "its attention has a window"),
        (own.alibi, "its attention has ALiBi"),
        (own.sinks, "its attention has sinks"),
        (own.gate or own.mixed, "its attention has a gate or a norm of what is mixed"),
        (layer.cross or layer.bias, "it attends to an encoder, or its scores have a bias"),
        (layer.transposed, "its linear layers are transposed"),
        (mlp.norm, "its MLP has a norm of its own"),
    ):
        if given:
            return what
    if own.rope is None or own.rope.table is not None or own.rope.sines_first:
        return "its layers do not get cosines and sines"
    if own.needs_mask and not always_masked:
        return "a mask alone makes its attention causal"
    parts = (own.query, own.key, own.value)
    plain = all(part.groups == 1 and part.step == part.size and part.clip is None for part in parts)
    if not plain or own.key.factor != 1.0 or own.value.factor != 1.0 or own.value.norm is not None:
        return "its heads are stored in groups, or changed before attention"
    return None if all(norm.operation in _NORMS for norm in layer.norms) else "it has factors in the place of norms"


def scores_of(layer: Any) -> tuple[float, dict[str, Any]]:
    """(scale, {"softcap"} where there is one) of attention's scores."""
    own = layer.shape.attention
    return own.scale * own.query.factor, {} if own.softcap is None else {"softcap": own.softcap}


def turns_where_stored(attention: Attention) -> bool:
    """Whether nothing reads queries and keys between their rotation and the cache."""
    return not (attention.query.behind or attention.key.behind)


def run_layers(
    plan: Any, products: Any, hidden: Any, cos: Any, sin: Any, attend: Any, branches: Any = None
) -> torch.Tensor:
    """Returns what the norm after the layers makes of them. products: a Products. attend: (layer, query, key, value (b, length,
    heads, size), tables) -> (b, length, heads, size); tables: None, or where there are branches the cosines and sines by which
    queries and keys are still to be turned. branches: side by side streams of a capture."""
    rope = plan.layers[0].shape.attention.rope
    calls = _Calls(hidden, products, tuple(table[..., : rope.width] for table in (cos, sin)), attend, branches)
    for calls.tables in plan.layers:
        calls.layer(calls.tables.shape)
    norm, table = plan.norm
    calls.tables = {norm.name: table}
    normed: torch.Tensor = calls.normed_stream(norm)
    return normed


class _Calls(Walk):
    """Runs the operations. Rows are (b, length, width), heads (b, length, heads, size)."""

    def __init__(self, hidden: torch.Tensor, products: Any, turns: Any, attend: Any, branches: Any) -> None:
        super().__init__(hidden, hidden.shape[-1])
        self.products, self.turns, self.attend, self.branches = products, turns, attend, branches

    def call(self, operation: str, *outputs: Any, **operands: Any) -> Any:
        return _OPS[operation](**operands)

    def weight(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return tensor

    def axes_of(self, rows: torch.Tensor) -> tuple[int, ...]:
        return rows.shape[2:]

    def columns(self, rows: torch.Tensor, column: int, width: int) -> torch.Tensor:
        return rows if rows.shape[-1] == width else rows[..., column : column + width]

    def linear(self, source: torch.Tensor, name: str) -> torch.Tensor:
        product: torch.Tensor = self.products.multiply(source, self.tables[name])
        return product

    def linears(self, source: torch.Tensor, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        return self._together(source, names) or {name: self.linear(source, name) for name in names}

    def _together(self, source: torch.Tensor, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """One product with the weights of these linear layers; nothing if they are not adjacent in memory."""
        one = self.products.together(source, [self.tables[name] for name in names])
        return {} if one is None else dict(zip(names, one, strict=True))

    def attention(self, layer: Layer, source: torch.Tensor) -> torch.Tensor:
        own = cast(Attention, layer.attention)
        parts = own.query, own.key, own.value
        late = self.branches is not None and turns_where_stored(own)
        given = self._together(source, own.linears)
        side_by_side = _in_turn if given or self.branches is None else self.branches.run
        if not given and len(own.linears) < len(parts):  # one product for several of them
            given = {name: self.linear(source, name) for name in own.linears}
        turned = own.rope if not late else None
        query, key, value = side_by_side(
            *(partial(self._heads, part, source, given, turned) for part in parts[:2]),
            partial(self._heads, own.value, source, given, None),
        )
        mixed = self.attend(self.tables, query, key, value, self.turns if late else None)
        return self.linear(mixed.reshape(*source.shape[:2], -1), own.out)

    def _heads(self, part: Heads, source: torch.Tensor, given: dict[str, torch.Tensor], rope: Rope | None) -> Any:
        """(b, length, heads, size); rotated if there is a rope."""
        rows = given[part.linear] if part.linear in given else self.linear(source, part.linear)
        if part.whole:
            rows = self.normed(rows, part.norm)
        norm, width = None if part.whole else part.norm, part.heads * part.size
        heads = self.columns(rows, part.column, width).view(*rows.shape[:2], part.heads, part.size)
        if not part.behind:
            heads = self.normed(heads, norm)
        if rope is not None:
            partly = {} if rope.rotary_dim == part.size else {"rotary_dim": rope.rotary_dim}
            heads = _OPS["rope"](heads, *self.turns, rope.interleaved, layout="BSHD", **partly)
        return self.normed(heads, norm) if part.behind else heads


def _in_turn(*parts: Any) -> list[Any]:
    return [part() for part in parts]
