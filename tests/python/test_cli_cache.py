"""The cache folder: where it is, and commands that list and clear it without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

pytest.importorskip("typer")
PACKAGE = Path(lz.__file__).parent.parent
COMMAND = """
import sys
from layerzero import cli
code = cli.run(sys.argv[1:])
assert "torch" not in sys.modules, "torch was imported"
sys.exit(code)
"""


def run(*arguments, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LAYERZERO_", "XDG_"))}
    command = [sys.executable, "-c", COMMAND, *arguments]
    env |= {"PYTHONPATH": str(PACKAGE)} | variables
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments", [["cache", "list"], ["cache", "cap", "1GiB"], ["cache", "clear"], ["list", "rms_norm"]]
)
def test_no_torch_for_a_folder(arguments, tmp_path):
    done = run(*arguments, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_where_it_is(tmp_path):
    def folder(**variables):
        return json.loads(run("cache", "list", "--json", **variables).stdout)["folder"]

    home = {"HOME": str(tmp_path / "home")}
    (tmp_path / "file").mkdir()
    (tmp_path / "file/layerzero.yaml").write_text(f"version: 1\ncache_dir: {tmp_path}/by-policy\n")
    policy = {"LAYERZERO_CONFIG": str(tmp_path / "file/layerzero.yaml")}
    caches = {"XDG_CACHE_HOME": str(tmp_path / "caches")}
    assert folder(**home) == f"{tmp_path}/home/.cache/layerzero"
    assert folder(**home, **caches) == f"{tmp_path}/caches/layerzero"
    assert folder(**home, XDG_CACHE_HOME="relative") == f"{tmp_path}/home/.cache/layerzero"
    assert folder(**home, **caches, **policy) == f"{tmp_path}/by-policy"
    assert folder(**home, **caches, **policy, LAYERZERO_CACHE_DIR=str(tmp_path)) == str(tmp_path)


def test_a_wrong_size_is_refused_at_once():
    done = run("cache", "cap", "1X")
    assert done.returncode == 2 and "1X" in done.stderr
