"""A full disk: results stay right, errors are typed, no file is left in half. The limit of a file's size (RLIMIT_FSIZE)
refuses writes as a full disk does; where a small tmpfs can be mounted, that is tried too."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

PACKAGE = Path(lz.__file__).parents[1]

# Each writes one kind of file of LayerZero; a typed error or a warning says that it was not written.
WRITERS = {
    "quarantine and marks": """
@lz.register_kernel("norm.rms", "planted.liar", supported_dtypes=["float32"], priority=100)
def liar(input, weight, eps, weight_offset=None): return input + 1
with lz.shadow(rate=1.0):
    assert torch.allclose(lz.rms_norm(x, w), right)
assert lz.health()["status"]
""",
    "kept inputs": """
@lz.register_kernel("norm.rms", "planted.liar", supported_dtypes=["float32"], priority=100)
def liar(input, weight, eps, weight_offset=None): return input + 1
with lz.shadow(rate=1.0, keep_inputs=folder + "/kept"):
    assert torch.allclose(lz.rms_norm(x, w), right)
""",
    "records": """
from layerzero import perf_records
failed(lambda: perf_records.write(folder + "/prior.records.json", perf_records.read(valid)))
""",
    "weights": """
import pathlib
from layerzero.models import packed_file
failed(lambda: packed_file.write(pathlib.Path(folder) / "w", {"a": torch.zeros(1 << 20, dtype=torch.uint8)}, {}))
""",
    "report": """
with lz.report(folder + "/report.html") as made:
    lz.rms_norm(x, w)
    failed(made.__exit__, None, None, None)
    os._exit(0)
""",
    "bundle": """
from layerzero import cli
assert cli.run(["doctor", "--bundle", folder + "/bundle.zip"]) != 0
""",
    "key": """
from layerzero import cli
assert cli.run(["sign", "--new-key", folder + "/key.pem"]) != 0
""",
    "metrics": """
from layerzero.telemetry import prometheus
failed(lambda: prometheus.write(folder + "/metrics.prom"))
""",
}
HEAD = """
import os, resource, signal, sys, warnings
warnings.simplefilter("ignore")
import layerzero as lz, torch
folder, valid, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
x, w = torch.arange(32, dtype=torch.float32).view(4, 8), torch.full((8,), 2.0)
right = torch.nn.functional.rms_norm(x, (8,), w, 1e-6)
def failed(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return str(error)
    raise AssertionError("it was written")
lz.rms_norm(x.half(), w.half())
if limit >= 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
"""


def run(kind, folder, limit):
    env = {k: v for k, v in os.environ.items() if not k.startswith("LAYERZERO_")}
    env |= {"PYTHONPATH": str(PACKAGE), "LAYERZERO_CACHE_DIR": str(folder)}
    valid = Path(__file__).resolve().parents[1] / "perfdb/records/valid.json"
    code = HEAD + WRITERS[kind]
    command = [sys.executable, "-c", code, str(folder), str(valid), str(limit)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def left(folder):
    """Returns the files with content in a folder, but for locks."""
    return [p.name for p in folder.rglob("*") if p.is_file() and p.stat().st_size and p.suffix != ".lock"]


@pytest.mark.parametrize("limit", [0, 100])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_changes_no_result(tmp_path, kind, limit):
    done = run(kind, tmp_path, limit)
    assert done.returncode == 0, done.stdout + done.stderr
    halves = [name for name in left(tmp_path) if kind != "kept inputs"]
    assert halves == [], done.stdout + done.stderr


def test_a_damaged_write_keeps_the_file_before(tmp_path):
    path = tmp_path / "prior.records.json"
    path.write_text('{"schema_version": "1.0", "records": []}\n')
    done = run("records", tmp_path, 100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(path.read_text())["records"] == [] and left(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_file_system_changes_no_result(tmp_path, kind):
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        filled = mounted / "filled"
        with pytest.raises(OSError), filled.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        done = run(kind, mounted, -1)
        assert done.returncode == 0, done.stdout + done.stderr
        assert kind == "kept inputs" or left(mounted) == ["filled"]
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_the_limit_refuses_writes(tmp_path):
    """The control: without the limit the same writes succeed."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0
    done = run("records", tmp_path, -1)
    assert done.returncode != 0 and "it was written" in done.stderr
    assert left(tmp_path) == ["prior.records.json"]
