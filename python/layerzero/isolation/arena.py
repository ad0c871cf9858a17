"""Files of the memory that this process shares with a worker: without a name, or one in a private folder, for a container."""

import fcntl
import os
import tempfile

_F_ADD_SEALS, _F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 1, 2, 4


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
