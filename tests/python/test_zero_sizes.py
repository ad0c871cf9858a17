"""Sizes of zero in every operation: an empty result or a typed error, never the end of the process."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "support" / "zero_sizes.py"


def test_no_operation_ends_the_process_at_a_size_of_zero(tmp_path):
    last = tmp_path / "last"
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    child = subprocess.run([sys.executable, SCRIPT, last], capture_output=True, text=True, env=environment, timeout=900)
    assert child.returncode == 0, f"{last.read_text()}\n{child.stdout[-2000:]}\n{child.stderr[-4000:]}"
    calls = int(child.stdout.split()[0])
    assert calls > 5000
