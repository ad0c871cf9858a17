"""KVCacheManager: which sequence owns which blocks of a KV cache. The engine owns metadata, the caller owns storage.

manager = KVCacheManager(num_blocks=1024, block_size=16)
manager.allocate_storage(num_layers=24, num_kv_heads=8, head_dim=64, dtype=torch.bfloat16)
handle = manager.allocate(seq_id=7, num_tokens=len(prompt), tokens=prompt)
manager.write(handle, key, value, layer=0)              # rows of the tokens that are not cached yet
manager.commit(handle)                                  # written: others may share them
x = manager.get_attention_input([handle], layer=0)
layerzero.paged_attention(query, x.key_cache, x.value_cache, x.block_tables, x.context_lens)
"""

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import contracts
from layerzero.errors import CudaGraphUnsafeError, InvalidRequestError, WrongTypeError
from layerzero.host.optional import need
from layerzero.host.policy import policy_in_force
from layerzero.host.typed import typed_if_it_fails
from layerzero.torch.devices import device_of

_STRATEGIES = ("contiguous", "paged", "virtual", "unified")  # in the order of lz_kv_strategy
_LAYOUTS = ("NHD", "HND")
_MOST_BATCHES = 1024  # whose tables keep their addresses


def _strategy(asked: str | None) -> str:
    """Returns the strategy of a new manager: the one that was asked for, unless the policy wants another."""
    wanted = policy_in_force()["keys"]["kv_cache.strategy"]["value"]
    if wanted == "any":
        return asked or "paged"
    if asked not in (None, wanted):
        raise InvalidRequestError(
            "KVCacheManager: kv_cache_strategy",
            f"{wanted}, which the policy's kv_cache.strategy names",
            f"{asked!r}: KV_STRATEGY_UNSUPPORTED",
            "leave the strategy out, or change the policy",
        )
    return str(wanted)


@dataclass(frozen=True)
class KVCacheHandle:
    """One allocation of a sequence. It is valid until it is freed and is never reused."""

    seq_id: int
    num_cached_tokens: int  # leading tokens whose rows are already stored
    serial: int = field(repr=False)


@dataclass(frozen=True)
class AttentionCacheInput:
    """The arguments of paged attention, in both conventions. Caches are (blocks, block_size, heads, head_dim) views of
    the storage, or None where none is attached; scales are those that it was attached with. Where
    `is_cuda_graph_compatible()`, a later call for the same sequences writes into the same tables."""

    key_cache: Any
    value_cache: Any
    block_tables: Any  # paged_attention: int32 (sequences, most blocks of one), -1 after a sequence's last block
    context_lens: Any
    kv_indptr: Any  # paged_decode_attention
    kv_indices: Any
    kv_last_page_len: Any
    k_scale: Any = None
    v_scale: Any = None


