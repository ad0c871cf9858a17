"""A Transformers cache whose keys and values are in the blocks of a KVCacheManager.

    manager = lz.KVCacheManager(num_blocks=2048, block_size=16)  # one for all requests of a model
    cache = lz.PagedCache(manager)
    cache.begin(input_ids)                                       # optional: takes what an equal prompt has left
    model.generate(input_ids, cache=cache)                       # past_key_values=cache before Transformers 5.24
    cache.end()                                                  # blocks go back, those of the prompt stay known

Beams, copies and repeated rows are forks: they share blocks, and a block that is written is copied first. A model that
runs as one program writes and reads the blocks where they are; any other code gets keys and values gathered, as it
expects them of a cache. Storage that the caller allocates with scales may be of 8 bits. Padding at the left of a prompt
takes no room where a program has seen the mask.
"""

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, LayerZeroError
from layerzero.host import forks
from layerzero.integrations.transformers.caches.latents import halves, joined
from layerzero.integrations.transformers.caches.padding import left_padding, padding_of, shows
from layerzero.kv_cache import KVCacheHandle, KVCacheManager

_append_paged = _layerzero.ops["kv_append_paged"]
_gather = _layerzero.ops["kv_gather"]
_serials = itertools.count(1)  # sequences have the ids below 0: those of the manager's other users stay free
_storage_lock = forks.lock()
_FEWEST_PAGES = 64  # of a list of pages: longer ones are powers of two, so that few calls differ in their sizes

Sizes = tuple[int, int, int, int]  # of a layer: its index, heads, size of a key, size of a value


def refusal(what: str, wanted: Any, got: Any, fix: str) -> InvalidRequestError:
    return InvalidRequestError(f"PagedCache: {what}: wanted {wanted}, got {got}; {fix}")


class UnservedLayerError(InvalidRequestError, AttributeError):
    """A model asks its cache for more than keys and values. `hasattr` and `getattr` see a missing attribute."""


def _keeps_more(name: str) -> UnservedLayerError:
    refused = refusal(
        "model", "layers that keep keys and values alone", f"one that asks for {name}", "use its own cache"
    )
    return UnservedLayerError(str(refused))


class PagedLayer(CacheLayerMixin):
    """One layer of a PagedCache, as Transformers sees it. `keys` and `values` are gathered copies."""

    is_sliding = False  # a layer with a window keeps all positions: attention gets the window
    is_croppable = True
    is_initialized = True
    supports_early_init = False

    def __init__(self, cache: "PagedCache", index: int, length: int) -> None:
        self._cache = weakref.proxy(cache)
        self.index = index
        self.length = length  # positions that are written, padding among them

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _keeps_more(name)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self._cache.storage([_sizes(self.index, key_states, value_states)], key_states)

    @property
    def keys(self) -> Any:
        return self._cache.gathered(self.index, 0)

    @keys.setter
    def keys(self, value: Any) -> None:
        self._of_the_whole()

    @property
    def values(self) -> Any:
        return self._cache.gathered(self.index, 1)

    @values.setter
    def values(self, value: Any) -> None:
        self._of_the_whole()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._cache.update(key_states, value_states, self.index)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + int(query_length), 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def _of_the_whole(self, *args: Any) -> Any:
        raise refusal("layer", "a change of the whole cache", "one of a layer", "layers share sequences and blocks")

    offload = prefetch = reset = crop = batch_repeat_interleave = batch_select_indices = _of_the_whole
    reorder_cache: Any = _of_the_whole


