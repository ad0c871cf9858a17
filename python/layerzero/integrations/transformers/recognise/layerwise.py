"""Compares layers one by one in float32, each on the rows that the model's own code passes to it.

Two correct ways to compute a mixture of experts in 16 bits differ by rounding. If the scores of two experts are nearly tied,
rounding changes which expert a row gets, and then the whole row. A layer alone has no rounding errors of earlier layers, and
float32 has almost no ties: a difference that is left is a fault. Each layer gets its own part of the cache, one copy for each
of the two ways, so that a token reads the keys that the same way wrote for the prompt.
"""

import contextlib
import copy
import dataclasses
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from layerzero.integrations.transformers import choices, probe, structure
from layerzero.integrations.transformers.arguments import MASK, signature_of
from layerzero.integrations.transformers.run import deferred, experts
from layerzero.integrations.transformers.run.plan import StackPlan

_OF_DELTA = 1e-3  # error of a row, relative to what the layer adds to it
_OF_ROWS = 1e-6  # and to the row itself, to which that is added


def may_choose_otherwise(model, rows):
    """Whether rounding may change the experts of `rows`, a result of the model."""
    few_bits = rows is not None and rows.dtype in (torch.bfloat16, torch.float16)
    return few_bits and any(map(experts.looks_like_experts, model.modules()))


def agree(stack, layers, run):
    """True if a program of each single layer returns what the layer's own code does, for all its calls in `run()`."""
    shapes = {
        layer: dataclasses.replace(shape, group=0, index=min(shape.index, 0))  # in a cache of its part alone
        for layer, shape in zip(layers, stack.layers, strict=True)
    }

    def by_program(layer, in_float32, args, kwargs):
        return _by_program(dataclasses.replace(stack, layers=(shapes[layer],), norm=None), in_float32, args, kwargs)

    return _agree(_calls_of(layers, run), _own_code, by_program)


def attend_alike(model, layers, before, run):
    """Whether layers compute the same with the attention that the model has now and with the one that it had `before`."""
    ours = choices.chosen(model, "attn")
    choices.put_back(before, "attn")
    calls = _calls_of(layers, run)
    choices.put_back(ours, "attn")
    masks = [_mask_of(layer, *call) for layer, given in _calls_of(layers, run).items() for call in given]
    left = iter(masks)  # each attention has its own

    def by_theirs(*given):
        choices.put_back(before, "attn")
        try:
            return _own_code(*given)
        finally:
            choices.put_back(ours, "attn")

    def by_ours(layer, in_float32, args, kwargs):
        return _own_code(layer, in_float32, args, kwargs | {_name_of_mask(layer): next(left)})

    return len(masks) == sum(map(len, calls.values())) and _agree(calls, by_theirs, by_ours)


def _name_of_mask(layer):
    return signature_of(type(layer).forward).name_of(MASK) or MASK


def _mask_of(layer, args, kwargs):
    return (signature_of(type(layer).forward).bind(args, kwargs) or {}).get(MASK)


def _agree(calls, own, other):
    """own, other: functions of (layer, its copy in float32, args, kwargs) that return rows, or None."""
    with torch.inference_mode():
        for layer, given in calls.items():
            configs = {id(config): config for config in choices.configs_of(layer)}  # the copy's too: they choose for it
            in_float32 = copy.deepcopy(layer, configs).float().eval()
            with_own, with_other = _Caches(), _Caches()
            for call in given:
                expected = own(layer, in_float32, *with_own.of(call))
                actual = other(layer, in_float32, *with_other.of(call))
                if not _are_alike(actual, expected, _given(*call)):
                    return False
    return all(calls.values())


def _own_code(layer, in_float32, args, kwargs):
    return _rows(type(layer).forward(in_float32, *args, **kwargs))


