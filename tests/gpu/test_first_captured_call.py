"""A kernel that plans at its first call of a kind makes that call itself if the first one is captured. Each in a process
of its own, where nothing has been planned."""

import os
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

PACKAGE = Path(lz.__file__).parent.parent
HEAD = """
import sys, torch, layerzero as lz
H = dict(device="cuda", dtype=torch.bfloat16)
lz.rms_norm(torch.ones(2, 8, device="cuda"), None)
torch.manual_seed(1)
"""
CALLS = {
    "torch.sdpa.cudnn": "q = torch.randn(2, 384, 8, 128, **H); call = lambda k: lz.attention(q, q, q, causal=True, layout='BSHD', kernel=k); other = 'torch.sdpa.math'",
    "torch.sdpa.auto": "q = torch.randn(2, 384, 8, 128, **H); call = lambda k: lz.attention(q, q, q, causal=True, layout='BSHD', kernel=k); other = 'torch.sdpa.math'",
    "torch.linear": "x, w = torch.randn(48, 512, **H), torch.randn(256, 512, **H); call = lambda k: lz.linear(x, w, kernel=k); other = 'torch.linear'",
    "torch.mla_prefill": "n, p, v = (torch.randn(1, 200, 8, d, **H) for d in (128, 64, 128)); kp = torch.randn(1, 200, 1, 64, **H); call = lambda k: lz.mla_prefill(n, p, n, kp, v, kernel=k); other = 'torch.mla_prefill'",
}
CAPTURE = """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = call(sys.argv[1])
    again = call(sys.argv[1])
graph.replay()
torch.cuda.synchronize()
torch.testing.assert_close(result, again)
torch.testing.assert_close(result.float(), call(other).float(), atol=3e-2, rtol=3e-2)
print("captured")
"""


@pytest.mark.parametrize("kernel", CALLS)
def test_the_first_call_may_be_captured(kernel):
    code = f"{HEAD}{CALLS[kernel]}\n{CAPTURE}"
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([sys.executable, "-c", code, kernel], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "captured", done.stderr
