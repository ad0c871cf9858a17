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
from layerzero.host.files import replaced
from layerzero.inspection import explain_call, kernel_rows
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


def contents(doctor: dict[str, Any], imports: bool) -> dict[str, Any]:
    """Returns the archive's files as data, not cleaned: by name without ".json". `imports`: a library may be imported."""
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
        "decisions": _decisions(doctor["devices"]["devices"]) if imports else [],
    }


def _decisions(devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what one call of each operation that is benchmarked would run on each kind of device here, with reasons:
    the first call of its benchmark that can be explained. No kernel runs; the chosen one's library is imported."""
    try:
        from layerzero.bench.operations import all_cases, arguments_of
    except ImportError:
        return []  # without torch, or without the benchmark's calls
    found = []
    for kind in dict.fromkeys(device["platform"] for device in devices):
        seen = set[str]()
        for case in all_cases():
            if case.operation in seen:
                continue
            try:
                given = arguments_of(case.operation, case.line)
                given = {name: value.to(kind) if hasattr(value, "to") else value for name, value in given.items()}
                report = explain_call(case.operation, (), given, None, of_chosen=True)
            except Exception:  # another call of the operation may be explained
                continue
            found.append({"call": case.line, "report": report.to_dict()})
            seen.add(case.operation)
    return found


def _environment(variables: Iterable[str]) -> dict[str, str]:
    """Returns the variables that change what LayerZero, torch and CUDA do."""
    read = ("LAYERZERO_", "CUDA_", "OMP_", "MKL_", "NVIDIA_", "TORCH")
    return {n: _REMOVED if _SECRET.search(n) else os.environ[n] for n in sorted(variables) if n.startswith(read)}


def _distributions() -> dict[str, str]:
    from importlib import metadata

    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def write(path: str | os.PathLike[str], doctor: dict[str, Any], imports: bool) -> list[str]:
    """Writes the archive, readable by its owner alone, and returns the names of its files."""
    clean = Cleaner(dict(os.environ))
    files = {f"{name}.json": json.dumps(clean.data(data), indent=1) for name, data in contents(doctor, imports).items()}
    with replaced(path, 0o600) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return list(files)
