"""Tensors in the memory of a CUDA device across processes, by CUDA's IPC handles, as torch makes and counts them."""

import struct
from typing import Any

from layerzero.isolation.protocol import ProtocolError

# Device, bytes, offset, the counter's offset, lengths of three texts, must it wait; the texts follow.
_HANDLE = struct.Struct("<iqqqHHHB")


def shared(tensor: Any) -> tuple[int, bytes]:
    """Returns the tensor's offset in bytes and the handle of its memory, which lives as long as the tensor here, or until the
    other side has released it, whichever is later."""
    device, memory, size, offset, counter, counter_offset, event, wait = tensor.untyped_storage()._share_cuda_()
    texts = memory, counter, event
    head = _HANDLE.pack(device, size, offset, counter_offset, *map(len, texts), wait)
    return tensor.storage_offset() * tensor.dtype.itemsize, head + b"".join(texts)


def opened(
    handle: bytes, dtype: tuple[int, int, int], shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Any:
    """Returns the tensor over the other process's memory. `dtype`: DLPack's code, bits and lanes; `offset` in bytes."""
    import torch

    kind = _dtypes().get(dtype)
    if kind is None:
        raise ProtocolError(f"this torch has no dtype {dtype}")
    if len(handle) < _HANDLE.size:
        raise ProtocolError("wanted the handle of a CUDA tensor")
    device, size, start, counter_offset, *lengths, wait = _HANDLE.unpack_from(handle)
    if len(handle) != _HANDLE.size + sum(lengths):
        raise ProtocolError("wanted the handle of a CUDA tensor, got another length")
    texts, at = [], _HANDLE.size
    for length in lengths:
        texts.append(handle[at : at + length])
        at += length
    if not 0 <= device < torch.cuda.device_count():
        raise ProtocolError(f"wanted a device of {torch.cuda.device_count()}, got {device}")
    torch.cuda.init()  # the next line does not
    memory, counter, event = texts
    storage = torch.UntypedStorage._new_shared_cuda(
        device, memory, size, start, counter, counter_offset, event, bool(wait)
    )
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    inside = 0 in shape or offset + (last + 1) * kind.itemsize <= storage.nbytes()
    if not inside or offset % kind.itemsize:
        raise ProtocolError(f"a tensor at {offset} is outside of its memory of {storage.nbytes()} bytes")
    empty = torch.empty(0, dtype=kind, device=f"cuda:{device}")
    return empty.set_(storage, offset // kind.itemsize, shape, strides)


_known: dict[tuple[int, int, int], Any] = {}


def _dtypes() -> dict[tuple[int, int, int], Any]:
    """Returns torch's dtypes by DLPack's code, bits and lanes."""
    import torch

    if not _known:
        floats = {"float16": 16, "float32": 32, "float64": 64}
        rows = {name: (2, bits, 1) for name, bits in floats.items()}
        rows |= {f"int{bits}": (0, bits, 1) for bits in (8, 16, 32, 64)}
        rows |= {f"uint{bits}": (1, bits, 1) for bits in (8, 16, 32, 64)}
        rows |= {"bfloat16": (4, 16, 1), "complex64": (5, 64, 1), "complex128": (5, 128, 1), "bool": (6, 8, 1)}
        rows |= {"float8_e4m3fn": (10, 8, 1), "float8_e4m3fnuz": (11, 8, 1), "float8_e5m2": (12, 8, 1)}
        rows |= {"float8_e5m2fnuz": (13, 8, 1), "float8_e8m0fnu": (14, 8, 1), "float4_e2m1fn_x2": (17, 4, 2)}
        _known.update((key, getattr(torch, name)) for name, key in rows.items() if hasattr(torch, name))
    return _known


def ready(tensors: list[Any]) -> None:
    """Waits until this process's streams have written the tensors: the worker's streams do not wait for them."""
    import torch

    for device in {t.device for t in tensors}:
        torch.cuda.current_stream(device).synchronize()


def is_capturing() -> bool:
    """True inside of the capture of a CUDA graph, whose replays call no worker."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
