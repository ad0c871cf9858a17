"""layerzero sign."""

import os
from json import loads
from pathlib import Path
from typing import Annotated

import typer

from layerzero import _layerzero
from layerzero.cli._output import Json, print_json
from layerzero.errors import InvalidRequestError
from layerzero.host.files import replaced

HOW = "layerzero sign FILE... --key KEY, or layerzero sign --new-key KEY"


def command(
    paths: Annotated[list[Path] | None, typer.Argument(help="files to sign; each gets FILE.sig")] = None,
    key: Annotated[Path | None, typer.Option(help="file of the private key, in PEM")] = None,
    new_key: Annotated[Path | None, typer.Option(help="make a private key in this file")] = None,
    json: Json = False,
) -> None:
    """Signs plugins and descriptors with Ed25519, for `security.require_signatures`.

    --new-key makes a key and prints its public key, which goes into `security.trusted_keys` where the files are used. Only
    this user may read the private key. `openssl genpkey -algorithm ed25519` makes such keys too.
    """
    if (new_key is None) == (key is None) or bool(paths) != (key is not None):
        raise InvalidRequestError("sign", HOW, "other arguments", "see `layerzero sign --help`")
    done = (
        [{"path": None, "signature": None, **_make(new_key)}]
        if new_key
        else [_sign(p, _read(key)) for p in paths or ()]
    )
    if json:
        print_json({"files": done})
        return
    for one in done:
        print(f"{one['signature']}" if one["path"] else f"public key: {one['key']}")


def _make(path: Path) -> dict[str, str]:
    pem, public = _layerzero.new_key()
    made = False
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        made = True
        with os.fdopen(descriptor, "w") as file:
            file.write(pem)
    except OSError as error:
        if made:
            path.unlink(missing_ok=True)
        raise InvalidRequestError("--new-key", "a file that can be made", f"{path} ({error.strerror})") from error
    return {"key": public}


def _read(path: Path | None) -> tuple[Path, bytes]:
    assert path is not None
    content = _layerzero.read_trusted(str(path), "private key")
    if path.stat().st_mode & 0o077:
        raise InvalidRequestError(
            "--key", "a file that only its owner can read", str(path), f"run `chmod 600 '{path}'`"
        )
    return path, content


def _sign(path: Path, key: tuple[Path, bytes]) -> dict[str, str]:
    try:
        text = _layerzero.sign(path.read_bytes(), key[1], str(key[0]))
        signature = path.with_name(f"{path.name}.sig")
        with replaced(signature) as file:
            file.write(text.encode())
    except OSError as error:
        raise InvalidRequestError(
            "FILE", "a file in a folder that can be written", f"{path} ({error.strerror})"
        ) from error
    return {"path": str(path), "signature": str(signature), "key": loads(text)["key"]}
