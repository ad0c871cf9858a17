"""The tests of SGLang's plugin with the real SGLang on a CPU, in processes that have it. support/sglang_on_cpu replaces Triton
and sgl_kernel, which SGLang imports there and does not call."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

FOLDERS = [
    Path(sys.prefix) / name for name in ("sglang", "diffusers")
]  # scripts/setup.sh fills them; Pillow is in the second
HERE = Path(__file__).parent
FILES = ["test_sglang_classes.py", "test_sglang.py", "test_sglang_signatures.py"]

pytestmark = pytest.mark.skipif(
    not all(folder.is_dir() for folder in FOLDERS),
    reason="needs requirements/sglang.txt in .venv/sglang and requirements/diffusers.txt in .venv/diffusers: make setup",
)


def run(arguments, limit, **environment):
    paths = [*FOLDERS, HERE / "support/sglang_on_cpu", HERE / "support", Path(lz.__file__).parents[1]]
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)), "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=HERE, env=os.environ | environment, capture_output=True, text=True,
        timeout=limit,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done


def test_with_sglang_s_own_classes():
    done = run(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *FILES], 600)
    summary = done.stdout.strip().splitlines()[-1]
    assert "passed" in summary and "skipped" not in summary, done.stdout[-2000:]


@pytest.mark.full  # each engine imports SGLang in three processes
def test_the_engine_gives_the_tokens_of_torch_native(tmp_path):
    found, log = {}, {}
    for backend in ("layerzero", "torch_native"):
        done = run([HERE / "support/sglang_engine.py", tmp_path, backend], 900, LAYERZERO_VERBOSE="1")
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
        found[backend], log[backend] = json.loads(line.removeprefix("TOKENS ")), done.stdout + done.stderr
    assert found["layerzero"] == found["torch_native"]
    assert found["layerzero"]["cached prefixes"] == [0, 16, 32]  # pages of 16 tokens
    for call in ("prefill.ragged", "prefill.paged", "decode.block_table"):
        assert f"attention.gqa.{call}: " in log["layerzero"] and f"attention.gqa.{call}: " not in log["torch_native"]
