"""What a CUDA user without any kernel library gets a reference for: each operation and dtype is listed here with a reason.

Own kernels are those of docs/coverage-cuda.json, which a build with nvcc keeps up to date; torch's are the registry's.
"""

import json
from pathlib import Path

import layerzero as lz
import pytest
from layerzero import _layerzero
from layerzero.inspection import kernel_rows

COVERAGE = json.loads((Path(__file__).resolve().parents[2] / "docs/coverage-cuda.json").read_text())
DEVICES = ("a100", "h100", "h200", "l4")
FP64 = "no model computes it in float64: the reference is what checks others"
TEXT = "text is on the host"
GAPS = {
    **{
        f"attention.{heads}.{kind}": {"float64": FP64}
        for heads in ("standard", "gqa")
        for kind in ("decode.pod", "prefill.paged", "prefill.ragged")
    },
    "convert": {
        "float64": FP64,
        "float8_e8m0fnu": "powers of two of scales: dequantize reads them as they are",
        "uint8": "codes of packed formats: dequantize and dequantize_gguf read them",
    },
    "convolution.causal_conv1d": {"float64": FP64},
    "elementwise.cast": {"float64": FP64},
    "mlp.linear.gguf": {"float64": FP64},
    "mlp.linear.quantized": {"float64": FP64},
    "moe.fused": {"float64": FP64},
    "moe.grouped_gemm": {"float64": FP64},
    "reduce.tree": {"float64": FP64},
    "tokenize.decode": {"int32": TEXT, "int64": TEXT},
    "tokenize.encode": {"uint8": TEXT},
}


@pytest.fixture(scope="module")
def served():
    """{(operation, dtype): devices that an own kernel or one of torch's serves}, for every pair of the contracts."""
    torch_rows = {(k["operation"], k["kernel_id"]) for k in kernel_rows(constraints=False) if k["source"] == "torch"}
    pairs = {}
    for entry in lz.coverage(*DEVICES):
        own = COVERAGE.get(entry.operation, {}).get(str(entry.dtype), [])
        serves = any(entry.device in row["devices"] for row in own) or any(
            (entry.operation, kernel) in torch_rows for kernel in entry.kernels
        )
        pairs.setdefault((entry.operation, str(entry.dtype)), set()).update({entry.device} if serves else ())
    return pairs


def test_references_alone_serve_what_is_listed_here(served):
    gaps = {pair: sorted(set(DEVICES) - devices) for pair, devices in served.items() if devices != set(DEVICES)}
    listed = {(operation, dtype) for operation, dtypes in GAPS.items() for dtype in dtypes}
    new = {pair: devices for pair, devices in gaps.items() if pair not in listed}
    assert not new, f"only references serve these on CUDA: add a kernel, or a reason to GAPS: {new}"
    assert not listed - set(gaps), f"these are served: take them out of GAPS: {sorted(listed - set(gaps))}"


def test_the_common_dtypes_of_models_are_never_left_to_references(served):
    common = ("float32", "float16", "bfloat16")
    assert {pair for pair, devices in served.items() if pair[1] in common and devices != set(DEVICES)} == set()
    assert len({operation for operation, dtype in served if dtype in common}) > 60


def test_own_kernels_are_listed_for_devices_that_they_can_be_compiled_for():
    """cp.async and products of bfloat16 begin with SM 8.0."""
    named = {
        device for dtypes in COVERAGE.values() for rows in dtypes.values() for row in rows for device in row["devices"]
    }
    sm = {d["name"]: d["facts"]["sm"] for d in json.loads(_layerzero.devices())["simulated"] if d["platform"] == "cuda"}
    assert named == {name for name in sm if sm[name] >= 80} and len(named) < len(sm)
