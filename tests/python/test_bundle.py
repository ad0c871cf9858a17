"""layerzero doctor --bundle: an archive that has what a bug report needs, and nothing that was planted."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
from layerzero.telemetry.bundle import Cleaner  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent
SECRET, FOLDER = "hunter2-very-secret", "confidential-project"


def test_the_archive_has_the_facts_and_no_secret(tmp_path):
    folder = tmp_path / FOLDER / "caches"
    folder.mkdir(parents=True)
    config = tmp_path / FOLDER / "layerzero.yaml"
    config.write_text(
        f"version: 1\ncache_dir: {folder}\nrules:\n  - match: {{operation: norm.*}}\n    prefer: [torch]\n"
    )
    planted = {
        "HF_TOKEN": SECRET,
        "LAYERZERO_CONFIG": str(config),
        "LAYERZERO_CACHE_DIR": f"{folder}/{SECRET}",
        "LAYERZERO_METRICS_FILE": f"{folder}/metrics.prom",
        "CUDA_API_KEY": "another-planted-value",
    }
    env = (
        {k: v for k, v in os.environ.items() if not k.startswith("LAYERZERO_")} | {"PYTHONPATH": str(PACKAGE)} | planted
    )
    archive = tmp_path / "bundle.zip"
    command = [sys.executable, "-m", "layerzero", "doctor", "--bundle", str(archive)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    assert archive.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(archive) as opened:
        texts = {name: opened.read(name).decode() for name in opened.namelist()}
    for name, text in texts.items():
        for word in (SECRET, FOLDER, "another-planted-value", str(tmp_path)):
            assert word not in text, (name, word)
    data = {name.removesuffix(".json"): json.loads(text) for name, text in texts.items()}
    assert data["doctor"]["layerzero"]["version"] == lz.__version__
    assert data["policy"]["keys"]["rules"]["value"] and data["policy"]["keys"]["cache_dir"]["value"].startswith(".../")
    assert data["environment"]["CUDA_API_KEY"] == "<removed>"
    assert len(data["kernels"]) > 100 and data["system"]["distributions"]["torch"]
    assert {"metrics", "measured", "health"} <= set(data)
    decisions = {decision["report"]["operation"]: decision for decision in data["decisions"]}
    assert len(decisions) >= 16 and decisions["norm.rms"]["call"].startswith("input=")
    assert len(decisions["norm.rms"]["report"]["candidates"]) > 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/srv/models/acme/weights.bin", ".../weights.bin"),
        ("cannot read '/srv/a/b.yaml': no such file", "cannot read '.../b.yaml': no such file"),
        ("https://me:pass@index.example/simple", "https://<removed>@index.example/simple"),
        ("a value of my-token-1234 here", "a value of <removed> here"),
        ("rms_norm 3/4 of calls, float32[4,8]", "rms_norm 3/4 of calls, float32[4,8]"),
        ("ops/norm/rms.h", "ops/norm/rms.h"),
        ("", ""),
    ],
)
def test_cleaning(text, wanted):
    assert Cleaner({"MY_TOKEN": "my-token-1234", "PATH": "rms_norm"}).text(text) == wanted


def test_keys_and_nested_values_are_cleaned():
    cleaner = Cleaner({"DB_PASSWORD": "swordfish!"})
    assert cleaner.data({"/srv/a/b": ["swordfish!", 3, None, ("x", True)]}) == {
        ".../b": ["<removed>", 3, None, ["x", True]]
    }
