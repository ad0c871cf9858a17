"""`import layerzero` is quick and imports neither torch nor any kernel library."""

import os
import subprocess
import sys
from pathlib import Path

import layerzero as lz

PACKAGE = Path(lz.__file__).parent.parent  # not resolved: a staged package is made of links
LIMIT_MS = 250  # the bar is 60 on a quiet machine; this one is passed only by an import of something heavy
FOREIGN = (
    "torch",
    "numpy",
    "flash_attn",
    "flash_attn_interface",
    "flashinfer",
    "transformers",
    "rich",
    "typer",
    "yaml",
)


def run(*arguments):
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, check=True, timeout=120
    )


def milliseconds(before):
    """Processor time of the import, the least of five: other work on the machine is not counted.

    Nor is a collection of all of torch's objects (160 ms) that may fall due in it.
    """
    code = f"import gc, time, {before}\ngc.disable()\nt = time.process_time()\nimport layerzero\nprint(time.process_time() - t)"
    return min(float(run("-c", code).stdout) for _ in range(5)) * 1e3


def test_time_of_import():
    assert milliseconds("sys") <= LIMIT_MS


def test_time_of_import_beyond_torch():
    assert milliseconds("torch") <= LIMIT_MS


def test_nothing_foreign_is_imported():
    code = f"import layerzero, sys; print([m for m in {FOREIGN!r} if m in sys.modules])"
    assert run("-c", code).stdout.strip() == "[]"


def test_attaching_imports_no_compiler_and_no_kernel_library():
    names = (*FOREIGN[2:], "torch._dynamo", "torch._inductor")
    before = f"import torch, sys; a = {{m for m in {names!r} if m in sys.modules}}\n"
    code = before + f"import layerzero\nprint([m for m in {names!r} if m in sys.modules and m not in a])"
    assert run("-c", code).stdout.strip() == "[]"


def test_torch_imported_later_is_attached():
    code = """
import importlib.util, sys
import layerzero as lz
importlib.util.find_spec("torch")
import torch
from layerzero.torch import attach
assert attach.attached()
assert not any(getattr(f, "name", None) == "torch" for f in sys.meta_path)
print(lz.rms_norm(torch.ones(2, 8), None).shape)
"""
    assert "2, 8" in run("-c", code).stdout
