"""The tests of the families with each older Transformers that is tested, in a process that has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.bench.family_generation import ways_of  # noqa: E402
from layerzero.integrations.transformers.probe import TESTED  # noqa: E402
from layerzero.models.families import FAMILIES  # noqa: E402

OLDER = TESTED[:-1]
OLDEST = TESTED[0]
FILES = [
    "test_families.py",
    "test_block_families.py",
    "test_block_changes.py",
    "test_block_two_stacks.py",
    "test_block_parts.py",
    "test_block_states.py",
    "test_routers.py",
    "test_paged_cache.py",
    *(
        f"test_kernelize{name}.py"
        for name in ("", "_arguments", "_report", "_changes", "_checks", "_composite", "_generation")
    ),
]
# One that the fused forward takes, one with a mask for each kind of layer, one of two stacks.
SLICE = ["llama", "gpt_oss", "t5"]


def run(version, *arguments):
    folder = Path(sys.prefix) / f"transformers-{version}"  # scripts/setup.sh makes it
    if not folder.is_dir():
        pytest.skip(f"needs requirements/transformers-{version}.txt in {folder}: make setup")
    path = os.pathsep.join(map(str, (folder, Path(lz.__file__).parents[1])))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    asked = [sys.executable, "-c", "import transformers; print(transformers.__version__)"]
    found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
    assert found.startswith(f"{version}.")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.strip().splitlines()[-1]
    return int(summary.split(" passed")[0].split()[-1])


@pytest.mark.parametrize("version", OLDER)
def test_some_families(version):
    ran = run(version, "test_families.py", "-k", " or ".join(SLICE))
    ways = [way for family in FAMILIES if family.name in SLICE for way in ways_of(family)]
    assert ran == 6 * len(SLICE) + len(ways)  # six tests of each family, and each way to generate


def test_a_softcap_that_the_model_leaves_out():
    """This version runs Gemma 2 over SDPA, which drops its soft-cap: the program has to drop it too."""
    assert run(OLDEST, "test_block_families.py", "-k", "one_program and gemma2") == 2


@pytest.mark.parametrize("version", OLDER)
def test_arguments_by_their_names_of_that_time(version):
    assert run(version, "test_kernelize_arguments.py", "-k", "positional or the_result or any_name") >= 4


def test_layers_that_have_tables_of_positions():
    """The last version whose GPT-J and CodeGen have them."""
    chosen = "tables_that and gptj or table_of_one_layer and True and gptj"
    assert run(OLDER[-1], "test_block_found.py", "-k", chosen) >= 3


@pytest.mark.full
@pytest.mark.parametrize("version", OLDER)
def test_all_families(version):
    assert run(version, *FILES) > 300
