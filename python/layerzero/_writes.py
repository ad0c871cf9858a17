"""Whether a tensor holds what it held: for what was packed from it."""

import ctypes
from typing import Any

_WORDS = (
    2  # of a tensor in memory of the host: writes that torch does not count (`.data`, NumPy) are seen by their values
)
_CANDIDATES = 64


class Seen:
    """A tensor as it was: torch's count of writes, where its memory is, and a few words of it, none zero where that is
    possible. A write past torch's count that leaves those words alone is not seen.
    """

    __slots__ = ("pointer", "storage", "values", "version", "words")

    def __init__(self, tensor: Any) -> None:
        self.version: int | None = None if tensor.is_inference() else tensor._version
        self.pointer = tensor.data_ptr()
        self.storage = tensor.untyped_storage()  # the words are read from it, whoever else gives it up
        self.words = _words_of(tensor)
        self.values = [word.value for word in self.words]

    def is_same(self, tensor: Any) -> bool:
        return (
            tensor.data_ptr() == self.pointer
            and (self.version is None or tensor._version == self.version)
            and [word.value for word in self.words] == self.values
        )

    def forget(self) -> None:
        """No tensor is the same from here on."""
        self.pointer = -1


def are_counted(tensor: Any) -> bool:
    """False of inference tensors: torch counts no writes into them."""
    return not tensor.is_inference()


def _words_of(tensor: Any) -> list[Any]:
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or not tensor.nbytes:
        return []
    kind = ctypes.c_uint64 if tensor.nbytes >= 8 else ctypes.c_uint8
    size, last = ctypes.sizeof(kind), tensor.nbytes - ctypes.sizeof(kind)
    places = sorted({last * i // _CANDIDATES // size * size for i in range(1, _CANDIDATES)} | {last})
    words = [kind.from_address(tensor.data_ptr() + place) for place in places]
    chosen = [word for word in words if word.value] or words
    return chosen[:: max(1, len(chosen) // _WORDS)][:_WORDS]
