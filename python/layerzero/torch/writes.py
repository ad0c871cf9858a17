"""Detects writes into a tensor after something was packed from it."""

import ctypes
from typing import Any

_WORDS = 2  # words sampled of a tensor in host memory, to detect writes that torch does not count (`.data`, NumPy)
_CANDIDATES = 64


class Seen:
    """A snapshot of a tensor: torch's version counter, the address, and a few words of the data, nonzero if possible. A
    write that torch does not count and that does not change those words is not detected.
    """

    __slots__ = ("pointer", "storage", "values", "version", "words")

    def __init__(self, tensor: Any) -> None:
        self.version: int | None = None if tensor.is_inference() else tensor._version
        self.pointer = tensor.data_ptr()
        self.storage = tensor.untyped_storage()  # keeps the memory alive from which the words are read
        self.words = _words_of(tensor)
        self.values = [word.value for word in self.words]

    def is_same(self, tensor: Any) -> bool:
        return (
            tensor.data_ptr() == self.pointer
            and (self.version is None or tensor._version == self.version)
            and [word.value for word in self.words] == self.values
        )

    def forget(self) -> None:
        """Makes is_same() False for every tensor from now on."""
        self.pointer = -1


def are_counted(tensor: Any) -> bool:
    """Returns False for inference tensors: torch counts no writes into them."""
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
