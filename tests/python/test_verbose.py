"""LAYERZERO_VERBOSE: what it prints with nothing set up in the program, once for each selection or each call."""

import os
import re
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

pytest.importorskip("torch")

PACKAGE = Path(lz.__file__).parent.parent
CALLS = {
    "python": "lz.rms_norm(x, w)",
    "torch.ops": "torch.ops.layerzero.rms_norm(x, w)",
    "run": "lz.run('norm.rms', x, w)",
    "module": "lz.rms_norm(input=x, weight=w)",
}


def lines(code, **variables):
    env = os.environ | {"PYTHONPATH": str(PACKAGE)} | variables
    code = f"import torch, layerzero as lz\nx, w = torch.ones(4, 8), torch.ones(8)\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("way", CALLS)
def test_one_prints_each_selection(way):
    assert lines(f"{CALLS[way]}; {CALLS[way]}", LAYERZERO_VERBOSE="1") == ["layerzero: norm.rms: hwy.norm.rms"]
    assert lines(CALLS[way]) == []


def test_a_policy_key_is_heard_too():
    assert lines("lz.configure(log_selections=True); lz.rms_norm(x, w)") == [
        "layerzero: norm.rms: hwy.norm.rms"
    ]  # proves: log_selections


def test_a_program_with_logging_set_up_gets_the_line_once():
    code = "import logging; logging.basicConfig(level=logging.INFO); lz.rms_norm(x, w)"
    assert lines(code, LAYERZERO_VERBOSE="1") == ["INFO:layerzero:norm.rms: hwy.norm.rms"]
    code = "import logging; logging.basicConfig(level=logging.WARNING); lz.rms_norm(x, w)"
    assert lines(code, LAYERZERO_VERBOSE="1") == ["layerzero: norm.rms: hwy.norm.rms"]


TIMED = re.compile(r"layerzero: (\w+): ([\w.]+) (\d+\.\d) us, (.*)")


def test_two_prints_each_call_with_its_time():
    found = [
        match.groups()
        for match in map(TIMED.fullmatch, lines("lz.rms_norm(x, w); lz.rms_norm(x, weight=w)", LAYERZERO_VERBOSE="2"))
        if match
    ]
    assert [(name, kernel, tensors) for name, kernel, _, tensors in found] == [
        ("rms_norm", "hwy.norm.rms", "float32[4,8] float32[8]")
    ] * 2
    assert all(float(us) > 0 for _, _, us, _ in found)


@pytest.mark.parametrize("grad", ["torch.enable_grad()", "torch.no_grad()", "torch.inference_mode()"])
def test_two_prints_calls_of_torchs_operators(grad):
    code = f"with {grad}: torch.ops.layerzero.rms_norm(x, w)"
    (match,) = filter(None, map(TIMED.fullmatch, lines(code, LAYERZERO_VERBOSE="2")))
    assert match[1] == "rms_norm" and match[2] == "hwy.norm.rms" and match[4] == "float32[4,8] float32[8]"


def test_two_prints_each_step_of_a_program():
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent / "support")!r})
import small_llama
model = small_llama.tiny().eval()
lz.kernelize(model)
with torch.inference_mode():
    model(torch.arange(5)[None])
    print("layerzero: again: again 0.0 us, ", file=sys.stderr)
    model(torch.arange(5)[None])
"""
    pytest.importorskip("transformers")
    found = [match.group(1) for match in map(TIMED.fullmatch, lines(code, LAYERZERO_VERBOSE="2")) if match]
    again = found[found.index("again") + 1 :]  # of three layers; kernels are chosen already
    assert {name: again.count(name) for name in ("attention", "swiglu", "rope")} == {
        "attention": 3,
        "swiglu": 3,
        "rope": 6,
    }
    first = found[: found.index("again")]
    assert first[-len(again) :] == again


def test_two_changes_no_answer():
    code = """
out = torch.empty(4, 8)
assert torch.equal(lz.rms_norm(x, w, out=out), torch.nn.functional.rms_norm(x, (8,), w, 1e-6)) and out.sum() > 0
assert lz.which(lz.rms_norm, x, w) == lz.which("rms_norm", x, w)
assert lz.explain(lz.rms_norm, x, w).kernel_id == "hwy.norm.rms"
assert lz.validate("hwy.norm.rms", x, w)[0]
assert torch.equal(lz.prepare(lz.rms_norm, x, w)(x, w), lz.rms_norm(x, w))
y = x.clone().requires_grad_()
lz.rms_norm(y, w).sum().backward()
assert y.grad is not None
try:
    lz.rms_norm(x, torch.ones(9))
except lz.InvalidRequestError:
    lz.rms_norm(x, w)
assert torch.equal(torch.compile(lambda x: lz.rms_norm(x, w), backend="eager")(x), lz.rms_norm(x, w))
"""
    assert any("rms_norm" in line for line in lines(code, LAYERZERO_VERBOSE="2"))
