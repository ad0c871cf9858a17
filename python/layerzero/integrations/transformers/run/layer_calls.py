"""Runs the layers of a decoder by calls of operations: a captured step records them, and they run if no program does."""

from functools import partial
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers.layers import Attention, Columns, Heads, Layer, Mlp, Norm, Norms, Stack

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
    tables = tuple(table[..., : rope.width] for table in (cos, sin))
    stream = _Stream(hidden)
    side_by_side = branches.run if branches is not None else _in_turn
    for layer in plan.layers:
        own = layer.shape.attention
        late = branches is not None and turns_where_stored(own)
        _run_layer(products, layer, stream, (tables, late), attend, side_by_side)
    norm, table = plan.norm
    return stream.normed(norm, table)


def _in_turn(*parts: Any) -> list[Any]:
    return [part() for part in parts]


def _run_layer(products: Any, layer: Any, stream: "_Stream", tables: Any, attend: Any, side_by_side: Any) -> None:
    shape = layer.shape
    rows = stream.source(shape.attention_norms, layer)
    read = stream.rows
    stream.push(_attention(products, layer, rows, tables, attend, side_by_side), shape.attention_norms, layer)
    if not shape.parallel:
        rows = stream.source(shape.mlp_norms, layer)
    elif shape.mlp_norms.before != shape.attention_norms.before:
        before = shape.mlp_norms.before
        rows = read if before is None else _normed(read, before, layer[before.name])
    stream.push(_mlp(products, layer, shape.mlp, rows), shape.mlp_norms, layer)


class _Stream:
    """The residual stream. Outputs wait to be added until the stream is read, because fused norms add the last one themselves."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.waiting: list[tuple[torch.Tensor, float]] = []

    def source(self, norms: Norms, layer: Any) -> torch.Tensor:
        """The input of a part of a layer."""
        return self._added() if norms.before is None else self.normed(norms.before, layer[norms.before.name])

    def push(self, result: torch.Tensor, norms: Norms, layer: Any) -> None:
        if norms.after is not None:
            result = _normed(result, norms.after, layer[norms.after.name])
        self.waiting.append((result, layer.shape.factor))
        if norms.behind is not None:
            self.rows = self.normed(norms.behind, layer[norms.behind.name])

    def normed(self, norm: Norm, table: Any) -> torch.Tensor:
        last = self.waiting.pop()[0] if self.waiting and self.waiting[-1][1] == 1.0 else None
        self._added()
        if last is None:
            return _normed(self.rows, norm, table)
        fused = _OPS[f"fused_add_{norm.operation}"]
        result, self.rows = fused(last, self.rows, **_arguments(norm, table, last.shape[-1]))
        return result

    def _added(self) -> torch.Tensor:
        for rows, factor in self.waiting:
            self.rows = _OPS["elementwise"](self.rows, rows, "add", scale=factor)
        self.waiting.clear()
        return self.rows


def _arguments(norm: Norm, table: Any, width: int) -> dict[str, Any]:
    given = {"weight": table["weight"], "eps": norm.eps, "weight_offset": norm.offset}
    if norm.operation == "rms_norm":
        return given
    return given | {"normalized_shape": width, "bias": table.get("bias")}


def _normed(rows: torch.Tensor, norm: Norm, table: Any) -> torch.Tensor:
    return _OPS[norm.operation](rows, **_arguments(norm, table, rows.shape[-1]))


def _attention(products: Any, layer: Any, rows: Any, tables: Any, attend: Any, side_by_side: Any) -> torch.Tensor:
    own = layer.shape.attention
    parts = (own.query, own.key, own.value)
    tables, late = tables
    one = products.together(rows, [layer[name] for name in own.linears])
    shared: dict[str, torch.Tensor] = {} if one is None else dict(zip(own.linears, one, strict=True))
    if one is not None:
        side_by_side = _in_turn
    elif len(own.linears) < len(parts):  # one product for several of them
        shared = {name: products.multiply(rows, layer[name]) for name in own.linears}
    query, key, value = side_by_side(
        *(
            partial(_heads, products, layer, part, rows, shared, None if late else tables)
            for part in (own.query, own.key)
        ),
        partial(_heads, products, layer, own.value, rows, shared, None),
    )
    mixed = attend(layer, query, key, value, tables if late else None)
    return products.multiply(mixed.reshape(*rows.shape[:2], -1), layer[own.out])


def _heads(products: Any, layer: Any, part: Heads, rows: Any, shared: Any, tables: Any) -> torch.Tensor:
    """(b, length, heads, size); rotated if there are tables."""
    given = shared[part.linear] if part.linear in shared else products.multiply(rows, layer[part.linear])
    width = part.heads * part.size
    if part.norm is not None and part.whole:
        given = _normed(given, part.norm, layer[part.norm.name])
    if given.shape[-1] != width:
        given = given[..., part.column : part.column + width]
    heads = given.view(*given.shape[:2], part.heads, part.size)
    of_heads = part.norm if not part.whole else None
    if of_heads is not None and not part.behind:
        heads = _normed(heads, of_heads, layer[of_heads.name])
    if tables is not None:
        rope = layer.shape.attention.rope
        partly = {} if rope.rotary_dim == part.size else {"rotary_dim": rope.rotary_dim}
        heads = _OPS["rope"](heads, *tables, rope.interleaved, layout="BSHD", **partly)
    if of_heads is not None and part.behind:
        heads = _normed(heads, of_heads, layer[of_heads.name])
    return heads


def _mlp(products: Any, layer: Any, mlp: Mlp, rows: torch.Tensor) -> torch.Tensor:
    one = products.together(rows, [layer[name] for name in mlp.linears])
    found = [products.multiply(rows, layer[name]) for name in mlp.linears] if one is None else one
    given = dict(zip(mlp.linears, found, strict=True))

    def part(columns: Columns) -> torch.Tensor:
        found = given[columns.linear]
        whole = found.shape[-1] == columns.width
        return found if whole else found[..., columns.column : columns.column + columns.width]

    if mlp.operation == "activation":
        hidden = _OPS["activation"](part(mlp.gate or mlp.up), mlp.kind)
        if mlp.gate is not None:
            hidden = _OPS["elementwise"](hidden, part(mlp.up), "mul")
    else:
        further = {} if mlp.kind is None else {"approximate": mlp.kind}
        gate: Any = mlp.gate
        hidden = _OPS[mlp.operation](part(gate), part(mlp.up), **further)
    return products.multiply(hidden, layer[mlp.out])