class PagedCache(Cache):
    """A Transformers cache for one batch of sequences, whose keys and values are in the blocks of a KVCacheManager.

    One thread at a time may use a cache; several threads may use caches of one manager. manager: paged or contiguous; if it
    has no storage, storage is allocated with the first rows. A call that needs more blocks than are free raises
    KVCacheFullError and changes nothing.
    """

    layers: list[Any]  # PagedLayer: a layer is created when it is written first

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(layers=[])
        self.manager = manager
        self._sequences: list[KVCacheHandle] = []  # of the rows of the batch
        self._absent: list[int] = []  # leading positions of each row that are padding: they have no slots
        self._prompts: list[list[int]] = []  # ids of each row after its padding, if `begin` got them
        self._padding: list[int] = []  # as `begin` got it
        self._begun = 0  # length of a layer that nothing was written into
        self._slots: dict[tuple[int, int], torch.Tensor] = {}  # of positions, as long as no block changes
        self._storage: tuple[Any, list[torch.Tensor]] | None = None  # what for, and a program's inputs
        self._dtype: Any = None  # of keys and values outside of the blocks
        self._finalizer = weakref.finalize(self, _free_all, manager, self._sequences)
        self._finalizer.atexit = False

    # ---- a batch

    def begin(self, input_ids: torch.Tensor, attention_mask: Any = None, salt: int = 0) -> int:
        """Announces the (batch, length) ids of the prompts, and returns how many leading positions need not be computed.

        Their keys and values are in full blocks that other caches of this manager left at their `end`; all rows must have
        them. `generate` continues after them. attention_mask: the model's mask, where zeros at the left of a row are padding.
        salt: separates caches that depend on more than ids, see KVCacheManager.allocate.
        """
        if self._sequences:
            raise refusal("begin", "an empty cache", f"one of {len(self._sequences)} sequences", "call end() first")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        pads = left_padding(mask) if mask.shape == input_ids.shape else None
        if pads is None:
            raise refusal("attention_mask", "zeros followed by ones, as many as ids", "another mask", "pad at the left")
        prompts = [row[pad:] for row, pad in zip(input_ids.tolist(), pads, strict=True)]
        try:
            for ids in prompts:
                self._sequences.append(self.manager.allocate(-next(_serials), len(ids), ids, salt=salt))
        except LayerZeroError:
            self.reset()
            raise
        found = [pad + own.num_cached_tokens for pad, own in zip(pads, self._sequences, strict=True)]
        common = min(found) if min(found) > max(pads) else 0
        for pad, own in zip(pads, self._sequences, strict=True):
            self.manager.truncate(own, max(common - pad, 0))
        self._prompts, self._padding = prompts, pads
        self._absent = pads if common else [0] * len(pads)
        self._set_length(common)
        return common

    def end(self) -> None:
        """Frees the blocks. Full blocks of prompts that `begin` got can be shared until their room is needed."""
        if self._sequences and self._prompts:
            self._truncate(min((layer.length for layer in self.layers), default=self._begun))
            for own in self._sequences:
                self.manager.commit(own)
        self.reset()

    def reset(self) -> None:
        """Frees the blocks; none of them can be shared later."""
        _free_all(self.manager, self._sequences)
        self._absent, self._prompts, self._padding = [], [], []
        self._set_length(0)

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last -tokens_to_remove positions."""
        if tokens_to_remove > 0:
            raise refusal("crop", "0 or a negative number", tokens_to_remove, "-n drops the last n positions")
        length = max(self.get_seq_length() + int(tokens_to_remove), 0)
        self._truncate(length)
        self._prompts = [ids[: max(length - pad, 0)] for ids, pad in zip(self._prompts, self._padding, strict=True)]
        self._absent = [min(pad, length) for pad in self._absent]
        self._set_length(length)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Reorders the rows for beam search; a row that is named twice is forked and shares its blocks."""
        self._take(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row `repeats` times, as forks that share blocks."""
        self._take([row for row in range(len(self._sequences)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the rows with these indices, or those marked True; the others free their blocks."""
        self._take(torch.arange(len(self._sequences))[indices.cpu()].tolist())

    def __deepcopy__(self, memo: Any) -> "PagedCache":
        """Another cache of the same manager; its sequences share their blocks with these."""
        other = type(self)(self.manager)
        for own in self._sequences:
            other._sequences.append(self._fork(own))
        other._absent, other._prompts, other._padding = list(self._absent), list(self._prompts), list(self._padding)
        other.layers = [PagedLayer(other, layer.index, layer.length) for layer in self.layers]
        other._begun, other._dtype = self._begun, self._dtype
        return other

    def __copy__(self) -> "PagedCache":
        return self.__deepcopy__({})

    def __reduce__(self) -> Any:
        raise refusal("pickle", "a cache that stays in its process", "a call to write it down", "use a DynamicCache")

    # ---- called by Transformers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of positions so far, padding included."""
        return self.layers[layer_idx].length if layer_idx < len(self.layers) else self._begun

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Returns (number of keys that `query_length` further rows see, 0)."""
        return self.get_seq_length(layer_idx) + int(query_length), 0

    @property
    def is_linear(self) -> list[bool]:
        """False for each layer: none keeps a state."""
        return [False] * max(len(self.layers), 1)

    @property
    def batch_size(self) -> int:
        """The number of rows; -1 before there are any."""
        return len(self._sequences) or -1

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes (batch, heads, new, size) and returns all positions so far, with zeros for padding that has no slot."""
        batch, _, length, _ = key_states.shape
        if layer_idx > len(self.layers):  # what a layer keeps elsewhere would be of other positions
            got = f"one whose layer {len(self.layers)} wrote none before layer {layer_idx}"
            raise refusal("model", "layers that keep keys and values alone, each its own", got, "use its own cache")
        ((keys, values),) = self.storage([_sizes(layer_idx, key_states, value_states)], key_states)
        layer = self._layer(layer_idx)
        past = layer.length
        self._extend(batch, past + length, self._absent or [0] * batch)
        rows = (states.transpose(1, 2).flatten(0, 1) for states in (key_states, value_states))
        scales = self.manager.scales(layer_idx)
        _append_paged(keys, values, *rows, self._slots_of(past, past + length), layout="NHD", **scales)
        layer.length = past + length
        return layer.keys, layer.values

    def gathered(self, index: int, half: int) -> Any:
        """Returns a layer's keys (half 0) or values (half 1) as one tensor (batch, heads, positions, size); None before there are any."""
        length = self.layers[index].length
        if not length:
            return None
        memory, unit = self.manager.storage(index)[half], list(self.manager.scales(index).values())[half]
        stored = {} if unit is None else {"scale": unit, "dtype": str(self._dtype).removeprefix("torch.")}
        rows = _gather(memory, self._slots_of(0, length), layout="NHD", **stored)
        return rows.view(len(self._sequences), length, *memory.shape[2:]).transpose(1, 2).contiguous()

    def _no_states(self, *args: Any, **kwargs: Any) -> Any:
        """Raises InvalidRequestError: this cache holds only keys and values."""
        raise refusal("model", "layers with keys and values", "one that keeps states", "use its own cache")

    has_previous_state = get_conv_state = update_conv_state = _no_states
    get_recurrent_state = update_recurrent_state = update_indexer = _no_states

    # ---- called by programs

    def padding(self, masks: list[tuple[Any, int | None]], batch: int, length: int) -> list[int] | None:
        """Returns how many positions at the left of each row the masks of a call hide; None if they hide others too.

        masks: (mask, window) of each group of layers; a mask is None, (batch, positions) or (batch or 1, 1, rows,
        positions) of what a row sees. Raises InvalidRequestError for padding that this cache has left out and a mask shows.
        """
        past = self.get_seq_length()
        if any(layer.length != past for layer in self.layers) or self.batch_size not in (-1, batch):
            return None
        absent = self._absent if past else [0] * batch
        if any(absent) and any(shows(mask, absent) for mask, _ in masks):
            raise refusal(
                "attention_mask",
                f"zeros at the first {absent} positions of the rows",
                "a mask that shows some of them",
                "their keys were left out when the prompt was written: pass the same padding at each call",
            )
        found = [padding_of(mask, window, batch, past, length, absent) for mask, window in masks]
        if None in found or found.count(found[0]) != len(found):
            return None
        # A row of nothing but padding so far may have more of it.
        pairs = zip(found[0] or [], absent, strict=True)
        return found[0] if all(pad == known or known == past < pad for pad, known in pairs) else None

    @contextmanager
    def extended(self, sizes: list[Sizes], like: torch.Tensor, pads: list[int]) -> Iterator[tuple[Any, ...]]:
        """Reserves positions for `like` (batch, length, width) and yields (slots, qo_indptr, kv_indptr, kv_indices,
        kv_last_page_len, then keys and values of each layer of `sizes`, and their scales if the manager has any). The caller writes the rows within the block; on an error the positions are freed."""
        batch, length, past = like.shape[0], like.shape[1], self.get_seq_length()
        absent, of = self._absent, (sizes, like.dtype, self.manager.has_scales)
        if self._storage is None or self._storage[0] != of:
            self._storage = of, self._inputs(sizes, like)
        self._extend(batch, past + length, pads)
        try:
            yield (*self._tables(past, length), *self._storage[1])
        except BaseException:
            self._truncate(past)
            self._absent = absent or [0] * batch
            raise
        for index, *_ in sizes:
            self._layer(index)
        self._set_length(past + length)

    def _inputs(self, sizes: list[Sizes], like: torch.Tensor) -> list[torch.Tensor]:
        """Keys and values of each layer; of latents too, both next to each other."""
        found, one = [], torch.ones(1, device=like.device)
        for (index, *_), (keys, values) in zip(sizes, self.storage(sizes, like), strict=True):
            whole = joined(keys, values) if keys.shape[-1] != values.shape[-1] else None
            found += [keys, values] if whole is None else [keys, values, whole]
            if self.manager.has_scales:
                found += [one if unit is None else unit for unit in self.manager.scales(index).values()]
        return found

    def storage(self, sizes: list[Sizes], like: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns (keys, values) of layers: (blocks, block_size, heads, size) each, on the device of `like` and, without scales, of
        its dtype."""
        manager, found = self.manager, []
        self._dtype = like.dtype
        for index, heads, key, value in sizes:
            with _storage_lock:
                while manager.num_layers <= index:
                    manager.attach(*halves((manager.num_blocks, manager.block_size, heads), key, value, like))
            layer, units = manager.storage(index), manager.scales(index).values()
            for memory, width, unit in zip(layer, (key, value), units, strict=True):
                given = (*memory.shape[2:], memory.dtype, memory.device)
                dtype = like.dtype if unit is None else memory.dtype
                if given != (heads, width, dtype, like.device):
                    wanted = f"{heads} heads of {width} elements, {dtype} on {like.device}"
                    got = f"{given[0]} of {given[1]}, {given[2]} on {given[3]}"
                    fix = "a manager serves models of one shape, and storage of another dtype has both scales"
                    raise refusal(f"storage of layer {index}", wanted, got, fix)
            found.append(layer)
        return found

    # ---- parts

    def _layer(self, index: int) -> PagedLayer:
        while len(self.layers) <= index:
            self.layers.append(PagedLayer(self, len(self.layers), self._begun))
        return self.layers[index]

    def _set_length(self, length: int) -> None:
        self._begun, self._slots = length, {}
        for layer in self.layers:
            layer.length = length

    def _extend(self, batch: int, total: int, absent: list[int]) -> None:
        """Reserves the positions up to `total` for all sequences, or for none."""
        if self._sequences and batch != len(self._sequences):
            raise refusal("batch", f"{len(self._sequences)} rows as before", batch, "call end() before another batch")
        before = [self.manager.length(own) for own in self._sequences]
        ids = self._prompts if self._prompts and self._padding == absent else [[]] * batch
        try:
            while len(self._sequences) < batch:
                self._sequences.append(self.manager.allocate(-next(_serials), 0))
            for own, known, pad, length in zip(self._sequences, ids, absent, before or [0] * batch, strict=True):
                new = max(total - pad, 0) - length
                told = known[length : length + new]
                if told:
                    self.manager.append(own, len(told), told)
                if new > len(told):
                    self.manager.append(own, new - len(told))
        except LayerZeroError:
            if not before:
                _free_all(self.manager, self._sequences)
            for own, length in zip(self._sequences, before, strict=True):
                self.manager.truncate(own, length)
            raise
        if before != [self.manager.length(own) for own in self._sequences]:
            self._slots = {}  # a block that was shared is another one now
        self._absent = list(absent)

    def _truncate(self, length: int) -> None:
        self._slots = {}
        for own, pad in self._rows():
            self.manager.truncate(own, min(max(length - pad, 0), self.manager.length(own)))

    def _fork(self, own: KVCacheHandle) -> KVCacheHandle:
        return self.manager.fork(own, -next(_serials))[0]

    def _take(self, rows: list[int]) -> None:
        """Replaces the batch by these rows of it."""
        before, taken, forks = list(self._sequences), [], []
        try:
            for place, row in enumerate(rows):
                again = row in rows[:place]
                taken.append(self._fork(before[row]) if again else before[row])
                forks += taken[-1:] if again else []
        except LayerZeroError:
            _free_all(self.manager, forks)
            raise
        _free_all(self.manager, [own for row, own in enumerate(before) if row not in rows])
        self._sequences[:] = taken
        self._absent = [self._absent[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows] if self._prompts else []
        self._padding = [self._padding[row] for row in rows] if self._padding else []
        self._slots = {}

    def _slots_of(self, begin: int, end: int) -> torch.Tensor:
        """int64 (batch x positions): the slot of each, -1 for padding that has none."""
        if (begin, end) not in self._slots:
            self._slots[begin, end] = torch.cat([self._row_slots(*row, begin, end) for row in self._rows()])
        return self._slots[begin, end]

    def _rows(self) -> Iterator[tuple[KVCacheHandle, int]]:
        return zip(self._sequences, self._absent, strict=True)

    def _row_slots(self, own: KVCacheHandle, pad: int, begin: int, end: int) -> torch.Tensor:
        slots = self.manager.slots(own, max(begin - pad, 0), max(end - pad, 0))
        return torch.nn.functional.pad(slots, (end - begin - len(slots), 0), value=-1)

    def _tables(self, past: int, length: int) -> tuple[torch.Tensor, ...]:
        """The tables for operations on packed sequences, in which padding is a sequence without keys."""
        given = self.manager.get_attention_input(self._sequences)
        offsets, pages, last = given.kv_indptr, given.kv_indices, given.kv_last_page_len
        rows = torch.arange(len(self._sequences) + 1, dtype=torch.int32) * length
        leading = [min(max(pad - past, 0), length) for pad in self._absent]
        if any(leading):
            begins = rows[:-1] + torch.tensor(leading, dtype=torch.int32)
            rows = torch.cat([torch.stack([rows[:-1], begins], 1).flatten(), rows[-1:]])
            offsets = offsets.repeat_interleave(2)[:-1]
            last = torch.stack([torch.zeros_like(last), last], 1).flatten()
        room = max(_FEWEST_PAGES, 1 << (len(pages) - 1).bit_length()) - len(pages)
        pages = torch.nn.functional.pad(pages, (0, room))
        return self._slots_of(past, past + length), rows, offsets, pages, last


def _free_all(manager: KVCacheManager, sequences: list[KVCacheHandle]) -> None:
    while sequences:
        manager.free(sequences.pop())


def _sizes(index: int, keys: torch.Tensor, values: torch.Tensor) -> Sizes:
    return index, keys.shape[1], keys.shape[3], values.shape[3]
