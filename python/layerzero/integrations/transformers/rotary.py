"""The rotation of queries and keys in attention modules that have a forward of their own.

Transformers rotates by a function of the model's file, shared by all models of a family. One model is changed alone by
running its attention's own code with another function under that name.
"""

import functools
import threading
import types
from typing import NamedTuple

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers import counts, structure
from layerzero.integrations.transformers.arguments import uses_former_names, without_renaming

_rope = _layerzero.ops["rope"]
_done = threading.local()  # .rotations: calls that the operation answered in this thread
PREFIX = "apply_rotary_pos_emb"


class Rotation(NamedTuple):
    """How a function reads rows (..., d) and tables, which hold a value for each place or, `pairwise`, for each pair.

    interleaved: pairs are neighbours; gathers: neighbours again, which become places i and i + d / 2 of the result;
    halved: of tables for each place only the first half is read; casts: the result has the dtype of the rows.
    """

    interleaved: bool = False
    pairwise: bool = False
    gathers: bool = False
    halved: bool = False
    casts: bool = False


_KINDS = (
    Rotation(),
    Rotation(interleaved=True),
    Rotation(pairwise=True),
    Rotation(interleaved=True, pairwise=True),
    Rotation(gathers=True, halved=True),
)


def _try(function, width, dtype):
    """What a function makes of a query and a key with tables of `width`: (arguments, results), results None if it fails."""
    q, k = structure.normal(2, 6, 3, 16).to(dtype).split((4, 2), dim=1)
    cos, sin = structure.normal(2, 2, 3, width, seed=8)
    try:
        return (q, k, cos, sin), function(q, k, cos, sin)
    except Exception:  # such tables are not for it
        return None, None


def _rotate(rows, cos, sin, rotation):
    if rotation.gathers:
        rows = rows.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    if rotation.halved:
        cos, sin = (table[..., : table.shape[-1] // 2] for table in (cos, sin))
    width = cos.shape[-1] * (2 if rotation.pairwise or rotation.halved else 1)
    return _rope(rows, cos, sin, interleaved=rotation.interleaved, rotary_dim=width, layout="BHSD")


def _fits(rotation, rows, cos):
    width = cos.shape[-1] * (2 if rotation.pairwise else 1)
    return width == rows.shape[-1] if rotation.gathers else width <= rows.shape[-1]


def rotation_of(function):
    """The Rotation that a function(q, k, cos, sin) computes for whole and for half tables, or None."""
    return _rotation_of(function, structure.functions_of(function))


@functools.lru_cache
@torch.no_grad()
def _rotation_of(function, _):
    tries = [tried for tried in (_try(function, width, torch.float32) for width in (16, 8)) if tried[0]]
    for rotation in _KINDS:
        fitting = [tried for tried in tries if not rotation.pairwise or tried[0][2].shape[-1] == 8]
        if fitting and all(_same(rotation, *tried) for tried in fitting):
            _, mixed = _try(function, 8 if rotation.pairwise else 16, torch.bfloat16)
            return rotation._replace(casts=mixed is not None and mixed[0].dtype == torch.bfloat16)
    return None


def _same(rotation, given, results):
    q, k, cos, sin = given
    if not _fits(rotation, q, cos) or not isinstance(results, tuple):
        return False
    mine = [_rotate(rows, cos, sin, rotation) for rows in (q, k)]
    return len(results) == 2 and all(map(structure.agrees, mine, results))


def _rotates(others, name, rotation):
    """What replaces the function of this name in a file's globals; another one set there is called."""
    judged = others[name]
    read = structure.globals_of(structure.functions_of(judged))
    before = [table[name] for table, name in read]

    @functools.wraps(judged)
    def rotate(q, k, cos, sin, *rest, **further):
        own = others[name]
        changed = any(table.get(name) is not value for (table, name), value in zip(read, before, strict=True))
        tables = cos.dim() == 3 and cos.dtype == sin.dtype and (rotation.casts or cos.dtype == q.dtype)
        plain = not rest and further in ({}, {"unsqueeze_dim": 1}) and q.dtype == k.dtype and q.dim() == 4
        known = own is judged and not changed and structure.are_readable(q)
        if not known or not plain or not tables or not _fits(rotation, q, cos):
            return own(q, k, cos, sin, *rest, **further)
        _done.rotations = getattr(_done, "rotations", 0) + 1
        return _rotate(q, cos, sin, rotation), _rotate(k, cos, sin, rotation)

    return rotate


class _Globals(dict):
    """The globals of a file as they are at each moment, with other functions under some names."""

    def __init__(self, others, own):
        super().__init__(others)
        self._own = own

    def __missing__(self, name):
        return self._own[name]


@functools.lru_cache
def _with_rotations(forward, rotations):
    own = forward.__globals__
    others = {name: _rotates(own, name, rotation) for name, rotation in rotations}
    function = types.FunctionType(
        forward.__code__, _Globals(others, own), forward.__name__, forward.__defaults__, forward.__closure__
    )
    function.__kwdefaults__ = forward.__kwdefaults__
    return function


def rotations_of(module):
    """(((name, Rotation) ...), None) of the functions that a module's forward rotates by, or (None, reason)."""
    forward = without_renaming(type(module).forward)
    if not isinstance(forward, types.FunctionType) or hasattr(forward, "__wrapped__"):
        return None, "its forward is no plain function"
    names = [name for name in forward.__code__.co_names if name.startswith(PREFIX)]
    found = {name: rotation_of(forward.__globals__.get(name)) for name in names}
    others = [name for name, rotation in found.items() if rotation is None]
    if others:
        return None, f"{', '.join(others)} computes another rotation than the operation"
    rotations = tuple(found.items())
    _with_rotations(forward, rotations)  # holds what the files hold now
    return rotations, structure.why_not_plain(module)


def looks_like_rotating(module):
    forward = without_renaming(getattr(type(module), "forward", None))
    code = getattr(forward, "__code__", None)
    return code is not None and any(name.startswith(PREFIX) for name in code.co_names)


def rotating_forward(self, *args, **kwargs):
    """Takes the place of an attention module's forward: the module's own code with the operation's rotation."""
    rotations = self.__dict__.get("_layerzero_rotations")
    forward = without_renaming(type(self).forward)
    if rotations is None or structure.takes_own_code(self) or uses_former_names(forward, kwargs):
        return type(self).forward(self, *args, **kwargs)
    before = getattr(_done, "rotations", 0)
    result = _with_rotations(forward, rotations)(self, *args, **kwargs)
    if getattr(_done, "rotations", 0) != before:
        counts.count_call(self)
    return result