class KVCacheManager:
    """The bookkeeping of a KV cache: block tables, prefix sharing, copy on write and eviction. Any thread may call.

    `strategy`: "paged", or "contiguous": one block of `block_size` tokens for each sequence, whose place never changes,
    as captured graphs need. None: the policy's `kv_cache.strategy`, which another value must not contradict, else "paged".
    Every call succeeds as a whole or changes nothing; a full cache raises KVCacheFullError.
    """

    @typed_if_it_fails
    def __init__(
        self, strategy: str | None = None, *, num_blocks: int, block_size: int, prefix_sharing: bool | None = None
    ) -> None:
        strategy = _strategy(strategy)
        if strategy not in _STRATEGIES:
            raise InvalidRequestError(
                "KVCacheManager: kv_cache_strategy", "contiguous or paged", repr(strategy), "choose one of them"
            )
        sharing = strategy == "paged" if prefix_sharing is None else prefix_sharing
        self.strategy, self.num_blocks, self.block_size = strategy, num_blocks, block_size
        self._cache = _layerzero.kv_create(_STRATEGIES.index(strategy), num_blocks, block_size, sharing)
        self._layers: list[tuple[Any, Any]] = []  # key and value caches as (blocks, block_size, heads, head_dim)
        self._stored: list[tuple[Any, Any]] = []  # as they were attached
        self._scales: list[dict[str, Any]] = []
        self.has_scales = False  # True if at least one layer has scales
        self._fixed: OrderedDict[tuple[int, ...], _FixedTables] = OrderedDict()  # by the batch's serials
        self._last: _LastTables | None = None  # of the last call, if they have no fixed addresses
        self._lock = threading.Lock()  # guards _fixed and _last

    # ---- storage

    @typed_if_it_fails
    def attach(
        self, key_cache: Any, value_cache: Any, layout: str = "NHD", *, k_scale: Any = None, v_scale: Any = None
    ) -> int:
        """Makes two tensors the storage of one more layer and returns the layer's number.

        NHD is (num_blocks, block_size, heads, head_dim), HND (num_blocks, heads, block_size, head_dim). Scales: a value
        is its stored number times the scale; float32, one element or one for each head; int8 needs both.
        """
        if layout not in _LAYOUTS:
            raise InvalidRequestError("KVCacheManager: layout", "NHD or HND", repr(layout))
        for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
            _check_storage(name, cache)
        views = []
        for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
            view = cache.transpose(1, 2) if layout == "HND" and cache.ndim == 4 else cache
            if view.ndim != 4 or tuple(view.shape[:2]) != (self.num_blocks, self.block_size):
                raise InvalidRequestError(
                    f"KVCacheManager: {name}: KV_CACHE_LAYOUT_MISMATCH",
                    f"{self.num_blocks} blocks of {self.block_size} tokens in {layout}",
                    str(tuple(cache.shape)),
                    "allocate it in that shape",
                )
            views.append(view)
        if views[0].device != views[1].device or views[0].shape[2] != views[1].shape[2]:
            raise InvalidRequestError(
                "KVCacheManager: value_cache: KV_CACHE_LAYOUT_MISMATCH",
                "the heads and device of key_cache",
                f"{views[1].shape[2]} heads on {views[1].device}",
                "allocate both alike",
            )
        if views[0].dtype != views[1].dtype:
            raise InvalidRequestError(
                "KVCacheManager: value_cache: KV_CACHE_DTYPE_MISMATCH",
                f"{views[0].dtype} like key_cache",
                str(views[1].dtype),
                "allocate both alike",
            )
        scales = {"k_scale": k_scale, "v_scale": v_scale}
        for name, scale in scales.items():
            _check_scale(name, scale, views[0])
        self._layers.append((views[0], views[1]))
        self._stored.append((key_cache, value_cache))
        self._scales.append(scales)
        self.has_scales |= k_scale is not None or v_scale is not None
        return len(self._layers) - 1

    @typed_if_it_fails
    def allocate_storage(
        self,
        *,
        num_kv_heads: int,
        head_dim: int,
        num_layers: int = 1,
        value_dim: int | None = None,
        dtype: Any = None,
        device: Any = None,
        layout: str = "NHD",
        k_scale: Any = None,
        v_scale: Any = None,
    ) -> None:
        """Attaches new torch tensors of zeros, two for each layer, all with the same scales. Attention that reads whole blocks
        and masks what no token has written adds its weight of 0 times these rows, which must not be NaN."""
        torch = _torch()
        sizes = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "value_dim": value_dim, "num_layers": num_layers}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise InvalidRequestError(f"KVCacheManager: {name}", "at least 1", repr(size))
        if dtype is not None:
            _check_dtype("dtype", dtype)
        if device is not None:
            device = device_of("KVCacheManager: device", device)
        for _ in range(num_layers):
            caches: list[Any] = []
            for width in (head_dim, head_dim if value_dim is None else value_dim):
                inner = (self.block_size, num_kv_heads) if layout == "NHD" else (num_kv_heads, self.block_size)
                caches.append(torch.zeros(self.num_blocks, *inner, width, dtype=dtype, device=device))
            self.attach(caches[0], caches[1], layout=layout, k_scale=k_scale, v_scale=v_scale)

    @property
    def num_layers(self) -> int:
        """The number of layers with storage."""
        return len(self._layers)

    @typed_if_it_fails
    def storage(self, layer: int) -> tuple[Any, Any]:
        """Returns (key_cache, value_cache) of a layer, each (blocks, block_size, heads, head_dim) in any layout."""
        if 0 <= layer < len(self._layers):
            return self._layers[layer]
        raise InvalidRequestError(
            "KVCacheManager: layer", f"a number below {len(self._layers)}", str(layer), "attach its storage first"
        )

    @typed_if_it_fails
    def scales(self, layer: int) -> dict[str, Any]:
        """Returns k_scale and v_scale of a layer, as they were attached."""
        self.storage(layer)
        return dict(self._scales[layer])

    # ---- sequences

    @typed_if_it_fails
    def allocate(
        self, seq_id: int, num_tokens: int, tokens: Sequence[int] | None = None, *, salt: int = 0
    ) -> KVCacheHandle:
        """Creates a sequence of `num_tokens`. With `tokens` its leading full blocks are shared with sequences that
        committed equal ones; `salt` separates rows that depend on more than tokens (an adapter, an image). The last
        token is never shared: its logits are wanted."""
        serial, cached = _layerzero.kv_allocate(self._cache, seq_id, num_tokens, _numbers(tokens), salt)
        return KVCacheHandle(seq_id, cached, serial)

    @typed_if_it_fails
    def append(
        self, handle: KVCacheHandle, num_tokens: int = 1, tokens: Sequence[int] | None = None
    ) -> list[tuple[int, int]]:
        """Reserves slots for more tokens. A shared block is copied first: here, if storage is attached; else the result
        is the pairs (from, to) of blocks that the caller must copy before it writes anything."""
        return self._copy(*_layerzero.kv_append(self._cache, handle.serial, num_tokens, _numbers(tokens)))

    @typed_if_it_fails
    def fork(self, handle: KVCacheHandle, seq_id: int) -> tuple[KVCacheHandle, list[tuple[int, int]]]:
        """Returns a second sequence of the same tokens, and copies as in `append` (for contiguous storage only)."""
        serial, source, target = _layerzero.kv_fork(self._cache, handle.serial, seq_id)
        return KVCacheHandle(seq_id, self.length(handle), serial), self._copy(source, target)

    @typed_if_it_fails
    def commit(self, handle: KVCacheHandle) -> None:
        """Declares the rows of all tokens so far as written: full blocks may be shared from now on."""
        _layerzero.kv_commit(self._cache, handle.serial)

    @typed_if_it_fails
    def truncate(self, handle: KVCacheHandle, num_tokens: int) -> None:
        """Keeps the first tokens (rejected speculative ones are dropped)."""
        _layerzero.kv_truncate(self._cache, handle.serial, num_tokens)

    @typed_if_it_fails
    def free(self, handle: KVCacheHandle) -> None:
        """Ends the sequence. Its published blocks stay until they are needed, the least recently used first."""
        _layerzero.kv_release(self._cache, handle.serial)
        with self._lock:
            for batch in [batch for batch in self._fixed if handle.serial in batch]:
                del self._fixed[batch]

    def forget_prefixes(self) -> None:
        """Stops sharing of all published blocks, for weights that have changed."""
        _layerzero.kv_forget_prefixes(self._cache)

    @typed_if_it_fails
    def length(self, handle: KVCacheHandle) -> int:
        """Returns the number of tokens of the sequence."""
        return _layerzero.kv_length(self._cache, handle.serial)

    # ---- arguments of kernels

    @typed_if_it_fails
    def slots(self, handle: KVCacheHandle, begin: int = 0, end: int | None = None) -> Any:
        """Returns an int64 tensor: block * block_size + offset of the tokens [begin, end)."""
        end = self.length(handle) if end is None else end
        return self._tensor(_layerzero.kv_slots(self._cache, handle.serial, begin, end), "int64")

    @typed_if_it_fails
    def write(
        self, handle: KVCacheHandle, key: Any, value: Any, *, layer: int = 0, begin: int | None = None, **scales: Any
    ) -> None:
        """Writes rows (tokens, heads, head_dim) of the last tokens, or of those from `begin` on, into the storage of a
        layer. `k_scale` and `v_scale` as in kv_append_paged, instead of the attached ones."""
        import layerzero

        begin = self.length(handle) - key.shape[0] if begin is None else begin
        slots = self.slots(handle, begin, begin + key.shape[0])
        scales = self.scales(layer) | scales
        layerzero.kv_append_paged(*self.storage(layer), key, value, slots, layout="NHD", **scales)

    @typed_if_it_fails
    def get_attention_input(
        self, handles: KVCacheHandle | Sequence[KVCacheHandle], layer: int = 0
    ) -> AttentionCacheInput:
        """Returns the tables of one sequence or of a batch, with the caches of a layer.

        Layers of one step get the same tables, and FlashInfer's plans with them, as long as nobody writes into them.
        If `is_cuda_graph_compatible()`, the tables of the same sequences in the same order keep their addresses: each
        call writes the changes into them, on the device's current stream, so a captured graph that reads them can be
        replayed after it. They are kept for the last 1024 batches until one of their sequences is freed. Raises
        CudaGraphUnsafeError inside a capture if something has changed: call it before."""
        batch = [handles] if isinstance(handles, KVCacheHandle) else handles
        serials = [handle.serial for handle in batch]
        width, tables, lens = _layerzero.kv_block_tables(self._cache, serials)
        parts = (tables, lens, *_layerzero.kv_page_lists(self._cache, serials))
        if self.is_cuda_graph_compatible():
            tensors = self._fixed_tables(tuple(serials), parts)
        else:
            tensors = self._new_tables(parts)
        _pass_to_plans(tensors[2:], parts[2:])
        key_cache, value_cache = self.storage(layer) if self._layers else (None, None)
        return AttentionCacheInput(
            key_cache,
            value_cache,
            tensors[0].view(len(serials), width),
            *tensors[1:],
            **(self.scales(layer) if self._layers else {}),
        )

    def is_cuda_graph_compatible(self) -> bool:
        """True if the tables of `get_attention_input` keep shape and address while their sequences grow."""
        return _layerzero.kv_is_graph_compatible(self._cache)

    def stats(self) -> dict[str, int]:
        """Returns counts of free, idle (kept for their prefix) and all blocks and of sequences, and total counters."""
        return _layerzero.kv_stats(self._cache)

    # ---- parts

    def _fixed_tables(self, serials: tuple[int, ...], parts: tuple[bytearray, ...]) -> list[Any]:
        device = self._layers[0][0].device if self._layers else _torch().device("cpu")
        with self._lock:
            known = self._fixed.get(serials)
            if known is None or known.device != device:
                known = self._fixed[serials] = _FixedTables(parts, device)
            self._fixed.move_to_end(serials)
            if len(self._fixed) > _MOST_BATCHES:
                self._fixed.popitem(last=False)
            known.update(parts)
            return known.tensors

    def _new_tables(self, parts: tuple[bytearray, ...]) -> list[Any]:
        """Returns the tables of the last call if they would be the same: those of a step's layers share one plan."""
        device = self._layers[0][0].device if self._layers else None
        stream = _torch().cuda.current_stream(device) if device is not None and device.type == "cuda" else None
        with self._lock:
            last = self._last
        place = (device, stream)
        if last is not None and last.parts == parts and last.place == place and last.unwritten():
            return last.tensors
        last = _LastTables(parts, place, [self._tensor(numbers, "int32") for numbers in parts])
        with self._lock:
            self._last = last
        return last.tensors

    def _copy(self, source: int, target: int) -> list[tuple[int, int]]:
        if source < 0:
            return []
        if not self._layers:
            return [(source, target)]
        import layerzero

        moves = _torch().tensor([[source, target]], device=self._layers[0][0].device)
        for key_cache, value_cache in self._stored:
            layerzero.kv_compact(key_cache, value_cache, moves)
        return []

    def _tensor(self, numbers: bytearray, dtype: str) -> Any:
        torch = _torch()
        kind = getattr(torch, dtype)
        tensor = torch.frombuffer(numbers, dtype=kind) if numbers else torch.empty(0, dtype=kind)
        return tensor.to(self._layers[0][0].device) if self._layers else tensor


