"""Code in another process, with folders of its own, also for the cache, and nothing of this process's LAYERZERO_ variables."""

import os
import subprocess
import sys
from pathlib import Path

import layerzero

PACKAGE = Path(layerzero.__file__).parent.parent  # not resolved: a staged package is made of links


def run(code, folder, **environment):
    """Runs `code` in `folder`, whose modules it can import. Returns the finished process with its output as text."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
    env |= {
        "PYTHONPATH": os.pathsep.join((str(folder), str(PACKAGE))),
        "LAYERZERO_CACHE_DIR": f"{folder}-cache",
    }
    env |= environment
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=folder, capture_output=True, text=True, timeout=300
    )