def _calls_of(layers, run):
    """Layer -> [(args, kwargs)] of its calls, in float32 and with a _Part for a cache."""
    calls: dict[nn.Module, list] = {layer: [] for layer in layers}
    parts: dict[tuple[nn.Module, int], Any] = {}  # of each layer and cache

    def keep(layer, args, kwargs):
        def kept(value):
            if not isinstance(value, Cache):
                return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            if (layer, id(value)) not in parts:
                parts[layer, id(value)] = _part_of(layer, value)
            return parts[layer, id(value)]

        call = _mapped((args, kwargs), kept)
        reads = any(part in call[1].values() for part in parts.values() if part)
        if reads or _given(args, kwargs).shape[1] > 1:  # a token alone reads the cache
            calls[layer].append(call)

    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(keep, with_kwargs=True))
        run()
    return calls


class _Part:
    """A layer's part of a cache in which there is nothing yet. cache: that of the model, which it keeps alive."""

    def __init__(self, cache, index):
        self.cache, self.index = cache, index
        self.held = copy.deepcopy(cache.layers[index]) if index < len(cache.layers) else DynamicLayer()

    def alone(self):
        """A cache that holds only this part, at the layer's index."""
        cache = DynamicCache()
        cache.layers = [copy.deepcopy(self.held)] * (self.index + 1)
        if not self.has_length:
            cache.layers.append(DynamicLayer())
        return cache

    @property
    def has_length(self):
        """Whether it knows the number of positions, which states do not."""
        return isinstance(self.held, CacheLayerMixin)


class _Caches:
    """The caches of one layer, for one of the two ways to compute it."""

    def __init__(self):
        self._made = {}  # _Part -> [its cache, positions in it]

    def of(self, call):
        """A recorded call, with its caches replaced by these."""
        length = _given(*call).shape[1]
        return _mapped(call, lambda value: self._at(value, length) if isinstance(value, _Part) else value)

    def _at(self, part, length):
        cache, past = self._made.setdefault(part, [part.alone(), 0])
        missing = 0 if part.has_length else past - cache.layers[-1].get_seq_length()
        if missing:
            cache.layers[-1].update(*torch.zeros(2, 1, 1, missing, 1))
        self._made[part][1] += length
        return cache


def _part_of(layer, cache):
    """The layer's part of a cache; None if the kind of cache is unknown or the layer has no index in it."""
    indices = [part.layer_idx for part in layer.modules() if isinstance(getattr(part, "layer_idx", None), int)]
    if type(cache) is not DynamicCache or not indices:
        return None
    return _Part(cache, indices[0])


def _by_program(stack, layer, args, kwargs):
    """Returns the result of a program of `stack`, which is one layer; None if it steps aside."""
    holder = nn.Module().eval()
    setattr(holder, stack.name, nn.ModuleList([layer]))
    holder.__dict__["_layerzero_decoder"] = StackPlan(stack)
    layer.__dict__["forward"] = structure.Bound(deferred.deferred_layer, layer)
    with probe.without_modes():  # programs run under none
        return _rows(deferred.as_one(holder, lambda: layer(*args, **kwargs)))


def _are_alike(actual, expected, rows):
    """Compares each row, except positions that may be padding."""
    if actual is None or actual.shape != expected.shape:
        return False
    padded = probe.PADDED if rows.shape[1] > 1 else 0
    actual, expected, rows = (each[:, padded:].double() for each in (actual, expected, rows))
    error, delta, size = (each.norm(dim=-1) for each in (actual - expected, expected - rows, rows))
    return bool((error <= _OF_DELTA * delta + _OF_ROWS * size).all())


def _rows(result):
    return result[0] if isinstance(result, tuple) else result


def _given(args, kwargs):
    """The first argument that is rows."""
    given = (*args, *kwargs.values())
    return next(value for value in given if isinstance(value, torch.Tensor) and value.is_floating_point())


def _mapped(value, change):
    """The same tuples, lists and dictionaries of what `change` makes of what they hold."""
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(held, change) for held in value)
    if isinstance(value, dict):
        return {name: _mapped(held, change) for name, held in value.items()}
    return change(value)
