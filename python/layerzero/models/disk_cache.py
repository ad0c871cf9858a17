"""The disk cache: converted GGUF models, packed weights, findings about models. All of it can be recreated."""

import json
import os
import pathlib
import shutil
import tempfile
import warnings
from typing import Any

from layerzero import _layerzero

_AT_IMPORT = os.environ.get("LAYERZERO_CACHE_DIR", "")
_not_kept: set[pathlib.Path] = set()  # folders for which a warning was emitted


def cache_dir() -> pathlib.Path:
    """Returns the cache folder: `cache_dir` of lz.configure, else $LAYERZERO_CACHE_DIR, else the policy's `cache_dir`, by
    default layerzero in $XDG_CACHE_HOME or ~/.cache. A value of lz.configure that is the variable's at import counts as the
    variable's: code that puts the first value back leaves the variable in charge."""
    given = os.environ.get("LAYERZERO_CACHE_DIR")
    entry = json.loads(_layerzero.policy_text())["keys"]["cache_dir"]
    by_code = entry["origin"] == "lz.configure" and entry["value"] != os.path.expanduser(_AT_IMPORT)
    return pathlib.Path(entry["value"] if by_code or not given else given).expanduser()


def model_folder(*parts: str) -> pathlib.Path:
    """Returns a folder of the cache for a model's files: see checked_folder()."""
    return checked_folder("models", *parts)


def checked_folder(*parts: str) -> pathlib.Path:
    """Returns a folder of the cache, which may not exist yet. UntrustedFileError (an OSError): other users can write the
    cache, and nothing in it is read or written."""
    folder = cache_dir()
    made = folder.joinpath(*parts)
    for checked in (folder, *made.relative_to(folder).parents, made):
        _layerzero.check_trusted(str(folder / checked))
    return made


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
