"""Memory that this process shares with a worker: a file without a name (or one in a private folder, for a container),
mapped by both. This process alone decides which part of it is used for what.
"""

import bisect
import ctypes
import fcntl
import mmap
import os
import tempfile
from collections import deque
from typing import Any

from layerzero import _layerzero
from layerzero.isolation.protocol import (
    ALIGNMENT,
    DATA,
    DTYPES,
    MAX_MESSAGE,
    Place,
    ProtocolError,
    Unsendable,
    Word,
    aligned,
    extent,
)

_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


class Full(Exception):
    """No block of the arena is large enough."""


def make_file(size: int) -> int:
    """Returns a file without a name, whose size neither side can change, so that no access is past its end."""
    file = os.memfd_create("layerzero", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    return file


def make_named_file(size: int) -> tuple[int, str]:
    """Returns a file in a new folder of this user alone, and its path: for a container, which inherits no files."""
    folder = tempfile.mkdtemp(prefix="layerzero.", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    path = os.path.join(folder, "arena")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.ftruncate(file, size)
    return file, path


class Memory:
    """The mapped arena: its words, messages and tensors, as both sides use them."""

    def __init__(self, file: int, size: int) -> None:
        import torch

        self.map, self.size = mmap.mmap(file, size), size
        self.bytes = memoryview(self.map)
        self.tensor = torch.frombuffer(self.map, dtype=torch.uint8)
        self.address = self.tensor.data_ptr()
        self._storage = self.tensor.untyped_storage()
        self._dtypes = [getattr(torch, name, None) for name in DTYPES]
        self._numbers = {dtype: i for i, dtype in enumerate(self._dtypes) if dtype is not None}
        self.torch = torch

    def write(self, at: int, message: bytes) -> None:
        """Writes a message after its length."""
        self.bytes[at : at + 4] = len(message).to_bytes(4, "little")
        self.bytes[at + 4 : at + 4 + len(message)] = message

    def read(self, at: int) -> bytes:
        """Returns a copy of the message, which its writer may change meanwhile."""
        length = int.from_bytes(self.bytes[at : at + 4], "little")
        if not 0 < length <= MAX_MESSAGE:
            raise ProtocolError(f"wanted a message of 1 to {MAX_MESSAGE} bytes, got {length}")
        return bytes(self.bytes[at + 4 : at + 4 + length])

    def ring(self, word: Word, value: int, sleeps: Word, file: int) -> None:
        """Publishes a message."""
        _layerzero.doorbell_ring(self.address + word, value, self.address + sleeps, file)

    def wait(self, word: Word, seen: int, sleeps: Word, file: int, spin_us: float, timeout_s: float) -> int | None:
        """Waits for the next message: its number, or None after the time. EOFError: the other side has ended."""
        return _layerzero.doorbell_wait(self.address + word, seen, self.address + sleeps, file, spin_us, timeout_s)

    def number_of(self, dtype: Any) -> int:
        """Returns a dtype's number in messages."""
        number = self._numbers.get(dtype)
        if number is None:
            raise Unsendable(f"wanted a dtype of numbers, got {dtype}")
        return number

    def dtype_of(self, place: Place) -> Any:
        """Returns the dtype of a tensor in a message."""
        dtype = self._dtypes[place.dtype]
        if dtype is None:
            raise ProtocolError(f"this torch has no {DTYPES[place.dtype]}")
        return dtype

    def check(self, place: Place, begin: int, end: int) -> int:
        """Returns the tensor's bytes, which are within begin and end, or raises ProtocolError."""
        itemsize = self.dtype_of(place).itemsize
        size = extent(place.shape, place.strides) * itemsize
        if size and (place.offset < begin or place.offset + size > end or place.offset % ALIGNMENT):
            raise ProtocolError(f"a tensor of {size} bytes at {place.offset} is outside of {begin} to {end}")
        return size

    def view(self, place: Place) -> Any:
        """Returns the tensor in the arena, which check() has admitted."""
        torch, dtype = self.torch, self.dtype_of(place)
        if not extent(place.shape, place.strides):
            return torch.empty_strided(place.shape, place.strides, dtype=dtype, device="cpu")
        empty = torch.empty(0, dtype=dtype, device="cpu")
        return empty.set_(self._storage, place.offset // dtype.itemsize, place.shape, place.strides)


def dense_strides(shape: Any, strides: Any) -> tuple[int, ...]:
    """Returns strides of the same order without gaps or overlap: those of a dense tensor are unchanged. A tensor with a
    repeated axis becomes contiguous."""
    step, found = 1, [0] * len(shape)
    axes = list(range(len(shape) - 1, -1, -1))
    if all(stride > 0 for size, stride in zip(shape, strides, strict=True) if size > 1):
        axes.sort(key=lambda axis: strides[axis] if shape[axis] > 1 else 0)  # stable: of equal ones the last is first
    for axis in axes:
        found[axis] = step
        step *= max(shape[axis], 1)
    return tuple(found)


class Blocks:
    """The parts of the arena that are free. First fit; neighbours are joined. Not thread-safe, except `later`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = [(DATA, size - DATA)]  # (offset, bytes), ascending
        self.used: dict[int, int] = {}  # offset -> bytes
        self.pinned = False
        self.later: deque[int] = deque()  # freed by any thread, at any time

    def allocate(self, size: int) -> int:
        """Returns the offset of a new block; raises Full."""
        while self.later:
            self.release(self.later.popleft())
        size = max(aligned(size), ALIGNMENT)
        for i, (offset, available) in enumerate(self.free):
            if available >= size:
                self.used[offset] = size
                if available == size:
                    del self.free[i]
                else:
                    self.free[i] = offset + size, available - size
                return offset
        raise Full(f"wanted {size} bytes, got {max((n for _, n in self.free), default=0)} of {self.size}")

    def shrink(self, offset: int, size: int) -> None:
        """Releases what a block has after its first `size` bytes."""
        size = max(aligned(size), ALIGNMENT)
        rest = self.used.get(offset, 0) - size
        if rest > 0:
            self.used[offset] = size
            self._add(offset + size, rest)

    def release(self, offset: int) -> None:
        """Releases a block."""
        size = self.used.pop(offset, None)
        if size is not None:
            self._add(offset, size)

    def held(self) -> int:
        """Returns the bytes of all blocks in use."""
        return sum(self.used.values())

    def pin(self) -> None:
        """The blocks in use now are never released: a forked child still reads them."""
        self.pinned = True
        self.used.clear()

    def _add(self, offset: int, size: int) -> None:
        at = bisect.bisect(self.free, (offset, size))
        if at < len(self.free) and self.free[at][0] == offset + size:
            size += self.free.pop(at)[1]
        if at and sum(self.free[at - 1]) == offset:
            offset, size = self.free[at - 1][0], self.free[at - 1][1] + size
            at -= 1
            del self.free[at]
        self.free.insert(at, (offset, size))


class _Owner:
    """Releases a block once the last of the tensors over it is gone; keeps the arena mapped until then."""

    def __init__(self, memory: Memory, blocks: Blocks, offset: int) -> None:
        self.memory, self._blocks, self._offset = memory, blocks, offset

    def __del__(self) -> None:
        self._blocks.later.append(self._offset)


class Results:
    """Makes tensors over one block, each with a storage of its own."""

    def __init__(self, memory: Memory, blocks: Blocks, offset: int, size: int) -> None:
        self._memory, self._offset = memory, offset
        array = (ctypes.c_char * size).from_address(memory.address + offset)
        array.owner = _Owner(memory, blocks, offset)  # type: ignore[attr-defined]  # each tensor keeps the array
        self._array = array

    def tensor(self, place: Place) -> Any:
        """Returns the tensor of a checked place."""
        torch, dtype = self._memory.torch, self._memory.dtype_of(place)
        size = extent(place.shape, place.strides) * dtype.itemsize
        if not size:
            return self._memory.view(place)
        raw = torch.frombuffer(self._array, dtype=torch.uint8, count=size, offset=place.offset - self._offset)
        empty = torch.empty(0, dtype=dtype, device="cpu")
        return empty.set_(raw.untyped_storage(), 0, place.shape, place.strides)
