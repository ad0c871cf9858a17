"""Libraries and references on CUDA: no probe within a capture, no reference without a word."""

import sys

import layerzero as lz
import pytest
import torch
from layerzero import backends
from layerzero.host import log

PROBED = """
import torch
probes = []
def rms_norm(input, weight, eps, weight_offset=None):
    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)
def probe():
    probes.append(torch.ones(8, device="cuda").sum().item())
"""


@pytest.fixture
def x():
    return torch.randn(4, 512, device="cuda", dtype=torch.bfloat16)


@pytest.fixture
def library(tmp_path, monkeypatch):
    name = "lz_gpu_library"
    (tmp_path / f"{name}.py").write_text(PROBED)
    monkeypatch.syspath_prepend(tmp_path)
    row = {
        "kernel_id": f"{name}.norm",
        "adapter": f"{name}:rms_norm",
        "dtypes": ["bfloat16"],
        "requires_layouts": ["any"],
        "min_sm": 70,
        "is_cuda_graph_safe": True,
        "requires_contiguous": False,
        "priority": 100,
    }
    lz.list_kernels()
    backends.register(
        {
            "schema_version": "1.0",
            "backend": name,
            "backend_version": "1",
            "platform": "cuda",
            "requires": [{"import": name}],
            "probe": f"{name}:probe",
            "ops": {"norm.rms": [row]},
        }
    )
    yield name
    lz._layerzero.unregister(f"{name}:rms_norm")
    backends._libraries.pop(name)
    sys.modules.pop(name, None)


def test_no_probe_runs_within_a_capture(library, x):
    torch.nn.functional.rms_norm(x, (512,))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lz.rms_norm(x)
    assert library not in sys.modules
    graph.replay()
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (512,), None, 1e-6), rtol=1e-2, atol=1e-2)
    assert lz.which("rms_norm", x)["kernel_id"] == f"{library}.norm"
    assert sys.modules[library].probes == [8.0]
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert lz.which("rms_norm", x)["kernel_id"] == f"{library}.norm"


def test_a_reference_that_answers_a_cuda_call_is_counted_and_said(x):
    def calls():
        served = lz.doctor().served_by_reference
        return sum(s["calls"] for s in served if (s["operation"], s["platform"]) == ("norm.rms", "cuda"))

    log._logged.discard(("norm.rms", "cuda"))
    before = calls()
    with pytest.warns(lz.LayerZeroReferenceWarning) as warned, lz.policy(rules=[{"deny": ["*.*"]}]):
        lz.rms_norm(x)
        torch.ops.layerzero.rms_norm(x)
    assert calls() == before + 2
    (line,) = [str(w.message) for w in warned if str(w.message).startswith("norm.rms")]
    assert "runs on its reference" in line and "(cuda)" in line


def test_what_only_a_reference_serves_on_cuda_is_listed():
    kernels = [k for k in lz.list_kernels() if k.usable is not False and not k.reference]
    served = {i for k in kernels if k.platform in ("any", "cuda") for i in k.operations}
    listed = {s["operation"] for s in lz.doctor().served_by_reference if s["platform"] == "cuda"}
    assert listed >= {i for k in lz.list_kernels() for i in k.operations} - served
