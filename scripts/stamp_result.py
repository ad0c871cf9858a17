"""Reads a benchmark's JSON on standard input and writes it with machine, commit and versions added."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from machine import machine


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "transformers", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def measured_on() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {"machine": machine(), "load": round(os.getloadavg()[0], 2), "commit": commit, "versions": versions()}


if __name__ == "__main__":
    json.dump({"measured_on": measured_on(), **json.load(sys.stdin)}, sys.stdout, indent=1)
    print()
