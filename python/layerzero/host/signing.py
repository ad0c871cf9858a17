"""Signatures of files, for every kind of file that decides which code runs. A file has a role: "plugin", "descriptor",
"records" (measured records and databases from elsewhere) or "table" (dispatch tables and lock files). The policy's
`security.require_signatures` says which roles need a signature, `security.trusted_keys` whose.

    content = signing.read(path, "table")     # of a file that nobody else can change, signed if the policy wants it
    signing.sign(path, key)                   # writes path.sig; key: the file of a private key
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError
from layerzero.host.files import replaced

SUFFIX = ".sig"
_NAMES = {"plugin": "plugin", "descriptor": "descriptor", "records": "file of records", "table": "table"}


def read(path: str | os.PathLike[str], role: str) -> bytes:
    """Returns the bytes of a file. UntrustedFileError: another user can change it, or the policy requires a signature of
    files of this role and `path`.sig has none of these bytes by a trusted key; NotInstalledError: it cannot be read."""
    content = _layerzero.read_trusted(os.fspath(path), _NAMES[role])
    check(path, content, role)
    return content


def check(path: str | os.PathLike[str], content: bytes, role: str) -> None:
    """Raises UntrustedFileError if the policy requires a signature of files of this role and these bytes have none. `path` says
    where the signature is. Use the same bytes afterwards: the file may change."""
    _layerzero.check_signed(os.fspath(path), content, role)


@contextlib.contextmanager
def checked(path: str | os.PathLike[str], role: str) -> Iterator[Path]:
    """Yields the path of a file for readers that need one, as SQLite: the file itself, or a private copy of the bytes whose
    signature was checked. Errors are those of read()."""
    if not is_required(role):
        _layerzero.check_trusted(os.fspath(path))
        yield Path(path)
        return
    content = read(path, role)
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="layerzero-"))
    try:
        copy = folder / Path(path).name
        copy.write_bytes(content)
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_required(role: str) -> bool:
    """True if the policy requires signatures of files of this role."""
    required = json.loads(_layerzero.policy_text())["keys"]["security.require_signatures"]["value"]
    return required == "all" or (required == "plugins" and role == "plugin")


def verify(path: str | os.PathLike[str]) -> str:
    """Returns the public key of security.trusted_keys whose signature in `path`.sig is good, whatever the policy requires;
    raises UntrustedFileError if there is none."""
    return _layerzero.verify_signed(os.fspath(path), _layerzero.read_trusted(os.fspath(path), "file"))


def sign(path: str | os.PathLike[str], key: str | os.PathLike[str]) -> dict[str, Any]:
    """Writes `path`.sig by the private key in the file `key`, which only its owner may read. Returns {"path", "signature",
    "key"}: both files and the public key."""
    target, pem = Path(path), _private_key(Path(key))
    try:
        text = _layerzero.sign(target.read_bytes(), pem, os.fspath(key))
        signature = target.with_name(target.name + SUFFIX)
        with replaced(signature) as file:
            file.write(text.encode())
    except OSError as error:
        raise InvalidRequestError(
            "FILE", "a file in a folder that can be written", f"{target} ({error.strerror})"
        ) from error
    return {"path": str(target), "signature": str(signature), "key": json.loads(text)["key"]}


def _private_key(path: Path) -> bytes:
    content = _layerzero.read_trusted(str(path), "private key")
    if path.stat().st_mode & 0o077:
        raise InvalidRequestError(
            "--key", "a file that only its owner can read", str(path), f"run `chmod 600 '{path}'`"
        )
    return content
