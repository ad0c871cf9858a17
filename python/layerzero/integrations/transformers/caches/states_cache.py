"""The part of a Transformers cache that keeps states: of layers that attend by a state in place of keys and values.

Such a layer of the cache has two tensors, which both the model's own code and programs write in place. So either can continue
a text that the other one began.
"""

import dataclasses
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionLayer

OTHER_STATES = "the states in the cache are not those of the positions in it"


@dataclasses.dataclass(frozen=True)
class State:
    """Of one layer: index in the cache; channels and positions before a convolution; heads, and sizes of their state."""

    index: int
    channels: int
    taps: int
    heads: int
    key: int
    value: int

    def shapes(self, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (batch, self.channels, self.taps), (batch, self.heads, self.key, self.value)


def fresh(like: torch.Tensor, states: list[State]) -> list[torch.Tensor]:
    """Of a text that begins: rows before the convolution, and the state of each layer."""
    shapes = [state.shapes(like.shape[0]) for state in states]
    dtypes = (like.dtype, torch.float32)
    return [torch.zeros(s, dtype=t, device=like.device) for both in shapes for s, t in zip(both, dtypes, strict=True)]


def why_not(cache: Any, like: torch.Tensor, states: list[State], past: int) -> str | None:
    """None, or why a program cannot go on from what a cache keeps of `past` positions."""
    for state in states:
        layer: Any = cache.layers[state.index] if state.index < len(cache.layers) else None
        if type(layer) is not LinearAttentionLayer or layer.number_of_states != 1 or layer.record_past:
            return "the cache keeps other states, or those of the past too"
        if layer.has_previous_state[0] != (past > 0):
            return OTHER_STATES
        held = (layer.conv_states[0], layer.recurrent_states[0]) if past else ()
        wanted = zip(state.shapes(like.shape[0]), (like.dtype, torch.float32), strict=True)
        for tensor, (shape, dtype) in zip(held, wanted, strict=False):
            if tensor is None or (tensor.shape, tensor.dtype, tensor.device) != (shape, dtype, like.device):
                return OTHER_STATES
    return None


def of_cache(cache: Any, like: torch.Tensor, states: list[State]) -> list[torch.Tensor]:
    """The same as `fresh` where `why_not` has said None, in the memory of the cache; `begun` after the run."""
    held = []
    zeros = iter(fresh(like, [state for state in states if not cache.layers[state.index].has_previous_state[0]]))
    for state in states:
        layer = cache.layers[state.index]
        if not layer.has_previous_state[0]:
            layer.lazy_initialization(conv_states=next(zeros), conv_kernel_size=state.taps)
            layer.lazy_initialization(recurrent_states=next(zeros))
        held += [layer.conv_states[0], layer.recurrent_states[0]]
    return held


def begun(cache: Any, states: list[State]) -> None:
    """Marks the states in the cache as those of a text."""
    for state in states:
        cache.layers[state.index].has_previous_state[0] = True
