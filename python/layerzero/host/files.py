"""Files that are written whole or not at all, also on a full disk."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replaced(
    path: str | os.PathLike[str], mode: int = 0o644, *, folders: bool = False, durable: bool = False
) -> Iterator[BinaryIO]:
    """Yields a file that replaces `path` whole at the end of the block; an error leaves `path` unchanged. A link is
    replaced, not followed; a device or pipe is written. `folders`: make those that are missing. `durable`: it is on the disk at the end of the
    block, whole even after a power cut."""
    target = pathlib.Path(path)
    if target.exists() and not target.is_file():  # as /dev/stdout
        with target.open("wb") as device:
            yield device
        return
    if folders:
        target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(made, mode)
        os.replace(made, target)
        if durable:
            _sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
