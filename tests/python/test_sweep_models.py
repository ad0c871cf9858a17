"""The sweep over all model classes of Transformers: none may compute something else once it is kernelized."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]


def sweep(*arguments):
    return subprocess.run(
        [sys.executable, "scripts/sweep_models.py", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_a_class_of_each_verdict(tmp_path):
    rows = tmp_path / "rows.jsonl"
    done = sweep("BertModel", "TimmBackbone", "--keep", str(rows))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for line in rows.read_text().splitlines():
        found |= json.loads(line)
    assert {row["verdict"] for row in found["BertModel"].values()} == {"right"}
    assert found["BertModel"].keys() == {"sdpa", "eager"}
    assert all(0 < row["error"] < 1e-4 and row["calls"] > 10 for row in found["BertModel"].values())
    assert all(row["why"] for row in found["TimmBackbone"].values() if row["verdict"] == "not built")


@pytest.mark.full
def test_no_class_is_wrong():
    done = sweep("--fresh")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
