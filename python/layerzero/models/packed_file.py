"""Named byte matrices in one safetensors file: written atomically, checked when opened, and memory-mapped.

Any safetensors reader can read it. Tensors are stored in the given order, starting at a multiple of 64 bytes.
"""

import json
import pathlib
import zlib
from typing import Any

import torch

from layerzero.host.files import replaced

_ALIGNMENT = 64


def _bytes(tensor: torch.Tensor) -> Any:
    """Returns a buffer over a tensor's memory."""
    return tensor.contiguous().numpy()


def write(path: pathlib.Path, tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> None:
    """Replaces the file atomically; existing mappings of the old one stay valid. Raises OSError."""
    header: dict[str, Any] = {}
    end = checksum = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        checksum = zlib.crc32(_bytes(tensor), checksum)
        header[name] = {"dtype": "U8", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header["__metadata__"] = {"about": json.dumps(about), "crc32": str(checksum)}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with replaced(path, folders=True) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(_bytes(tensor))


def read(path: pathlib.Path, about: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    """Returns the tensors over the mapped file; None if there is no such file or `write` did not make it."""
    try:
        size = path.stat().st_size
        data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        begin = 8 + int.from_bytes(bytes(data[:8].tolist()), "little")
        header = json.loads(bytes(_bytes(data[8:begin])))
        metadata = header.pop("__metadata__")
        if json.loads(metadata["about"]) != about or zlib.crc32(_bytes(data[begin:])) != int(metadata["crc32"]):
            return None
        tensors = {}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            tensors[name] = data[begin + first : begin + last].view(entry["shape"])
        return tensors
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):  # truncated, or of another kind
        return None
