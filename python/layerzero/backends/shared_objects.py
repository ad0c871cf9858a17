"""Reads shared objects without loading them: which libraries they link, and for which GPUs they have code."""

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_DYNAMIC, _LOAD = 2, 1  # types of program headers
_NEEDED, _STRINGS = 1, 5  # tags of the dynamic section
_LONGEST = 16 << 20  # bytes read of one table
_CONTAINER, _CONTAINER_HEADER = 0xBA55ED50, 16  # of CUDA code: a header, then entries
_ENTRY_HEADER = 64
_KINDS = {1: "compute", 2: "sm"}  # PTX, and machine code


def libraries_of(path: Path) -> tuple[str, ...]:
    """Returns the names of the libraries that an ELF file links ("libcudart.so.13"); () if it is no such file."""
    try:
        with path.open("rb") as file:
            return tuple(_needed(file))
    except (OSError, struct.error, ValueError):
        return ()


def cuda_code(path: Path) -> frozenset[tuple[str, int]]:
    """Returns the CUDA code that an ELF file holds: ("sm", 90) is machine code for 9.0, ("compute", 90) is PTX for 9.0 and later."""
    try:
        with path.open("rb") as file:
            return frozenset(_codes_of(file))
    except (OSError, struct.error, ValueError):
        return frozenset()


def of_package(folder: Path) -> list[Path]:
    """Returns the shared objects below a package's folder, or the file itself if it is one."""
    if not folder.is_dir():
        return [folder] if ".so" in folder.suffixes else []
    return list(_below(str(folder)))


@functools.lru_cache(maxsize=256)
def _below(folder: str) -> tuple[Path, ...]:
    found = []
    for at, _, names in os.walk(folder):
        found += [Path(at, name) for name in names if name.endswith(".so") or ".so." in name]
    return tuple(sorted(found))


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    if size > _LONGEST:
        raise ValueError("a table that is too long")
    file.seek(at)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("the file ends early")
    return data


def _header(file: BinaryIO) -> Any:
    """Returns (program header offset, section header offset, their entry sizes and counts, index of section names)."""
    head = _read(file, 0, 64)
    if head[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    return struct.unpack_from("<QQ", head, 32) + struct.unpack_from("<HHHHH", head, 54)


def _needed(file: BinaryIO) -> Iterator[str]:
    start, _, size, count, *_ = _header(file)
    segments = [struct.unpack_from("<IIQQQQQQ", _read(file, start + i * size, size)) for i in range(count)]
    dynamic = next((s for s in segments if s[0] == _DYNAMIC), None)
    if dynamic is None:
        return
    entries = list(struct.iter_unpack("<qQ", _read(file, dynamic[2], dynamic[5] // 16 * 16)))
    address = next(value for tag, value in entries if tag == _STRINGS)
    loaded = next(s for s in segments if s[0] == _LOAD and s[3] <= address < s[3] + s[5])
    strings = loaded[2] + address - loaded[3]
    for tag, value in entries:
        if tag == _NEEDED:
            file.seek(strings + value)
            yield file.read(256).partition(b"\0")[0].decode()


def _codes_of(file: BinaryIO) -> Iterator[tuple[str, int]]:
    _, start, _, _, size, count, names = _header(file)
    sections = [struct.unpack_from("<IIQQQQ", _read(file, start + i * size, size)) for i in range(count)]
    table = _read(file, sections[names][4], sections[names][5])
    for name, _, _, _, at, length in sections:
        if table[name : table.index(b"\0", name)] == b".nv_fatbin":
            yield from _codes(file, at, at + length)


def _codes(file: BinaryIO, at: int, end: int) -> Iterator[tuple[str, int]]:
    """Yields kind and architecture of each entry of the containers between two offsets."""
    while at + _CONTAINER_HEADER <= end:
        magic, _, header, length = struct.unpack("<IHHQ", _read(file, at, _CONTAINER_HEADER))
        if magic != _CONTAINER:
            at += 8  # padding between containers
            continue
        entry, last = at + header, at + header + length
        while entry + _ENTRY_HEADER <= last:
            kind, _, own, size = struct.unpack("<HHIQ", _read(file, entry, 16))
            if kind in _KINDS:
                yield _KINDS[kind], struct.unpack("<I", _read(file, entry + 28, 4))[0]
            entry += own + size
            if own + size == 0:
                return
        at = last
