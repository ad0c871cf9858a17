"""The tests that need a package which changes every import of Transformers, in a process that has these packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402

NEIGHBOURS = Path(sys.prefix) / "neighbours"  # scripts/setup.sh puts them there
FILES = [f"test_kernelize{name}.py" for name in ("", "_quantized", "_quantized_changes", "_generation", "_hub")]
CHOSEN = "torchao or quanto or quantised_cache or kernelize_hub or logits_and_report"


def test_with_the_neighbours():
    if not NEIGHBOURS.is_dir():
        pytest.skip("needs requirements/neighbours.txt in .venv/neighbours: make setup")
    path = os.pathsep.join(map(str, (NEIGHBOURS, Path(lz.__file__).parents[1])))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES, "-k", CHOSEN]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.strip().splitlines()[-1]
    assert "32 passed" in summary and "skipped" not in summary, summary
