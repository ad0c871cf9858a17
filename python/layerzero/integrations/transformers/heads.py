"""How queries, keys and values are computed: which columns of which linear layer, with which norm, bounds and rotation."""

import dataclasses
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.arguments import POSITIONS, TABLES
from layerzero.integrations.transformers.layers import Heads, Rope, Table, Unknown, kind_of
from layerzero.integrations.transformers.recorded import in_both_layouts, same, tables_of

_rope = _layerzero.ops["rope"]


class SeesHeads:
    """What the trace of a layer mixes in."""

    layer: Any
    arguments: dict[str, Any]
    linears: Any
    all_norms: Any
    clamped: Any
    explained: Any
    use: Any
    _norm: Any

    def _heads(self, seen, index):
        """(Heads, Rope or None) of queries, keys or values."""
        wanted = seen.heads[index].transpose(1, 2)
        shape = (*wanted.shape[:2], -1)
        constants = vars(seen.module).values() if index == 0 else ()
        factors = [1.0, *(value for value in constants if isinstance(value, float))]
        for call in self.linears:
            if call.result.shape[:-1].numel() != wanted.shape[:2].numel():
                continue
            rows = call.result.reshape(shape)
            for column, step, *groups in self._columns(seen, rows.shape[-1], index):
                part = Heads(call.name, column, wanted.shape[2], wanted.shape[3], step)
                part = dataclasses.replace(part, **dict(zip(("groups", "group_step"), groups, strict=False)))
                for normed, norm, whole in self._normed(rows, part):
                    clipped, clamp = self._clipped(normed, rows)
                    for turned, rope in self._turned(clipped) if index < 2 else [(clipped, None)]:
                        for factor in factors:
                            if self._matches(turned * factor if factor != 1.0 else turned, wanted, rope):
                                self.use(call)
                                self.explained += [] if clamp is None else [clamp]
                                further = {"norm": None if norm is None else self._norm(norm), "whole": whole}
                                further["clip"] = None if clamp is None else (clamp.least, clamp.most)
                                return dataclasses.replace(part, factor=factor, **further), rope
                found = self._normed_behind(rows, part, wanted) if index < 2 else None
                if found is not None:
                    self.use(call)
                    return dataclasses.replace(part, norm=self._norm(found[0]), behind=True), found[1]
        raise Unknown(f"its {('queries', 'keys', 'values')[index]} are computed in a way that was not recognised")

    def _normed_behind(self, rows, part, wanted):
        """(the call of the norm, Rope) of heads that are rotated first, or None."""
        heads = next(self._normed(rows, part))[0]
        for turned, rope in self._turned(heads):
            for call in self.all_norms if rope is not None else ():
                for given, result in in_both_layouts(call):
                    if (
                        given.shape == turned.shape
                        and torch.equal(result, wanted)
                        and self._matches(turned, given, rope)
                    ):
                        return call, rope
        return None

    def _clipped(self, heads, rows):
        """(heads as a clamp of them, or of the linear layer's whole output, leaves them; that Clamped, or None)."""
        for clamp in self.clamped:
            if {type(clamp.least), type(clamp.most)} <= {float, int} and (
                same(clamp.given, heads.flatten(2)) or same(clamp.given, rows)
            ):
                return heads.clamp(clamp.least, clamp.most), clamp
        return heads, None

    @staticmethod
    def _matches(rows, wanted, rope):
        if rope is None:
            return torch.equal(rows, wanted)
        return structure.agrees_by_row(rows.flatten(0, 1), wanted.flatten(0, 1))

    @staticmethod
    def _columns(seen, width, index):
        """Returns (column, step) at which queries, keys or values may be in `width` columns; of several groups also how many, and
        their step.
        """
        _, heads, _, size = zip(*(h.shape for h in seen.heads), strict=True)
        widths = [h * s for h, s in zip(heads, size, strict=True)]
        if width == widths[index]:
            yield 0, size[index]
        if width == 2 * widths[index]:  # next to a gate of each head
            yield 0, 2 * size[index]
        if width == sum(widths):
            yield sum(widths[:index]), size[index]
            if len(set(widths)) == 1:  # of one head, adjacent
                yield from ((place * size[index], 3 * size[index]) for place in (index, *range(3)))
                for groups in range(1, heads[index]):  # of some heads, adjacent
                    if heads[index] % groups == 0:
                        part = widths[index] // groups
                        yield from ((place * part, size[index], groups, 3 * part) for place in range(3))
        shared, rest = divmod(
            width - widths[0], 2 * size[index]
        )  # heads of keys and values, given to several of queries
        if len(set(widths)) == 1 and not rest and 0 < shared < heads[0] and heads[0] % shared == 0:
            each = heads[0] // shared
            column, step = ((0, size[0]), (widths[0] // shared, 0), (widths[0] // shared + size[0], 0))[index]
            yield column, step, shared, (each + 2) * size[0]

    def _normed(self, rows, part):
        """(heads, the call of their norm, whether it is one of all columns): without a norm first."""
        width = rows.shape[-1]
        if max(part.starts) + part.size > width:
            return
        heads = torch.stack([rows[..., start : start + part.size] for start in part.starts], dim=2)
        yield heads, None, False
        for call in self.all_norms:
            if call.given.dim() == 4 and call.given.shape[-1] == part.size:
                for given, result in in_both_layouts(call):
                    if given.shape == heads.shape and torch.equal(given, heads):
                        yield result, call, False
            elif same(call.given, rows) and width == part.heads * part.size:
                yield call.result.reshape(heads.shape), call, True

    def _turned(self, heads):
        """(rotated heads, Rope), as they are first."""
        yield heads, None
        for *tables, place in self._tables():
            width = tables[0].shape[-1]
            kinds = [(False, width, width), (True, width, width), (False, 2 * width, width), (True, 2 * width, width)]
            kinds += [(True, width, width // 2)]
            for interleaved, rotary_dim, read in kinds:
                if rotary_dim <= heads.shape[-1]:
                    cos, sin = (table[..., :read] for table in tables)
                    turned = _rope(
                        heads.contiguous(), cos, sin, interleaved=interleaved, rotary_dim=rotary_dim, layout="BSHD"
                    )
                    yield turned, Rope(interleaved, rotary_dim, read, **place)

    def _tables(self):
        """(cosines, sines, what a Rope says of where they are from): what the layer was given, else the rows of buffers
        within it.
        """
        cos, sin = tables_of(self.arguments.get(TABLES))
        if cos is not None and cos.dim() == sin.dim() == 3:
            yield cos, sin, {}
            yield sin, cos, {"sines_first": True}
        positions: Any = self.arguments.get(POSITIONS)
        if cos is not None or kind_of(positions) != (2, "torch.int64"):
            return
        for name, module in self.layer.named_modules():
            for key, held in module._buffers.items():
                rows = held if kind_of(held) == (2, "floating point") else None
                if rows is not None and rows.shape[1] % 2 == 0 and positions.max() < len(rows):
                    for table in (Table(name, key, False), Table(name, key, True)):
                        yield *table.at(rows, positions), {"table": table}
