"""`layerzero doctor --bundle`: one archive for a bug report, without tensors' contents, paths and secrets."""

import getpass
import json
import os
import platform
import re
import socket
import sys
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from layerzero import _layerzero
from layerzero.inspection import kernel_rows
from layerzero.inspection.metrics import metrics
from layerzero.telemetry.health import health

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE|AUTH|_KEY$", re.IGNORECASE)
_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")  # of a URL
_FOLDERS = re.compile(r"(?<![\w.:/])(?:~|[A-Za-z]:)?/(?:[^\s/'\",;:()\[\]{}|]+/)+")  # "/a/b/c" is ".../c"
_REMOVED = "<removed>"


class Cleaner:
    """Replaces secrets, names of user and host, and the folders of paths in data of JSON."""

    def __init__(self, environment: dict[str, str]) -> None:
        secrets = [value for name, value in environment.items() if _SECRET.search(name)]
        with suppress(Exception):
            secrets.append(getpass.getuser())
        secrets.append(socket.gethostname())
        # Short values and words of every text ("root", "1") would remove what the report is about.
        common = {"root", "user", "localhost", "true", "false", "none"}
        known = sorted({s for s in secrets if len(s) >= 4 and s.lower() not in common}, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, known))) if known else None
        self._home = str(Path.home())

    def text(self, value: str) -> str:
        if self._secrets is not None:
            value = self._secrets.sub(_REMOVED, value)
        value = _LOGIN.sub(rf"\1{_REMOVED}@", value)
        if len(self._home) > 1:
            value = value.replace(self._home, "~")
        return _FOLDERS.sub(".../", value)

    def data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        return [self.data(item) for item in value] if isinstance(value, list | tuple) else value


def contents(doctor: dict[str, Any]) -> dict[str, Any]:
    """Returns the archive's files as data, not cleaned: by name without ".json"."""
    return {
        "doctor": doctor,
        "policy": json.loads(_layerzero.policy_text()),
        "environment": _environment(os.environ),
        "system": {
            "platform": platform.platform(),
            "libc": platform.libc_ver(),
            "python": sys.version,
            "distributions": _distributions(),
        },
        "kernels": kernel_rows(),
        "measured": json.loads(_layerzero.measured_calls()),
        "metrics": metrics().to_dict(),
        "health": health(),
    }


def _environment(variables: Iterable[str]) -> dict[str, str]:
    """Returns the variables that change what LayerZero, torch and CUDA do."""
    read = ("LAYERZERO_", "CUDA_", "OMP_", "MKL_", "NVIDIA_", "TORCH")
    return {n: _REMOVED if _SECRET.search(n) else os.environ[n] for n in sorted(variables) if n.startswith(read)}


def _distributions() -> dict[str, str]:
    from importlib import metadata

    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def write(path: str | os.PathLike[str], doctor: dict[str, Any]) -> list[str]:
    """Writes the archive, readable by its owner alone, and returns the names of its files."""
    clean = Cleaner(dict(os.environ))
    files = {f"{name}.json": json.dumps(clean.data(data), indent=1) for name, data in contents(doctor).items()}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return list(files)
