"""Packages that parts of LayerZero need and that are missing: one error with one command, never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.host import optional  # noqa: E402
from layerzero.host.optional import PACKAGES, install_command, meets  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(lz.__file__).parent.parent


def without(names, code, *arguments):
    """Runs Python code in a process in which these packages are not installed."""
    absent = f"import sys; sys.modules.update(dict.fromkeys({list(names)!r}))\n"
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-c", absent + code, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_extras_have_the_tested_ranges():
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, package in PACKAGES.items():
        assert package.extra is None or f"{name}{package.tested}" in extras[package.extra]
    assert {line for lines in extras.values() for line in lines} == {
        f"{name}{package.tested}" for name, package in PACKAGES.items() if package.extra
    }
    for name in PACKAGES:  # what the tests run with is in the range
        version = optional.version_of(name)
        assert version is None or meets(version, PACKAGES[name].tested), name


@pytest.mark.parametrize(
    ("version", "fits"),
    [("5.17", True), ("5.24.3", True), ("5.16.9", False), ("5.25.0.dev0", False), ("5.24.1+local", True), ("6", False)],
)
def test_ranges(version, fits):
    assert meets(version, ">=5.17,<5.25") == fits


def test_one_command_installs_all_that_is_missing():
    assert install_command("transformers", "accelerate") == 'pip install "layerzero-kernels[transformers]"'
    assert install_command("numpy") == 'pip install "numpy>=1.26,<3"'


LAZY = """
import importlib, layerzero as lz
for name, module in lz._LAZY.items():
    try:
        found = getattr(lz, name)
        if name in ("kernelize", "unkernelize"):  # they ask for what serves a model once they have one
            found(None)
    except lz.NotInstalledError as error:
        print(name, error.fix)
"""


@pytest.mark.parametrize(
    "absent", [["transformers"], ["torch"], ["torch", "transformers", "accelerate", "gguf"]], ids=str
)
def test_lazy_names_say_what_to_install(absent):
    done = without(absent, LAZY)
    assert done.stderr == ""
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert {"kernelize", "unkernelize", "dry_run", "compile", "PagedCache"} <= set(said)
    assert all(fix.startswith('pip install "layerzero-kernels[') for fix in said.values())


COMMAND = "import sys; from layerzero import cli; sys.exit(cli.run(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("absent", "arguments"),
    [
        ("transformers", ["generate", "--prompt", "hi"]),
        ("torch", ["generate", "--prompt", "hi"]),
        ("transformers", ["demo"]),
        ("transformers", ["bench", "models"]),
        ("transformers", ["bench", "e2e"]),
        ("torch", ["bench", "host"]),
        ("torch", ["bench", "ops"]),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_commands_say_what_to_install(absent, arguments):
    done = without([absent], COMMAND, *arguments)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("layerzero: ") and 'pip install "layerzero-kernels[' in line


def test_questions_need_no_torch():
    done = without(["torch"], COMMAND, "which", "rms_norm", "--input", "f32[2,8]", "--weight", "f32[8]")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "hwy.norm.rms", "")


def test_a_gguf_file_wants_its_readers(tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    for absent in (["accelerate"], ["gguf"], ["gguf", "accelerate"]):
        done = without(absent, COMMAND, "generate", "--model", str(path), "--prompt", "hi")
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        line = done.stderr.splitlines()[-1]
        assert 'pip install "layerzero-kernels[transformers]"' in line and all(name in line for name in absent)


def test_a_version_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr(optional, "version_of", lambda name: "4.40.0")
    error = ImportError("cannot import name 'AttentionMaskInterface'", name="transformers")
    found = optional.as_not_installed(error, "layerzero.kernelize")
    assert isinstance(found, lz.NotInstalledError) and "4.40.0" in str(found) and ">=5.17" in found.wanted
    assert optional.as_not_installed(ImportError("no", name="layerzero._nothing"), "x") is None
