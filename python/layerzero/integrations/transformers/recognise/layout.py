"""Follows numbers through views, slices, splits and copies: which element of one tensor is at which place of another.

The calls between the two tensors are repeated on a tensor of indices, so no kind of view needs code of its own.
"""

import dataclasses
from typing import Any

import torch

from layerzero.integrations.transformers.layers import Heads

MOVES = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "T", "mT", "movedim",
         "expand", "expand_as", "broadcast_to", "broadcast_tensors", "repeat", "repeat_interleave", "split", "split_with_sizes",
         "tensor_split", "chunk", "unbind", "narrow", "select", "getitem", "item", "cat", "stack", "cast", "index_select"}  # fmt: skip


def source_of(node: Any) -> Any:
    """The node that computed the numbers of a node, before all moves; the node itself if it computes."""
    while node.op in MOVES and node.inputs:
        sources = {id(s): s for s in map(source_of, node.inputs)} if len(node.inputs) > 1 else None
        if sources is not None:
            return next(iter(sources.values())) if len(sources) == 1 else node
        node = node.inputs[0]
    return node


def rows_of(node: Any) -> Any:
    """The node before casts and changes of shape that keep rows: (batch, positions, n) as (batch * positions, n)."""
    while node.op == "cast" or (
        node.op in ("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")
        and node.inputs[0].value.shape[-1:] == node.value.shape[-1:]
    ):
        node = node.inputs[0]
    return node


def places(node: Any, root: Any, through: dict[int, Any]) -> torch.Tensor | None:
    """For each element of `node` the index of the element of `root` that it holds, or None if that is not known.

    through: id of a node that computes element by element -> (its input, whether it swaps axes 1 and 2).
    """
    if node is root:
        return torch.arange(root.value.numel()).reshape(root.value.shape)
    if id(node) in through:
        below, turned = through[id(node)]
        found = places(below, root, through)
        if found is None or found.numel() != node.value.numel():
            return None
        return (found.transpose(1, 2) if turned else found).reshape(node.value.shape)
    if node.op not in MOVES:
        return None
    if node.op == "item":
        moved = _moved(node.args[0], root, through)
        return None if moved is None else moved[node.args[1]]
    return _moved(node, root, through)


def _moved(node: Any, root: Any, through: dict[int, Any]) -> Any:
    if node.op == "cast":
        return places(node.inputs[0], root, through)
    failed = False

    def moved(value: Any) -> Any:
        nonlocal failed
        if hasattr(value, "op"):
            found = places(value, root, through)
            failed |= found is None
            return found
        if isinstance(value, (tuple, list)):
            return type(value)(map(moved, value))
        return value

    func, *given = node.call
    args, kwargs = moved(given[0]), {name: moved(value) for name, value in given[1].items()}
    return None if failed or func is None else func(*args, **kwargs)


def heads_in(found: torch.Tensor | None, root: Any, linear: str) -> Heads | None:
    """The Heads at these indices (batch, positions, heads, size) into a linear layer's result; None if they are no regular heads."""
    if found is None or found.dim() != 4:
        return None
    batch, length, heads, size = found.shape
    width = root.value.shape[-1]
    if root.value.numel() != batch * length * width:
        return None
    rows = torch.arange(batch * length).reshape(batch, length, 1, 1)
    columns = found - rows * width
    starts = columns[0, 0, :, 0]
    if not torch.equal(columns, (starts[:, None] + torch.arange(size)).expand_as(columns)):
        return None
    return _regular(Heads(linear, int(starts[0]), heads, size, size), starts.tolist())


def _regular(heads: Heads, starts: list[int]) -> Heads | None:
    for groups in (n for n in range(1, heads.heads + 1) if heads.heads % n == 0):
        each = heads.heads // groups
        step = starts[1] - starts[0] if each > 1 else heads.size
        group_step = starts[each] - starts[0] if groups > 1 else 0
        found = dataclasses.replace(heads, step=step, groups=groups, group_step=group_step)
        if step >= 0 and group_step >= 0 and found.starts == starts:
            return found
    return None
