"""Runs of bench/serving: two layers of each engine, for the tests on a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

SERVING = Path(__file__).resolve().parents[3] / "bench/serving"
SIZES = ["--layers", "2", "--batch", "1", "8", "--input", "64", "--output", "16", "--rounds", "1"]


def of_engines(library, engines, folder, further=None):
    """Returns the result of SERVING/<library>_backends.py and its part about the engine "layerzero"; fails with its logs.
    further: variables of the environment."""
    out = folder / "result.json"
    command = [
        sys.executable,
        str(SERVING / f"{library}_backends.py"),
        "--out",
        str(out),
        *SIZES,
        "--engines",
        *engines,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | (further or {}))
    logs = "".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    result = json.loads(out.read_text())
    return result, next(one for one in result["engines"] if one["engine"] == "layerzero")
