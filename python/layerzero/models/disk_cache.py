"""The disk cache: converted GGUF models, packed weights, findings about models. All of it can be recreated."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

from layerzero import _layerzero

_not_kept: set[pathlib.Path] = set()  # folders for which a warning was emitted


def cache_dir() -> pathlib.Path:
    """Returns the cache folder: $LAYERZERO_CACHE_DIR, else the policy's `cache_dir`, by default layerzero in
    $XDG_CACHE_HOME or ~/.cache."""
    given = os.environ.get("LAYERZERO_CACHE_DIR")
    return pathlib.Path(given or json.loads(_layerzero.policy_text())["keys"]["cache_dir"]["value"]).expanduser()


@contextlib.contextmanager
def replaced(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Yields a file that replaces `path` whole at the end of the block; an error leaves `path` unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            yield file
        os.chmod(made, 0o644)
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def not_kept(what: str, error: OSError) -> None:
    """Warns, once for each folder, that nothing can be stored in the cache."""
    folder = cache_dir()
    if folder not in _not_kept:
        _not_kept.add(folder)
        warnings.warn(
            f"{what} is not kept and will be recreated each time: {error}; set LAYERZERO_CACHE_DIR to a folder that can be "
            "written",
            stacklevel=2,
        )


def touch(folder: pathlib.Path) -> None:
    """Marks an entry as used now; does nothing on a read-only disk."""
    try:
        os.utime(folder)
    except OSError:
        return


def entries() -> list[dict[str, Any]]:
    """Returns {"path", "model" (digest of its file or its parameters), "kind", "bytes", "used_at" (seconds since 1970)}
    of each entry, the least recently used first."""
    found = []
    for folder in cache_dir().glob("models/*/*"):
        try:
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            used = folder.stat().st_mtime
        except OSError:  # another process is removing it
            continue
        found.append(
            {"path": str(folder), "model": folder.parent.name, "kind": folder.name, "bytes": size, "used_at": used}
        )
    return sorted(found, key=lambda entry: entry["used_at"])


def cap(most_bytes: int) -> list[dict[str, Any]]:
    """Removes the least recently used entries until the rest fits; returns the removed entries."""
    found = entries()
    total, removed = sum(entry["bytes"] for entry in found), []
    for entry in found:
        if total <= most_bytes:
            break
        _remove(pathlib.Path(entry["path"]))
        total -= entry["bytes"]
        removed.append(entry)
    return removed


def _remove(folder: pathlib.Path) -> None:
    """Renames an entry, then deletes it, so that no other process finds half of it; open files stay usable."""
    hidden = pathlib.Path(tempfile.mkdtemp(prefix=".removed-", dir=folder.parent))
    try:
        folder.rename(hidden / folder.name)
    except FileNotFoundError:  # another process was first
        pass
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:  # other entries of the same model
        return
