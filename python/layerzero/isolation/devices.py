"""Tensors in the memory of a CUDA device across processes, by CUDA's IPC handles, as torch makes and counts them."""

from typing import Any

from layerzero.isolation.protocol import Place, ProtocolError

_HANDLE = (int, bytes, int, int, bytes, int, bytes, bool)


def shared(tensor: Any, dtype: int) -> Place:
    """Returns the tensor as a message has it. Its memory lives as long as the tensor here, or until the other side has
    released it, whichever is later."""
    handle = tensor.untyped_storage()._share_cuda_()
    offset = tensor.storage_offset() * tensor.dtype.itemsize
    return Place(dtype, tuple(tensor.shape), tensor.stride(), offset, tuple(handle))


def opened(place: Place, dtype: Any) -> Any:
    """Returns the tensor over the other process's memory."""
    import torch

    handle = place.handle
    if handle is None or not all(isinstance(v, kind) for v, kind in zip(handle, _HANDLE, strict=True)):
        raise ProtocolError("wanted the handle of a CUDA tensor")
    if not 0 <= handle[0] < torch.cuda.device_count():
        raise ProtocolError(f"wanted a device of {torch.cuda.device_count()}, got {handle[0]}")
    torch.cuda.init()  # the next line does not
    storage = torch.UntypedStorage._new_shared_cuda(*handle)
    last = sum((size - 1) * stride for size, stride in zip(place.shape, place.strides, strict=True))
    inside = 0 in place.shape or place.offset + (last + 1) * dtype.itemsize <= storage.nbytes()
    if not inside or place.offset % dtype.itemsize:
        raise ProtocolError(f"a tensor at {place.offset} is outside of its memory of {storage.nbytes()} bytes")
    empty = torch.empty(0, dtype=dtype, device=f"cuda:{handle[0]}")
    return empty.set_(storage, place.offset // dtype.itemsize, place.shape, place.strides)


def ready(tensors: list[Any]) -> None:
    """Waits until this process's streams have written the tensors: the worker's streams do not wait for them."""
    import torch

    for device in {t.device for t in tensors}:
        torch.cuda.current_stream(device).synchronize()


def is_capturing() -> bool:
    """True inside of the capture of a CUDA graph, whose replays call no worker."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
