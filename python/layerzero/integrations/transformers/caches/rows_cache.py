"""A Transformers cache whose layers share memory with room after the last position.

A layer with a sliding window keeps all positions here, like the others: the attention operation gets the window.

Transformers' own DynamicLayer copies all keys and values for each token; here the new ones are written where they
belong. For Transformers each layer is a DynamicLayer: `keys` and `values` are (batch, heads, positions, head_dim) views,
and what replaces them (beams, `update` by the model's own code) is copied at the next append. Views that were handed out never
change: positions that were read and then cropped are written elsewhere. A copy is a plain DynamicLayer.
"""

from typing import Any

import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    StaticCache,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from layerzero.integrations.transformers.caches.latents import halves, joined

Sizes = list[tuple[int, int, int, int]]  # of each decoder layer: index in the cache, heads, sizes of keys and values
_ROOM = 256  # positions ahead of the first prompt; later the memory doubles
_STEPS = 4  # on a CUDA device: sizes of memories between a power of two and the next


def _capacity(past: int, length: int, on_cuda: bool) -> int:
    """Positions of a new memory. On a CUDA device few different sizes, since a captured graph serves one, and less ahead."""
    if not on_cuda:
        return max(past + length + _ROOM, 2 * past)
    needed = max(past + length + _ROOM, past + past // _STEPS)
    grain = max(_ROOM, (1 << (needed - 1).bit_length()) // (2 * _STEPS))
    return -(-needed // grain) * grain


def _as_rows(keys: torch.Tensor, values: torch.Tensor) -> list[Any]:
    """As programs take them, (batch, positions, heads, size): keys and values, or of latents both next to each other and
    the latents alone."""
    pair = (keys, values) if keys.shape[-1] == values.shape[-1] else (joined(keys, values), keys)
    return [half.transpose(1, 2) for half in pair if half is not None]


def _halves_of(like: torch.Tensor, sizes: Sizes, capacity: int) -> list[Any]:
    """Keys and values of each layer, (batch, heads, capacity, size). On a CUDA device in one allocation where all are alike:
    memory that is freed and allocated again then has the same addresses, and a graph that was captured over it serves. Zeros,
    because attention with a mask reads what is not filled yet.
    """
    if like.is_cuda and len({tuple(size) for _, *size in sizes}) == 1:
        _, heads, key, value = sizes[0]
        if key == value:
            whole = like.new_zeros(len(sizes), 2, like.shape[0], heads, capacity, key)
            return [(pair[0], pair[1]) for pair in whole]
    return [halves((like.shape[0], heads, capacity), key, value, like) for _, heads, key, value in sizes]


class RowsMemory:
    """Keys and values of all layers: a pair (batch, heads, capacity, size) for each."""

    def __init__(self, like: torch.Tensor, sizes: Sizes, capacity: int) -> None:
        self.capacity = capacity
        self.batch = like.shape[0]
        self.layers = _halves_of(like, sizes, capacity)
        self.rows = tuple(half for memory in self.layers for half in _as_rows(*memory))

    def holds(self, layers: list[Any], past: int) -> bool:
        """Whether what these layers keep is here, and more may be written after `past`."""
        if len(layers) != len(self.layers):
            return False
        return all(
            type(layer) is RowsLayer and layer.in_place(own, past)
            for layer, own in zip(layers, self.layers, strict=True)
        )

    def __reduce__(self) -> Any:
        return type(None), ()  # copies of a cache make their own


class RowsLayer(DynamicLayer):
    """One layer. `_seen`: keys and values that are not in the shared memory, or None."""

    def __init__(self) -> None:
        self._memory: Any = None  # its keys and values, (batch, heads, capacity, size)
        self._length = 0
        self._shown = 0  # the number of positions that a caller may hold
        self._seen: Any = [None, None]
        super().__init__()

    @staticmethod
    def of(layer: DynamicLayer) -> "RowsLayer":
        """The same content."""
        rows = RowsLayer()
        if layer.is_initialized:
            keys: Any = layer.keys
            rows.dtype, rows.device, rows.is_initialized = keys.dtype, layer.device, True
            rows.keys, rows.values = keys, layer.values
        return rows

    def __reduce__(self) -> Any:
        state = {"keys": self.keys, "values": self.values, "is_initialized": self.is_initialized}
        if self.is_initialized:
            state |= {"dtype": self.dtype, "device": self.device}
        return DynamicLayer, (), state

    def _half(self, index: int) -> Any:
        if self._seen is not None:
            return self._seen[index]
        self._shown = max(self._shown, self._length)
        return self._memory[index][:, :, : self._length]

    def _leave(self, index: int, value: Any) -> None:
        if self._seen is None:
            self._seen = [self._half(0), self._half(1)]
        self._seen[index] = value

    @property
    def keys(self) -> Any:
        return self._half(0)

    @keys.setter
    def keys(self, value: Any) -> None:
        self._leave(0, value)

    @property
    def values(self) -> Any:
        return self._half(1)

    @values.setter
    def values(self, value: Any) -> None:
        self._leave(1, value)

    def get_seq_length(self) -> int:
        return self._length if self._seen is None else super().get_seq_length()

    def crop(self, tokens_to_remove: int) -> None:
        if self._seen is None and -self._length <= tokens_to_remove < 0:
            self._length += int(tokens_to_remove)
        else:
            super().crop(tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Within the memory, as long as nobody holds what is there and torch lets it be written."""
        moves = self._seen is not None or self._shown or len(beam_idx) != len(self._memory[0])
        if moves or (self._memory[0].is_inference() and not torch.is_inference_mode_enabled()):
            super().reorder_cache(beam_idx)  # type: ignore[arg-type]
            return
        for half in self._memory:
            rows = half[:, :, : self._length]
            rows.copy_(rows.index_select(0, beam_idx.to(rows.device)))

    def in_place(self, memory: Any, past: int) -> bool:
        return self._seen is None and self._memory is memory and self._length == past >= self._shown

    def move_into(self, memory: Any, past: int) -> None:
        """Takes over `memory` with a copy of the positions so far."""
        if self.get_seq_length() != past:
            raise ValueError(f"wanted {past} positions in each layer of the cache, got {self.get_seq_length()}")
        if past:
            memory[0][:, :, :past].copy_(self.keys)
            memory[1][:, :, :past].copy_(self.values)
        self._memory, self._length, self._shown, self._seen = memory, past, 0, None
        self.dtype, self.device, self.is_initialized = memory[0].dtype, memory[0].device, True


def is_known(cache: Any) -> bool:
    return type(cache) in (DynamicCache, StaticCache)


def why_not_rows(cache: Any, past: int, length: int) -> str | None:
    """None, or why `length` positions after `past` cannot be written into a cache as it is."""
    if not is_known(cache):
        return OTHER
    layer: Any
    for layer in cache.layers:
        if type(layer) is DynamicSlidingWindowLayer and type(cache) is DynamicCache:
            keys: Any = layer.keys
            if layer.is_initialized and keys.shape[-2] != layer.get_seq_length():
                return "the cache has dropped the positions before its window"
        elif type(layer) is StaticSlidingWindowLayer and type(cache) is StaticCache:
            if past + length > layer.max_cache_len:
                return "the cache holds its window alone, and more positions were seen"
        elif type(layer) is LinearAttentionLayer:  # states_cache looks at those
            continue
        elif type(layer) not in ((StaticLayer,) if type(cache) is StaticCache else (DynamicLayer, RowsLayer)):
            return OTHER
    return "the cache is offloaded" if getattr(cache, "offloading", False) else None


OTHER = "the cache is neither a plain DynamicCache nor a plain StaticCache"


def adopt(cache: DynamicCache, like: torch.Tensor, sizes: Sizes, past: int, length: int) -> Any:
    """Keys and values of each layer as a program takes them, with room for `length` positions after `past`.

    Every layer becomes a RowsLayer.
    """
    memory: Any = cache.__dict__.get("_layerzero_rows")
    layers: list[Any] = cache.layers
    held = [layers[index] for index, *_ in sizes if index < len(layers)]
    if memory is not None and memory.capacity >= past + length and memory.holds(held, past):
        return memory.rows
    for index, layer in enumerate(layers):
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            layers[index] = RowsLayer.of(layer)
    while len(layers) < len(sizes):
        layers.append(RowsLayer())
    memory = RowsMemory(like, sizes, _capacity(past, length, like.is_cuda))
    for (index, *_), own in zip(sizes, memory.layers, strict=True):
        layers[index].move_into(own, past)
    cache.__dict__["_layerzero_rows"] = memory
    return memory.rows


def static_rows(cache: Any, like: torch.Tensor, sizes: Sizes) -> Any:
    """The same of a StaticCache, whose memory is its own; latents get other memory, where they are next to each other."""
    rows = []
    for index, heads, key, value in sizes:
        layer = cache.layers[index]
        if not layer.is_initialized:
            layer.lazy_initialization(*(like.new_empty(like.shape[0], heads, 1, size) for size in (key, value)))
        if key != value and joined(layer.keys, layer.values) is None:
            pair = halves(layer.keys.shape[:3], key, value, like)
            for memory, own in zip(pair, (layer.keys, layer.values), strict=True):
                memory.copy_(own)
            layer.keys, layer.values = pair
        rows += _as_rows(layer.keys, layer.values)
    return tuple(rows)


def no_rows(like: torch.Tensor, sizes: Sizes, length: int) -> Any:
    """Without a cache: memory for one call, which layers of one size share: none looks at it after its own turn."""
    once: dict[tuple[int, ...], Any] = {}
    for _, heads, key, value in sizes:
        if (heads, key, value) not in once:
            pair = halves((like.shape[0], length, heads), key, value, like)
            once[heads, key, value] = _as_rows(*(half.transpose(1, 2) for half in pair))
    return tuple(half for _, *size in sizes for half in once[tuple(size)])


def appended(cache: Any, length: int) -> None:
    """Says that every layer got `length` positions more."""
    for layer in cache.layers:
        if type(layer) is RowsLayer:
            layer._length += length
        elif type(layer) is not LinearAttentionLayer:
            layer.cumulative_length.add_(length)
            if type(layer) is StaticSlidingWindowLayer:
                layer.cumulative_length_int += length
