"""The tests of the families with the oldest Transformers that is tested, in a process that has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers.probe import TESTED  # noqa: E402
from layerzero.models.families import FAMILIES  # noqa: E402
from layerzero.models.family_generation import ways_of  # noqa: E402

OLDEST = TESTED[0]
FOLDER = Path(sys.prefix) / f"transformers-{OLDEST}"  # scripts/setup.sh makes it
FILES = [
    "test_families.py",
    "test_block_families.py",
    "test_block_changes.py",
    "test_block_two_stacks.py",
    "test_block_parts.py",
    "test_block_states.py",
    "test_routers.py",
    "test_paged_cache.py",
    *(f"test_kernelize{name}.py" for name in ("", "_changes", "_checks", "_composite", "_generation")),
]
# One that the fused forward takes, one with a mask for each kind of layer, one of two stacks.
SLICE = ["llama", "gpt_oss", "t5"]


def run(*arguments):
    if not FOLDER.is_dir():
        pytest.skip(f"needs requirements/transformers-{OLDEST}.txt in {FOLDER}: make setup")
    path = os.pathsep.join(map(str, (FOLDER, Path(lz.__file__).parents[1])))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    asked = [sys.executable, "-c", "import transformers; print(transformers.__version__)"]
    version = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
    assert version.startswith(f"{OLDEST}.")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.strip().splitlines()[-1]
    return int(summary.split(" passed")[0].split()[-1])


def test_some_families():
    ran = run("test_families.py", "-k", " or ".join(SLICE))
    ways = [way for family in FAMILIES if family.name in SLICE for way in ways_of(family)]
    assert ran == 6 * len(SLICE) + len(ways)  # six tests of each family, and each way to generate


def test_a_softcap_that_the_model_leaves_out():
    """This version runs Gemma 2 over SDPA, which drops its soft-cap: the program has to drop it too."""
    assert run("test_block_families.py", "-k", "one_program and gemma2") == 2


@pytest.mark.full
def test_all_families():
    assert run(*FILES) > 300
