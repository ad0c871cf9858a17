"""The package's types as users' checkers see them: stubs and a program that uses them pass in strict mode."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(lz.__file__).parent
PROGRAM = ROOT / "tests/python/support/typed_use.py"
STUBS = [PACKAGE / "_operations.pyi", PACKAGE / "_layerzero.pyi"]
WRONG = """
import layerzero as lz
import torch

lz.rms_norm(torch.ones(2), torch.ones(2), epsilon=1e-5)
lz.attention(torch.ones(2), torch.ones(2), torch.ones(2), layout="SBHD")
lz.rms_nrm(torch.ones(2), torch.ones(2))
lz.kernelize(torch.nn.Linear(2, 2)).nothing
lz.metrics().prometheus(1)
"""


def mypy(files, folder):
    pytest.importorskip("mypy")
    # As for an installed package: its stubs and annotations are read, its own code is not judged.
    options = [
        "--strict",
        "--follow-imports=silent",
        f"--cache-dir={folder.parent / 'mypy'}",
        "--config-file",
        os.devnull,
    ]
    env = os.environ | {"MYPYPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-m", "mypy", *options, *map(str, files)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def basedpyright(files, folder):
    program = shutil.which("basedpyright", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs basedpyright")
    # `include` with the folder's own copies: the checker follows no links out of its project.
    settings = {
        "include": [path.name for path in files],
        "typeCheckingMode": "strict",
        "extraPaths": [str(PACKAGE.parent)],
        "pythonVersion": "3.10",
    }
    for path in files:
        if path.parent != folder:
            shutil.copy(path, folder)
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [program, "-p", str(folder), "--pythonpath", sys.executable]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


CHECKERS = pytest.mark.parametrize("check", [mypy, basedpyright])


@CHECKERS
def test_stubs_and_a_program_are_accepted_in_strict_mode(check, tmp_path):
    done = check([PROGRAM, *STUBS], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@CHECKERS
def test_a_wrong_program_is_found(check, tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    done = check([tmp_path / "wrong.py"], tmp_path)
    assert done.returncode == 1 and all(f"wrong.py:{line}" in done.stdout for line in (5, 6, 7, 8, 9)), done.stdout


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()
