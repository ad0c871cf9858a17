"""layerzero's own kernels in Triton, without a GPU: in Triton's interpreter against FP64, compiled for GPUs that are not there,
and whether a kind of calls says all that Triton compiles for, which is tested of Liger's too. tests/gpu/test_conformance.py
runs them on a device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

pytest.importorskip("torch")
from layerzero import _layerzero, backends  # noqa: E402

FOLDER = Path(sys.prefix) / "triton"  # scripts/setup.sh puts requirements/triton.txt there
PROGRAM = Path(__file__).parent / "support/triton_kernels.py"
ROWS = {row["kernel_id"]: (op, row) for op, rows in backends.descriptor_of("triton")["ops"].items() for row in rows}
REFUSED = {
    ("triton.rms_norm", "input=f64[2,64] weight=f64[64]"): "DTYPE_UNSUPPORTED",
    ("triton.rms_norm", "input=bf16[2,32769]"): "SHAPE_UNSUPPORTED",
    ("triton.rope", "input=f32[1,2,1,2] cos=f32[3,2] sin=f32[3,2] position_ids=i64[2]{2,0}"): "ARGUMENT_UNSUPPORTED",
    ("triton.rope", "input=f32[1,1,1,2050] cos=f32[1,2050] sin=f32[1,2050]"): "SHAPE_UNSUPPORTED",
    ("triton.softmax", "logits=f32[2,64] row_temperature=f32[2]{1,2}"): "ARGUMENT_UNSUPPORTED",
    ("triton.attention", "query=f16[1,9,4,136] key=f16[1,9,2,136] value=f16[1,9,2,136]"): "HEAD_DIM_TOO_LARGE",
    ("triton.attention", "query=f16[1,9,4,64] key=f16[1,9,2,64] value=f16[1,9,2,32]"): "HEAD_DIM_INVALID",
    ("triton.attention", "query=f16[1,9,4,64]@offset key=f16[1,9,2,64] value=f16[1,9,2,64]"): "ALIGNMENT",
    ("triton.attention", "query=f16[1,9,4,64] key=f16[1,9,2,64] value=f16[1,9,2,64] alibi_slopes=f32[4]"): (
        "ARGUMENT_UNSUPPORTED"
    ),
    ("triton.attention", "query=f16[1,9,4,64] key=f16[1,9,2,64] value=f16[1,9,2,64] attn_mask=bool[9,9]"): (
        "ATTN_MASK_UNSUPPORTED"
    ),
}
# Further calls: other numbers of rows, strides and addresses than those of the cases, which Triton might specialize on.
_NORM = [
    f"input={d}[{rows},64]{place} weight={d}[64]"
    for d in ("bf16", "f32")
    for rows in (1, 16, 17)
    for place in ("", "@offset")
]
_QKV = "query=bf16[{b},{s},{h},64] key=bf16[{b},{k},2,64] value=bf16[{b},{k},2,64] {more}"
MORE = {
    "triton.rms_norm": [
        *_NORM,
        "input=bf16[1,77]",
        "input=bf16[1,77]@offset",
        "input=bf16[3,77]",
        "input=bf16[3,77]@offset",
    ],
    "triton.fused_add_rms_norm": [
        f"input=f16[{n},64]{p} residual=f16[{n},64]" for n in (1, 16) for p in ("", "@offset")
    ],
    "triton.layer_norm": [f"{line} normalized_shape=64" for line in _NORM],
    "triton.fused_add_layer_norm": [],
    "triton.silu_and_mul": [
        f"input=bf16[{n},{w}]{p}" for n in (1, 16, 33) for w in (64, 72, 80) for p in ("", "@offset")
    ],
    "triton.gated_activation": [f"input=bf16[{n},72] limit={x} interleaved=true" for n in (1, 16) for x in (1, 7)],
    "triton.swiglu": [f"gate=f16[{n},64]{p} up=f16[{n},64]" for n in (1, 16, 33) for p in ("", "@offset")],
    "triton.geglu": [],
    "triton.rope": [
        f"input=bf16[{b},{s},{h},64]{p} cos={t}[{s},{w}]{q} sin={t}[{s},{w}]"
        for b, s, h in ((1, 1, 1), (2, 16, 3), (16, 5, 16))
        for w, t in ((32, "f32"), (64, "bf16"))
        for p, q in (("", ""), ("@pad", "@offset"), ("@offset", ""))
    ],
    "triton.softmax": [
        f"logits=f32[{n},64]{p} temperature={t}" for n in (1, 16) for p in ("", "@offset") for t in (1, 2)
    ],
    "triton.attention": [
        _QKV.format(b=b, s=s, k=k, h=h, more=more)
        for b, s, k, h in ((1, 2, 2, 2), (2, 16, 33, 4), (16, 17, 16, 16))
        for more in ("", "window=16", "window=1", "scale=1 softcap=1", f"softcap=16 sinks=f32[{h}]")
    ],
}
_PLACES = [(n, w, p, q) for n in (1, 16, 17) for w in (64, 77) for p in ("", "@offset") for q in ("", "@offset")]
_X = "input=bf16[{n},{w}]{p} "
_ROWS = [
    _X + "weight=bf16[{w}]{q}",
    *(_X.replace("{n}", str(n)) + "weight=f32[{w}]" for n in (32768, 32769, 32784, 32785)),
]
_ADDED = _X + "residual=bf16[{n},{w}]{q} weight=bf16[{w}]"
_LAYER = _X + "weight=f32[{w}]{q} bias=f32[{w}] normalized_shape={w}"
_GATED = "gate=f16[{n},{w}]{p} up=f16[{n},{w}]{q}"
LIGER = {
    "liger.rms_norm": _ROWS,
    "liger.fused_add_rms_norm": [_ADDED],
    "liger.layer_norm": [_LAYER],
    "liger.swiglu": [_GATED],
    "liger.geglu": [_GATED + " approximate=tanh"],
    "liger.softmax": ["logits=f32[{n},{w}]{p}"],
}
LIGER = {
    kernel: list(dict.fromkeys(line.format(n=n, w=w, p=p, q=q) for line in lines for n, w, p, q in _PLACES))
    for kernel, lines in LIGER.items()
}


def program(*arguments):
    if not FOLDER.is_dir():
        pytest.skip("needs requirements/triton.txt in .venv/triton: make setup")
    path = [str(Path(lz.__file__).parent.parent), str(FOLDER), str(PROGRAM.parent)]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {
        "PYTHONPATH": os.pathsep.join(path)
    }
    first, *rest = arguments
    command = [sys.executable, "-W", "ignore", str(PROGRAM), first, *map(json.dumps, rest)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def results():
    return program("results", False)


@pytest.mark.parametrize("kernel", ROWS)
def test_what_a_row_admits_is_what_fp64_computes(results, kernel):
    found = results[kernel]
    assert found["cases"] >= 15
    assert not found["problems"], "\n".join(found["problems"])
    assert not found["written"], "an input was written"


@pytest.mark.full
def test_a_wrong_result_is_found():
    unseen = [kernel for kernel, found in program("results", True).items() if not found["problems"]]
    assert not unseen


def test_a_call_that_a_row_does_not_serve_is_refused_with_a_reason():
    codes = program("refused", list(REFUSED))
    wrong = [(call, code, got) for (call, code), got in zip(REFUSED.items(), codes, strict=True) if code not in got]
    assert not wrong


@pytest.fixture(scope="module")
def kinds():
    return program("kinds", "triton", MORE) | program("kinds", "liger", LIGER)


@pytest.mark.parametrize("kernel", [*ROWS, *LIGER])
def test_calls_of_a_kind_are_compiled_once(kinds, kernel):
    """A kind that says too little would have Triton compile inside of a call."""
    first, alike = {}, 0
    for kind, launched, line in kinds[kernel]:
        if launched:  # an empty call launches nothing
            known = first.setdefault(json.dumps(kind), (launched, line))
            assert known[0] == launched, f"{line}\n{known[1]}\nare of one kind"
            alike += known[1] != line
    assert alike, "no two calls are of one kind"


@pytest.mark.parametrize(
    "architecture", [80, pytest.param(90, marks=pytest.mark.full), pytest.param(120, marks=pytest.mark.full)]
)
def test_kernels_compile_for_a_gpu(architecture):
    made = program("compiled", architecture)
    assert {name for name, _ in made} == {"_rms_norm", "_layer_norm", "_gated", "_rope", "_softmax", "_attention"}
    too_much = [one for one in made if one[1] > 99 << 10]
    assert not too_much, "more shared memory than a block has on SM 8.6 and 12.0"


@pytest.mark.parametrize("kernel", ROWS)
def test_a_row_that_is_not_timed_ranks_below_torchs_that_are(kernel):
    operation, row = ROWS[kernel]
    assert row["priority"] == backends.NOT_YET_MEASURED
    rows = json.loads(_layerzero.kernels(None, False)) if lz.list_kernels() else []
    torchs = [k["priority"] for k in rows if k["backend"] == "torch" and k["operation"] == operation]
    assert all(row["priority"] <= priority for priority in torchs)
    assert any(row["priority"] < priority for priority in torchs) or not torchs
    assert row["jit"]["when"] == "first_call"


def test_nothing_imports_triton_before_it_is_used():
    code = "import sys, layerzero as lz, torch; lz.list_kernels(); lz.rms_norm(torch.ones(2, 8))"
    path = os.pathsep.join((str(Path(lz.__file__).parent.parent), str(FOLDER)))
    command = [
        sys.executable,
        "-c",
        f"{code}; assert 'layerzero.backends.triton.norms' not in sys.modules; print(*sys.modules)",
    ]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "triton" not in done.stdout.split()
