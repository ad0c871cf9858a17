"""Prepacked weights by id: packed once, kept within a limit of bytes, the least recently used dropped first."""

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError
from layerzero.host.typed import typed
from layerzero.torch.writes import Seen, are_counted


class PackedWeights:
    """A cache of packed weights, which it owns; a tensor that a caller still references outlives its entry.

    packed = lz.PackedWeights(max_bytes=2 << 30)
    y = lz.linear_quantized(x, weight, scale, "int4", packed=packed.get("model:layers.0.up", weight))
    """

    @typed
    def __init__(self, max_bytes: int, prepack: Callable[[Any], Any] | None = None) -> None:
        if max_bytes < 0:
            raise InvalidRequestError("max_bytes", "at least 0", str(max_bytes))
        self.max_bytes = max_bytes
        self._prepack = prepack or _layerzero.ops["linear_prepack"]
        self._entries: OrderedDict[str, tuple[tuple[int, ...], Any, Any]] = OrderedDict()  # shape, contents, packed
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, packed_weights_id: str, weight: Any) -> Any:
        """Returns the packed form of `weight`. It is packed on the first call with this id, and again if the weight was
        written since or is another tensor. A result larger than the limit is not kept. Raises InvalidRequestError for a
        weight of another shape under the same id, and for an inference tensor, into which torch counts no writes.
        """
        if hasattr(weight, "is_inference") and not are_counted(weight):
            raise InvalidRequestError(
                "weight",
                f"a tensor whose writes torch counts for {packed_weights_id!r}",
                "an inference tensor, whose packed form would be used after a write",
                "copy it under torch.inference_mode(False), or call linear_prepack",
            )
        shape = tuple(weight.shape)
        with self._lock:
            entry = self._entries.get(packed_weights_id)
            if entry is not None:
                if entry[0] != shape:
                    raise InvalidRequestError(
                        "packed_weights_id",
                        f"the weight of {packed_weights_id!r}, {list(entry[0])}",
                        f"one of {list(shape)}",
                        "give each weight its own id, or discard() the old one",
                    )
                if _holds(entry[1], weight):
                    self._entries.move_to_end(packed_weights_id)
                    return entry[2]
                self._nbytes -= self._entries.pop(packed_weights_id)[2].nbytes
            contents = _contents_of(weight)  # read before packing, so that a concurrent write is detected
            packed = self._prepack(weight)
            if packed.nbytes <= self.max_bytes:
                self._entries[packed_weights_id] = (shape, contents, packed)
                self._nbytes += packed.nbytes
                while self._nbytes > self.max_bytes:
                    self._nbytes -= self._entries.popitem(last=False)[1][2].nbytes
            return packed

    def discard(self, packed_weights_id: str) -> None:
        """Drops one entry, for a weight that is no longer used; unknown ids are ignored."""
        with self._lock:
            entry = self._entries.pop(packed_weights_id, None)
            self._nbytes -= entry[2].nbytes if entry else 0

    def clear(self) -> None:
        """Drops every entry."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the packed weights that are kept."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, packed_weights_id: str) -> bool:
        return packed_weights_id in self._entries


def _contents_of(weight: Any) -> Any:
    """Returns a fingerprint of a weight's contents: for arrays, whose writes are not counted, a checksum."""
    return Seen(weight) if hasattr(weight, "is_inference") else zlib.crc32(memoryview(weight).cast("B"))


def _holds(contents: Any, weight: Any) -> bool:
    if isinstance(contents, Seen):
        return hasattr(weight, "is_inference") and contents.is_same(weight)
    return not hasattr(weight, "is_inference") and contents == _contents_of(weight)
