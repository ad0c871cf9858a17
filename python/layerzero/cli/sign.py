"""layerzero sign."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from layerzero import _layerzero
from layerzero.cli._output import Json, print_json
from layerzero.errors import InvalidRequestError
from layerzero.host import signing

HOW = "layerzero sign FILE... --key KEY, layerzero sign FILE... --check, or layerzero sign --new-key KEY"


def command(
    paths: Annotated[list[Path] | None, typer.Argument(help="files to sign; each gets FILE.sig")] = None,
    key: Annotated[Path | None, typer.Option(help="the file of the private key, in PEM")] = None,
    new_key: Annotated[Path | None, typer.Option(help="make a private key in this file")] = None,
    check: Annotated[bool, typer.Option(help="check the signatures with security.trusted_keys instead")] = False,
    json: Json = False,
) -> None:
    """Signs files with Ed25519, or checks signatures.

    Plugins, descriptors, measured records and tables need a signature if the policy sets `security.require_signatures`.
    --new-key makes a key and prints its public key, which goes into `security.trusted_keys` where the files are used.
    Only this user may read the private key. `openssl genpkey -algorithm ed25519` makes such keys too.
    """
    if [new_key is not None, key is not None, check].count(True) != 1 or bool(paths) == (new_key is not None):
        raise InvalidRequestError("sign", HOW, "other arguments", "see `layerzero sign --help`")
    done: list[dict[str, Any]]
    if new_key is not None:
        done = [{"path": None, "signature": None, **_make(new_key)}]
    elif key is not None:
        done = [signing.sign(path, key) for path in paths or ()]
    else:
        done = [_checked(path) for path in paths or ()]
    if json:
        print_json({"files": done})
        return
    for one in done:
        if one["path"] is None:
            print(f"public key: {one['key']}")
        else:
            print(f"{one['path']}: signed by {one['key']}" if check else one["signature"])


def _checked(path: Path) -> dict[str, Any]:
    key = signing.verify(path)
    return {"path": str(path), "signature": f"{path}{signing.SUFFIX}", "key": key}


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
