"""Descriptors of other packages and the policy's `security.require_signatures`: read, checked, and checked again when the
policy changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from layerzero import _layerzero
from layerzero.errors import ConfigError, UntrustedFileError
from layerzero.host import signing

ROLE = "descriptor"


class Outside(NamedTuple):
    """A descriptor of another package, as it was read; of one that a function returned, `path` is None."""

    descriptor: dict[str, Any]
    path: str | None
    content: bytes

    def why_not(self) -> str:
        """Returns why the policy in force does not let its kernels be used, or ""."""
        try:
            if self.path is not None:
                signing.check(self.path, self.content, ROLE)
            elif required():
                raise _unsigned(self.descriptor.get("backend", "?"))
        except UntrustedFileError as error:
            return str(error)
        return ""


def required() -> bool:
    """True if descriptors of other packages need a signature."""
    return signing.is_required(ROLE)


def read(path: Path) -> Outside:
    """Returns the descriptor in a file that no other user can change, whether or not it is signed."""
    content = _layerzero.read_trusted(str(path), "descriptor")
    try:
        descriptor = json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), "JSON that is not nested deeply, with each key once", str(error)) from error
    return Outside(_from_outside(descriptor), str(path), content)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key twice among {', '.join(sorted(found))[:200]}")
    return found


def call(name: str, function: Callable[[], Callable[[], Any]]) -> Outside | None:
    """Returns the descriptor that an entry point's function returns, None if it returns none. Code has no signature: where
    one is required, nothing is imported."""
    if required():
        raise _unsigned(name)
    found = function()()
    if found is None:
        return None
    return Outside(_from_outside(found), None, b"") if isinstance(found, dict) else read(Path(found))


def _unsigned(name: str) -> UntrustedFileError:
    return UntrustedFileError(
        name,
        "a capabilities.json that is signed, since security.require_signatures is all",
        "an entry point that runs code",
        'let the entry point name the file ("package:capabilities.json"), and sign it with `layerzero sign`',
    )


def _from_outside(descriptor: Any) -> dict[str, Any]:
    if not isinstance(descriptor, dict):
        raise ConfigError("descriptor", "an object", type(descriptor).__name__)
    return {**descriptor, "plugin_origin": "entry_point"}
