"""torch.profiler shows each operation with the kernel that answered, on every way into the engine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from torch.profiler import ProfilerActivity, profile, record_function  # noqa: E402

X, W = torch.randn(4, 8), torch.ones(8)


def events(call):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return profiler.events()


def named(call):
    return [event.name for event in events(call) if event.name.startswith("layerzero::norm")]


def test_a_call():
    assert named(lambda: lz.rms_norm(X, W)) == ["layerzero::norm.rms [hwy.norm.rms]"]
    assert named(lambda: lz.rms_norm(X, W, kernel="torch.rms_norm")) == ["layerzero::norm.rms [torch.rms_norm]"]


def test_a_prepared_call():
    prepared = lz.prepare("norm.rms", X, W)
    assert named(lambda: prepared(X, W)) == ["layerzero::norm.rms [hwy.norm.rms]"]


def test_the_operator_of_torch():
    if not hasattr(torch.ops.layerzero, "rms_norm"):
        pytest.skip("this build has no torch operators")
    names = [event.name for event in events(lambda: torch.ops.layerzero.rms_norm(X, W))]
    assert "layerzero::rms_norm" in names and "layerzero::norm.rms [hwy.norm.rms]" in names


def test_a_call_with_a_gradient():
    weight = W.clone().requires_grad_()
    (name,) = named(lambda: lz.rms_norm(X, weight))
    assert name == f"layerzero::norm.rms [{lz.which('rms_norm', X, weight)['kernel_id']}]"


def test_what_a_python_kernel_does_lies_inside():
    found = events(lambda: lz.rms_norm(X, W, kernel="torch.rms_norm"))
    (ours,) = [event for event in found if event.name.startswith("layerzero::")]
    (theirs,) = [event for event in found if event.name == "aten::rms_norm"]
    assert ours.time_range.start <= theirs.time_range.start and theirs.time_range.end <= ours.time_range.end


def test_it_lies_inside_what_the_caller_records():
    def call():
        with record_function("mine"):
            lz.rms_norm(X, W)

    found = {event.name: event for event in events(call)}
    mine, ours = found["mine"], found["layerzero::norm.rms [hwy.norm.rms]"]
    assert mine.time_range.start <= ours.time_range.start and ours.time_range.end <= mine.time_range.end


def test_a_call_that_fails_ends_its_event():
    def call():
        with pytest.raises(lz.LayerZeroError):
            lz.embedding(torch.tensor([9]), torch.ones(2, 4))
        lz.rms_norm(X, W)

    names = [event.name for event in events(call) if event.name.startswith("layerzero::")]
    assert names[-1] == "layerzero::norm.rms [hwy.norm.rms]" and len(names) == 2


CALLS_BEFORE_TORCH = """
import sys

import layerzero as lz
import numpy as np

x, w = np.ones((4, 8), np.float32), np.ones(8, np.float32)
for call in (lambda: lz.rms_norm(), lambda: lz.rms_norm("text")):
    try:
        call()
    except lz.InvalidRequestError:
        pass
assert lz.list_kernels("norm.rms") and "torch" not in sys.modules
lz.explain("norm.rms", x, w)
lz.rms_norm(x, w)

import torch
from torch.profiler import ProfilerActivity, profile

with profile(activities=[ProfilerActivity.CPU]) as profiler:
    lz.rms_norm(torch.from_numpy(x), torch.from_numpy(w))
    lz.rms_norm(x, w)
print([event.name for event in profiler.events() if event.name.startswith("layerzero::")])
"""


def test_a_process_that_called_before_torch_was_loaded():
    pytest.importorskip("numpy")
    env = os.environ | {"PYTHONPATH": str(Path(lz.__file__).parent.parent)}
    command = [sys.executable, "-c", CALLS_BEFORE_TORCH]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(["layerzero::norm.rms [hwy.norm.rms]"] * 2)


def test_the_memory_of_outputs_is_in_torchs_statistics():
    rows = torch.ones(64, 1024)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        out = lz.rms_norm(rows, None)
    assert sum(event.self_cpu_memory_usage for event in profiler.events()) == out.nbytes


def test_a_program_is_an_event_with_its_steps_inside():
    pytest.importorskip("transformers")
    from small_llama import ids_of, tiny

    model = tiny()
    steps = sum(row["count"] for row in lz.compile(model).phases["decode"])
    with torch.inference_mode():
        found = events(lambda: model(ids_of(2)))
    (block,) = [event for event in found if event.name.startswith("layerzero::block")]
    assert block.name == f"layerzero::block.decoder [{steps} steps]"
    inside = [e for e in found if e.name.startswith("layerzero::") and e.thread == block.thread and e is not block]
    start, end = block.time_range.start, block.time_range.end
    inside = [e for e in inside if start <= e.time_range.start and e.time_range.end <= end]
    assert len(inside) == steps and all("[" in e.name for e in inside)
