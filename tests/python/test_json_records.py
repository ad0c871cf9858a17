"""log_json: one record a line, with the reasons, and not too many of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")
jsonschema = pytest.importorskip("jsonschema")

PACKAGE = Path(lz.__file__).parent.parent
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "schemas/log.schema.json").read_text())
HEAD = "import torch, layerzero as lz\nx, w = torch.ones(4, 8), torch.ones(8)\n"


def records(code, **variables):
    variables = {"LAYERZERO_VERBOSE": "1", "LAYERZERO_LOG_JSON": "1", **variables}  # proves: log_json
    env = os.environ | {"PYTHONPATH": str(PACKAGE)} | variables
    done = subprocess.run([sys.executable, "-c", HEAD + code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stderr.splitlines()]
    for record in found:
        jsonschema.validate(record, SCHEMA)
    return found


def test_a_selection_with_its_reasons():
    (record,) = records("lz.rms_norm(x, w); lz.rms_norm(x, w)")
    assert record["event"] == "selection" and record["operation"] == "rms_norm"
    assert record["kernel_id"] == "hwy.norm.rms" and record["operation_id"] == "norm.rms"
    assert record["inputs"] == "float32[4,8] float32[8]" and record["device"] == "cpu" and record["us"] > 0
    lost = {row["kernel_id"]: row for row in record["lost"]}
    assert lost["ref.norm.rms"]["codes"] == [] and "reference" in lost["ref.norm.rms"]["why"]
    assert "PLATFORM_MISMATCH" in lost["cuda.norm.rms"]["codes"] and "hwy.norm.rms" not in lost


def test_only_selections_that_the_policy_logs():
    assert records("lz.rms_norm(x, w)", LAYERZERO_VERBOSE="0") == []
    code = "with lz.policy(log_selections=True): lz.rms_norm(x, w)"
    assert [r["operation"] for r in records("lz.softmax(x); " + "\n" + code, LAYERZERO_VERBOSE="0")] == ["rms_norm"]


def test_a_failure_is_a_record():
    code = """
@lz.register_kernel("norm.rms", "tests.json.fails", supported_dtypes=["float32"], priority=100)
def fails(input, weight, eps, weight_offset):
    raise ValueError("planted")
lz.rms_norm(x, w)
lz.rms_norm(x, w)
"""
    found = records(code, LAYERZERO_VERBOSE="0")
    assert [(r["event"], r["operation"], r["kernel_id"]) for r in found] == [
        ("failure", "rms_norm", "tests.json.fails")
    ]
    assert "planted" in found[0]["message"]


def test_logging_of_the_program_gets_the_same_text():
    (record,) = records(
        "import logging, sys\nlogging.basicConfig(level=logging.INFO, format='%(message)s')\nlz.rms_norm(x, w)"
    )
    assert record["event"] == "selection"


def test_the_rate_is_limited_and_says_so():
    code = """
from layerzero.telemetry import exports, records
import time
for n in range(1000):
    lz._layerzero.invalidate()
    lz.rms_norm(x, w)
time.sleep(0.1)
lz._layerzero.invalidate()
lz.rms_norm(x, w)
"""
    found = records(code)
    assert 100 <= len(found) < 1001
    assert len(found) + sum(r.get("suppressed", 0) for r in found) == 1001


def test_the_same_process_goes_back_to_text(capsys, caplog):
    x, w = torch.ones(4, 8), torch.ones(8)
    lz.configure(log_json=True, log_selections=True)
    try:
        lz.configure(log_json=False)
        lz._layerzero.invalidate()
        lz.rms_norm(x, w)
    finally:
        lz.configure(log_json=False, log_selections=False)
    lines = capsys.readouterr().err.splitlines() or [f"layerzero: {m}" for m in caplog.messages]  # if logging is set up
    assert lines[-1] == "layerzero: norm.rms: hwy.norm.rms"
