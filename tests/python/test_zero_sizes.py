"""Sizes of zero in every operation: an empty result or a typed error, never the end of the process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")
from operation_cases import NAMES, arguments_of, lines  # noqa: E402
from zero_sizes import without  # noqa: E402

SCRIPT = Path(__file__).parent / "support" / "zero_sizes.py"


def test_no_operation_ends_the_process_at_a_size_of_zero(tmp_path):
    last = tmp_path / "last"
    environment = os.environ | {"PYTHONFAULTHANDLER": "1"}
    child = subprocess.run([sys.executable, SCRIPT, last], capture_output=True, text=True, env=environment, timeout=900)
    assert child.returncode == 0, f"{last.read_text()}\n{child.stdout[-2000:]}\n{child.stderr[-4000:]}"
    calls = int(child.stdout.split()[0])
    assert calls > 5000


LIBRARIES = ("flash_attn", "flash_attn_3", "vllm_fa2", "vllm_fa3", "flash_mla", "vllm_flash_mla", "flashinfer")


@pytest.mark.parametrize("name", [n for n in NAMES if "attention" in n or n.startswith("mla")])
def test_no_attention_row_of_a_library_admits_an_empty_call(name):
    """They divide by numbers of heads, keys and tiles on the host."""
    rows, admitted, asked = {k.kernel_id for k in lz.list_kernels(name) if k.backend in LIBRARIES}, set(), 0
    for line in lines(name):
        for size in {s for sizes in re.findall(r"=\w+\[([\d,]+)\]", line) for s in sizes.split(",")}:
            try:
                arguments = arguments_of(name, without(line, size))
                report = lz.explain(name, device="h200", **arguments)
            except lz.LayerZeroError:
                continue
            taken = [c["kernel_id"] for c in report["candidates"] if c["kernel_id"] in rows and not c["reasons"]]
            asked += len(rows)
            admitted |= {f"{k}: {without(line, size)}" for k in taken if empty(arguments)}
    assert not admitted and (asked or not rows)


def empty(arguments):
    return any(t.numel() == 0 for t in arguments.values() if isinstance(t, torch.Tensor))
