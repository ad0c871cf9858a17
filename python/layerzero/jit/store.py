"""Compiled code on disk: one file for each key, with a digest over all of it, written whole or not at all.

A file is read whole and checked before a byte of it is used; what does not fit is removed and compiled again. Files are
the user's own: a cache that others can write is neither read nor written (`disk_cache.checked_folder`).
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from layerzero.host.files import replaced
from layerzero.models import disk_cache

MAGIC = b"LZJIT\x00\x01\n"
_LENGTH = struct.Struct("<Q")
_DIGEST = 32
FAILED = ".failed"  # ending of what remembers a compilation that failed


class Artifact(NamedTuple):
    """What was compiled for a key: named files, and the facts that it was made from."""

    facts: dict[str, Any]
    files: dict[str, bytes]  # by path relative to the library's folder


def key_of(facts: dict[str, Any]) -> str:
    """Returns the key of what is compiled from these facts: any difference in any of them is another key."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def folder(*parts: str) -> pathlib.Path:
    """Returns a folder of compiled code, which may not exist yet. UntrustedFileError (an OSError): other users can write it."""
    return disk_cache.checked_folder("jit", *parts)


def path_of(key: str) -> pathlib.Path:
    return folder("artifacts", key[:2]) / key


def packed(artifact: Artifact) -> bytes:
    """Returns the artifact as one piece: magic, length of the head, head, files, SHA-256 of all that."""
    index = [[name, len(data)] for name, data in artifact.files.items()]
    head = json.dumps({"facts": artifact.facts, "files": index}).encode()
    body = b"".join((MAGIC, _LENGTH.pack(len(head)), head, *artifact.files.values()))
    return body + hashlib.sha256(body).digest()


def unpacked(data: bytes) -> Artifact | None:
    """Returns the artifact; None if the bytes are not exactly what packed() returned."""
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if not body.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        return None
    at = len(MAGIC) + _LENGTH.size
    (size,) = _LENGTH.unpack_from(body, len(MAGIC))
    head = json.loads(body[at : at + size])
    at += size
    files = {}
    for name, length in head["files"]:
        files[name] = body[at : at + length]
        at += length
    return Artifact(head["facts"], files)


def read(key: str) -> Artifact | None:
    """Returns the artifact of a key, marked as used now; None if there is none. A damaged one is removed."""
    try:
        path = path_of(key)
        found = unpacked(path.read_bytes())
        if found is not None and key_of(found.facts) == key:
            disk_cache.touch(path)
            return found
        path.unlink()
    except (OSError, ValueError):
        pass
    return None


def write(key: str, artifact: Artifact) -> bool:
    """Keeps an artifact, on disk when this returns. Returns False if the cache cannot be written, which is no error."""
    return _written(path_of, key, "", artifact)


def _written(place: Any, key: str, ending: str, artifact: Artifact) -> bool:
    try:
        path = place(key)
        with replaced(path.with_name(path.name + ending), 0o600, folders=True, durable=True) as file:
            file.write(packed(artifact))
    except OSError as error:
        disk_cache.not_kept("compiled code", error)
        return False
    return True


def remember_failure(key: str, facts: dict[str, Any], why: str) -> None:
    """Has failure_of() return `why` in every process: a compilation that failed fails again until one of its facts changes."""
    _written(path_of, key, FAILED, Artifact({**facts, "failed": why}, {}))


def failure_of(key: str) -> str | None:
    """Returns why the compilation for this key failed before; None: it has not."""
    try:
        path = path_of(key)
        found = unpacked(path.with_name(path.name + FAILED).read_bytes())
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    facts = dict(found.facts)
    why = facts.pop("failed", None)
    return str(why) if why is not None and key_of(facts) == key else None


def forget_failure(key: str) -> None:
    with contextlib.suppress(OSError):
        path = path_of(key)
        path.with_name(path.name + FAILED).unlink()


def entries() -> list[dict[str, Any]]:
    """Returns {"path", "model" (the key), "kind" ("compiled" or "failure"), "bytes", "used_at"} of each file, the least
    recently used first: what disk_cache.entries() returns of models."""
    found = []
    for path in _files():
        with contextlib.suppress(OSError):
            stat = path.stat()
            kind = "failure" if path.name.endswith(FAILED) else "compiled"
            size, used = stat.st_size, stat.st_mtime
            found.append(
                {
                    "path": str(path),
                    "model": path.name.removesuffix(FAILED),
                    "kind": kind,
                    "bytes": size,
                    "used_at": used,
                }
            )
    return sorted(found, key=lambda entry: entry["used_at"])


def _files() -> Iterator[pathlib.Path]:
    try:
        root = folder("artifacts")
    except OSError:
        return
    yield from (path for path in root.glob("*/*") if not path.name.startswith("."))


def cap(most_bytes: int) -> list[dict[str, Any]]:
    """Removes the least recently used files until the rest fits, and what killed processes left; returns what it removed."""
    found = entries()
    total, removed = sum(entry["bytes"] for entry in found), []
    for entry in found:
        if total <= most_bytes:
            break
        with contextlib.suppress(OSError):
            os.unlink(entry["path"])
            total -= entry["bytes"]
            removed.append(entry)
    _sweep()
    if not most_bytes:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder("files"), ignore_errors=True)  # copies, which libraries work with
    return removed


def _sweep(age_s: float = 3600) -> None:
    """Removes unfinished files of processes that were killed while they wrote: an hour is longer than any write."""
    with contextlib.suppress(OSError):  # UntrustedFileError among them
        for path in folder("artifacts").glob("*/.*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - age_s:
                    path.unlink()
