"""Named byte matrices in one safetensors file: written whole or not at all, checked when it is opened, mapped and not read.

Any reader of safetensors reads it. Tensors lie behind each other in the order given, from a multiple of 64 bytes on.
"""

import contextlib
import json
import os
import pathlib
import tempfile
import zlib
from typing import Any

import torch

_ALIGNMENT = 64


def _bytes(tensor: torch.Tensor) -> Any:
    """A buffer over a tensor's memory."""
    return tensor.contiguous().numpy()


def write(path: pathlib.Path, tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> None:
    """Puts the file in the place of what is there; who has the old one mapped keeps it. Raises OSError."""
    header: dict[str, Any] = {}
    end = checksum = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        checksum = zlib.crc32(_bytes(tensor), checksum)
        header[name] = {"dtype": "U8", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header["__metadata__"] = {"about": json.dumps(about), "crc32": str(checksum)}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(_bytes(tensor))
        os.chmod(made, 0o644)
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def read(path: pathlib.Path, about: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    """The tensors, over memory that is the file's; None where no such file is or it is not what `write` made."""
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
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):  # cut off, or of another kind
        return None
