"""Files that are written whole or not at all, also on a full disk."""

import contextlib
import errno
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from layerzero.errors import LayerZeroError, file_error

_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)


@contextlib.contextmanager
def replaced(
    path: str | os.PathLike[str], mode: int = 0o644, *, folders: bool = False, durable: bool = False
) -> Iterator[BinaryIO]:
    """Yields a file that replaces `path` whole at the end of the block; an error leaves `path` unchanged. A link is
    replaced, not followed; a device or pipe is written. `folders`: make those that are missing. `durable`: it is on the disk at the end of the
    block, whole even after a power cut. Raises FileError, an OSError, where the file cannot be written; errors of other files
    that the block reads or writes are its own."""
    target = pathlib.Path(path)
    try:
        with _replaced(target, mode, folders, durable) as file:
            yield file
    except OSError as error:
        if isinstance(error, LayerZeroError) or not _is_about(target, error):
            raise
        raise file_error("file", "one that can be written", target, error) from error


def _is_about(target: pathlib.Path, error: OSError) -> bool:
    """Whether an error is of this file or its folders: writing to an open file is an error without a name."""
    if not isinstance(error.filename, (str, os.PathLike)):
        return error.errno in _OF_WRITING
    named = pathlib.Path(error.filename)
    return named == target or named in target.parents or named.name.startswith(f".{target.name}-")


def check_writable(field: str, path: str | os.PathLike[str], *, folders: bool = False) -> None:
    """Raises FileError if `path` cannot be written: before work whose result would be lost."""
    target = pathlib.Path(path)
    folder = target.parent
    while folders and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    number = (
        errno.EISDIR
        if target.is_dir()
        else errno.ENOENT
        if not folder.exists()
        else errno.ENOTDIR
        if not folder.is_dir()
        else errno.EACCES
        if not os.access(folder, os.W_OK | os.X_OK) and not (target.exists() and not target.is_file())
        else 0
    )
    if number:
        raise file_error(field, "a file that can be written", target, OSError(number, os.strerror(number)))


@contextlib.contextmanager
def _replaced(target: pathlib.Path, mode: int, folders: bool, durable: bool) -> Iterator[BinaryIO]:
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
