"""LAYERZERO_VERBOSE=2 on CUDA: a line for each call, whose time waits for the device, and none of that within a capture."""

import os
import re
import subprocess
import sys
from pathlib import Path

import layerzero as lz

CODE = """
import torch, layerzero as lz
x = torch.randn(8192, 8192, device="cuda")
for _ in range(2):
    lz.rms_norm(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = lz.rms_norm(x)
graph.replay()
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (8192,), eps=1e-6))
"""


def test_each_call_has_a_line_with_the_time_of_its_work():
    env = os.environ | {"PYTHONPATH": str(Path(lz.__file__).parent.parent), "LAYERZERO_VERBOSE": "2"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    times = [float(us) for us in re.findall(r"rms_norm: \S+ ([0-9.]+) us, float32\[8192,8192\]", done.stderr)]
    assert len(times) == 3
    assert times[1] > 50  # 512 MiB are read and written: a launch alone takes less
