"""lz.trace: spans of selections and runs by OpenTelemetry's SDK; NVTX ranges by a stand-in for its tool."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opentelemetry.sdk")

import layerzero as lz  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import StatusCode  # noqa: E402
from planted_library import BINDINGS, OWN, W, X, norm_program  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent


@pytest.fixture
def spans():
    """spans(call) -> the finished spans of the call, in the order of their end."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def traced(call):
        exporter.clear()
        with lz.trace(provider):
            call()
        return exporter.get_finished_spans()

    traced.tracer = provider.get_tracer("tests")
    return traced


def of(found, name):
    return [span for span in found if span.name == f"layerzero.{name}"]


@pytest.mark.parametrize("binding", BINDINGS)
def test_every_way_to_call(spans, binding):
    BINDINGS[binding]()
    (run,) = of(spans(BINDINGS[binding]), "run rms_norm")
    attributes = dict(run.attributes)
    attributes.pop("layerzero.reason", None)
    assert attributes.pop("layerzero.cache") in ("hit", "miss")
    assert attributes.pop("layerzero.inputs").startswith("float32[")
    assert attributes == {"layerzero.operation": "rms_norm", "layerzero.kernel": OWN, "layerzero.device": "cpu"}
    assert run.start_time < run.end_time and run.status.status_code is StatusCode.UNSET


def test_a_selection_and_its_runs(spans):
    lz._layerzero.invalidate()
    found = spans(lambda: [lz.rms_norm(X, W) for _ in range(3)])
    (selection,) = of(found, "select rms_norm")
    assert selection.attributes["layerzero.kernel"] == OWN
    assert selection.attributes["layerzero.refused"] < selection.attributes["layerzero.candidates"]
    assert [run.attributes["layerzero.cache"] for run in of(found, "run rms_norm")] == ["miss", "hit", "hit"]
    reasons = {span.attributes["layerzero.reason"] for span in found}
    assert len(reasons) == 1 and reasons.pop().startswith(("priority", "measured"))


def test_a_call_without_a_kernel_is_a_selection(spans):
    lz._layerzero.invalidate()
    with lz.policy(fallback_enabled=False, rules=[{"deny": ["*"]}]):

        def call():
            with pytest.raises(lz.NoKernelFoundError):
                lz.rms_norm(X, W)

        found = spans(call)
    assert {span.name for span in found} == {"layerzero.select rms_norm"}
    assert {span.attributes["layerzero.kernel"] for span in found} == {""}
    assert {span.attributes["layerzero.reason"] for span in found} == {"no kernel may run"}


def test_a_failure_is_an_error_and_its_fallback_a_run(spans):
    @lz.register_kernel("norm.rms", "tests.trace.fails", supported_dtypes=["float32"], priority=100)
    def fails(input, weight, eps, weight_offset):
        raise ValueError("planted")

    try:
        failed, answered = of(spans(lambda: lz.rms_norm(X, W)), "run rms_norm")
    finally:
        lz.unregister_kernel("norm.rms", "tests.trace.fails")
    assert failed.status.status_code is StatusCode.ERROR and "planted" in failed.status.description
    assert answered.status.status_code is StatusCode.UNSET
    assert answered.attributes["layerzero.cache"] == "fallback"


def test_spans_are_children_of_the_callers_span(spans):
    program = norm_program()

    def call():
        with spans.tracer.start_as_current_span("request"):
            lz.rms_norm(X, W)
            program.run((X[None],), (torch.empty(1, 4, 32),))

    found = spans(call)
    (request,) = [span for span in found if span.name == "request"]
    runs = [span for span in found if span.name.startswith("layerzero.run")]
    assert len(runs) == 3  # one call and the program's two steps
    assert {span.parent.span_id for span in runs} == {request.context.span_id}
    assert all(request.start_time <= span.start_time and span.end_time <= request.end_time for span in runs)


def test_the_policy_traces_by_the_applications_provider():
    code = """
import torch, layerzero as lz
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
lz.rms_norm(torch.ones(4, 8), torch.ones(8))
lz.configure(trace={"opentelemetry": False})
lz.rms_norm(torch.ones(4, 8), torch.ones(8))
print([span.name for span in exporter.get_finished_spans()])
"""
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "LAYERZERO_TRACE": "1"}  # proves: trace.opentelemetry
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.strip() == str(["layerzero.select rms_norm", "layerzero.run rms_norm"])


def header():
    """The folder of NVTX's headers that the build found, or None."""
    text = (
        (PACKAGE.parents[0] / "CMakeCache.txt").read_text() if (PACKAGE.parents[0] / "CMakeCache.txt").is_file() else ""
    )
    for line in text.splitlines():
        if line.startswith("LZ_NVTX_INCLUDE:"):
            folder = Path(line.partition("=")[2])
            return folder if (folder / "nvtx3/nvToolsExt.h").is_file() else None
    return None


STAND_IN = """
#include <stdio.h>
#include <nvtx3/nvToolsExt.h>
static nvtxDomainHandle_t Create(const char* name) { fprintf(stderr, "domain %s\\n", name); return (nvtxDomainHandle_t)1; }
static int Push(nvtxDomainHandle_t d, const nvtxEventAttributes_t* a) { fprintf(stderr, "push %s\\n", a->message.ascii); return 0; }
static int Pop(nvtxDomainHandle_t d) { fprintf(stderr, "pop\\n"); return 0; }
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  const NvtxExportTableCallbacks* found = (const NvtxExportTableCallbacks*)table_of(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = 0;
  unsigned int size = 0;
  if (!found || !found->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)Create;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)Push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)Pop;
  return 1;
}
"""


def test_nvtx_ranges_reach_a_tool(tmp_path):
    folder, compiler = header(), shutil.which("cc") or shutil.which("gcc")
    if folder is None or compiler is None:
        pytest.skip("this build found no NVTX headers, or there is no C compiler")
    (tmp_path / "tool.c").write_text(STAND_IN)
    tool = tmp_path / "libtool.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-I", str(folder), "-o", str(tool), str(tmp_path / "tool.c")], check=True
    )
    code = "import torch, layerzero as lz\nfor _ in range(2): lz.rms_norm(torch.ones(4, 8), torch.ones(8))"
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "NVTX_INJECTION64_PATH": str(tool)}
    ranged = env | {"LAYERZERO_NVTX": "1"}  # proves: trace.nvtx
    done = subprocess.run([sys.executable, "-c", code], env=ranged, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("domain", "push", "pop"))]
    assert lines == ["domain layerzero", *(["push norm.rms [hwy.norm.rms]", "pop"] * 2)]
    off = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert off.returncode == 0 and not off.stderr
