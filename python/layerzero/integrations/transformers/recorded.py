"""What was seen of the parts of a layer in one forward, and what equal numbers say of it."""

from typing import Any, NamedTuple

import torch
from torch import nn

from layerzero.integrations.transformers import structure


class Call(NamedTuple):
    """Of a part without parts of its own, or with parameters: what it read and gave, and the tensors themselves, which may be written since."""

    name: str
    module: nn.Module
    given: torch.Tensor
    result: torch.Tensor
    own: tuple[torch.Tensor, torch.Tensor]
    further: tuple[torch.Tensor, ...] = ()  # what else it read

    def reads(self, other: "Call") -> bool:
        return self.own[0].data_ptr() == other.own[1].data_ptr()


class Attended(NamedTuple):
    module: nn.Module
    heads: tuple[torch.Tensor, ...]  # query, key, value: (batch, heads, positions, size)
    mask: Any
    result: torch.Tensor  # (batch, positions, heads, size)
    further: dict[str, Any]


class Clamped(NamedTuple):
    """What went through a clamp within a module, whose bounds are numbers, or tensors or None."""

    module: nn.Module
    given: torch.Tensor
    least: Any
    most: Any


def tables_of(embeddings):
    """(cos, sin) of what layers get as position_embeddings, which may be one complex tensor; (None, None) of anything else."""
    if isinstance(embeddings, torch.Tensor) and embeddings.is_complex():
        return embeddings.real.contiguous(), embeddings.imag.contiguous()
    return embeddings if isinstance(embeddings, tuple) and len(embeddings) == 2 else (None, None)


def _rows(tensor):
    return tensor.reshape(-1, tensor.shape[-1])


def same(a, b):
    a, b = _rows(a), _rows(b)
    return a.shape == b.shape and torch.equal(a, b)


def is_same(value, known):
    """The same object, or the weights of an attention in another shape."""
    if value is known or value is None or known is None:
        return value is known
    return value.numel() == known.numel() and torch.equal(value.flatten(), known.flatten().to(value.dtype))


def is_scale(call):
    """Whether a module did nothing but to multiply columns with the one vector that it has."""
    vectors = [parameter for parameter in call.module._parameters.values() if parameter is not None]
    if len(vectors) != 1 or vectors[0].dim() != 1 or structure.why_not_plain(call.module):
        return False
    return call.given.shape[-1] == vectors[0].shape[0] and same(call.given * vectors[0].detach(), call.result)


def in_both_layouts(call):
    """[(given, result)] of a call: as they were, and of heads also with heads and positions changed over."""
    pair = call.given, call.result
    return [pair, tuple(tensor.transpose(1, 2) for tensor in pair)] if call.given.dim() == 4 else [pair]


def is_sum(total, *terms):
    """Whether `total` is the sum of the terms in any order; a single one is to be the same."""
    if len(terms) == 1:
        return same(total, terms[0])
    rows = [_rows(term).double() for term in terms]
    if any(term.shape != _rows(total).shape for term in rows):
        return False
    bound = 2 * torch.finfo(total.dtype).eps * sum(term.abs() for term in rows)
    return bool(((_rows(total).double() - sum(rows)).abs() <= bound).all())