class _LastTables:
    """Tables of one call, and the device and the stream on which they were made."""

    def __init__(self, parts: tuple[bytearray, ...], place: tuple[Any, Any], tensors: list[Any]) -> None:
        self.parts, self.place, self.tensors = parts, place, tensors
        self._versions = self._counts()

    def _counts(self) -> list[int] | None:
        """Returns torch's counts of writes; None for inference tensors, which have none."""
        return None if any(t.is_inference() for t in self.tensors) else [t._version for t in self.tensors]

    def unwritten(self) -> bool:
        return self._versions is not None and self._counts() == self._versions


def _pass_to_plans(tables: Sequence[Any], parts: Sequence[bytearray]) -> None:
    """Passes the values of page lists to kernels that plan on the host, if such a library is installed."""
    from layerzero.backends.flashinfer import plans

    if plans.wanted():
        for table, part in zip(tables, parts, strict=True):
            if part:
                plans.given(table, _torch().frombuffer(part, dtype=_torch().int32))


class _FixedTables:
    """int32 tables at fixed addresses, all in one tensor, so that one copy moves them to a device."""

    def __init__(self, parts: tuple[bytearray, ...], device: Any) -> None:
        torch = _torch()
        sizes = [len(part) // 4 for part in parts]
        places = [0]
        for size in sizes:
            places.append(places[-1] + -(-size // 64) * 64)  # each aligned like a separate tensor
        self.device = device
        self._on_device = device.type != "cpu"
        self._memory = torch.zeros(places[-1], dtype=torch.int32, device=device)
        self._staged = self._memory
        if self._on_device:
            self._staged = torch.zeros(places[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self.tensors, self._parts = (
            [memory[place : place + size] for place, size in zip(places, sizes, strict=False)]
            for memory in (self._memory, self._staged)
        )
        self._held: tuple[bytearray, ...] | None = None
        self._copied: Any = None  # event of the last copy to the device

    def update(self, parts: tuple[bytearray, ...]) -> None:
        """Stores `parts`, which have the sizes of the first ones, in the tensors."""
        if parts == self._held:
            return
        torch = _torch()
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise CudaGraphUnsafeError(
                "KVCacheManager: get_attention_input",
                "tables that are up to date inside a CUDA graph's capture",
                "sequences that have changed since the last call",
                "call it before the capture",
            )
        if self._copied is not None:
            self._copied.synchronize()  # the last copy must have read the memory before it is written again
        for target, part in zip(self._parts, parts, strict=True):
            if part:
                target.copy_(torch.frombuffer(part, dtype=torch.int32))
        if self._on_device:
            self._memory.copy_(self._staged, non_blocking=True)
            if self.device.type == "cuda":
                self._copied = torch.cuda.Event()
                self._copied.record(torch.cuda.current_stream(self.device))
        self._held = parts


def _check_dtype(name: str, dtype: Any) -> None:
    if not isinstance(dtype, _torch().dtype):
        raise WrongTypeError(f"KVCacheManager: {name}", "a torch.dtype", f"{type(dtype).__name__} {dtype!r}")
    known = next(p["dtypes"] for p in contracts()["kv_append_paged"]["params"] if p["name"] == "key_cache")
    if str(dtype).removeprefix("torch.") not in known:
        raise InvalidRequestError(f"KVCacheManager: {name}", f"one of {', '.join(known)}", str(dtype), "choose another")


def _check_storage(name: str, cache: Any) -> None:
    """Refuses what no operation can store rows in."""
    torch = _torch()
    if not isinstance(cache, torch.Tensor):
        raise WrongTypeError(f"KVCacheManager: {name}", "a torch.Tensor", type(cache).__name__)
    if cache.is_nested or cache.layout is not torch.strided:
        kind = "nested" if cache.is_nested else str(cache.layout)
        raise WrongTypeError(f"KVCacheManager: {name}", "a dense torch.Tensor", f"a {kind} one", "allocate it dense")
    if cache.device.type not in ("cpu", "cuda"):
        wanted = "a tensor on the CPU or a GPU"
        raise InvalidRequestError(f"KVCacheManager: {name}", wanted, f"one on {cache.device}", "move it")
    _check_dtype(name, cache.dtype)


def _check_scale(name: str, scale: Any, cache: Any) -> None:
    if scale is None:
        return
    heads, got = cache.shape[2], type(scale).__name__
    if isinstance(scale, _torch().Tensor):
        shape, dtype = tuple(scale.shape), str(scale.dtype)
        if shape in ((), (1,), (heads,)) and dtype == "torch.float32" and scale.device == cache.device:
            return
        got = f"{shape} of {dtype} on {scale.device}"
    raise InvalidRequestError(
        f"KVCacheManager: {name}",
        f"a float32 tensor of one element or {heads} on {cache.device}",
        got,
        "pass one scale for all heads or one for each",
    )


def _numbers(tokens: Any) -> Sequence[int] | None:
    return tokens.tolist() if hasattr(tokens, "tolist") else tokens


def _torch() -> Any:
    if "torch" not in sys.modules:
        need("torch", what="KVCacheManager")
        __import__("torch")
    return sys.modules["torch"]
