"""Rows of libraries that only run on a GPU, against stand-ins with the recorded signatures: what each row admits, and that
every argument arrives. tests/gpu/test_libraries.py and tests/gpu/test_conformance.py prove them with the libraries."""

import functools
import itertools
import json
import sys
import types

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")
import conformance_calls as calls  # noqa: E402
import library_stand_ins as stand_ins  # noqa: E402
from layerzero import _layerzero, backends  # noqa: E402
from layerzero.bench.cases import arguments_of  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from operation_cases import lines, tensors_of  # noqa: E402

LIBRARIES = ("apex", "deep_gemm", "flashinfer", "liger", "quack", "sgl_kernel", "vllm", "vllm_deep_gemm")
ROWS = {row["kernel_id"]: (operation, row) for library in LIBRARIES for operation, row in stand_ins.rows_of(library)}
NAMES = {op["id"]: name for name, contract in contracts().items() for op in contract["operations"]}


@pytest.fixture(scope="module", autouse=True)
def planted():
    lz.list_kernels()
    libraries, modules, adapters = stand_ins.Planted(), [], set()
    for library in LIBRARIES:
        document, made = stand_ins.on_cpu(library)
        backends.register(document)
        modules += made
        adapters |= {row["adapter"] for rows in document["ops"].values() for row in rows}
    yield
    for adapter in adapters:
        _layerzero.unregister(adapter)
    for library in LIBRARIES:
        backends._libraries.pop(f"stand_in_{library}")
    for module in modules:
        del sys.modules[module]
    libraries.close()


@functools.cache
def usable(name):
    return [line for line in lines(name) if calls.engine_accepts(name, line)]


def admitted(kernel_id):
    """(operation, line, result) of every case that the row admits. Rows that say that they may show a NaN are left out
    where a case has one, by strict mode."""
    operation, row = ROWS[kernel_id]
    name = NAMES[operation]
    shows = any(c["field"] == "policy.strict_mode" for c in row["constraints"]) if "constraints" in row else False
    for line in usable(name):
        with lz.policy(strict_mode=shows and any(text in line for text in ("nan", "inf"))):
            try:
                yield name, line, calls.call_door(name, line, f"stand_in.{kernel_id}")
            except lz.NoKernelFoundError:
                continue


@pytest.mark.parametrize("kernel_id", ROWS)
def test_what_a_row_admits_is_what_the_library_computes(kernel_id):
    results = list(admitted(kernel_id))
    assert results, "no case is admitted"
    failures = [f"{line}\n    {text}" for name, line, got in results for text in calls.problems(name, line, got)]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("kernel_id", [k for k, (operation, _) in ROWS.items() if operation != "kv.append_paged"])
def test_no_row_writes_an_input(kernel_id):
    for name, line, _ in itertools.islice(admitted(kernel_id), 3):
        arguments = arguments_of(name, line)
        before = {k: t.clone() for k, t in tensors_of(arguments).items()}
        getattr(lz, name)(**arguments, kernel=f"stand_in.{kernel_id}")
        for k, t in before.items():
            assert torch.equal(t.nan_to_num(7), arguments[k].nan_to_num(7)), f"{line}: {k} was written"


def test_a_cache_is_written_in_the_slots_alone():
    cache, rows = torch.zeros(2, 2, 4, 16, 1, 8).unbind(0), torch.ones(3, 1, 8)
    slots = torch.tensor([1, -1, 64])  # the last one is beyond the cache
    kernel = "stand_in.vllm.reshape_and_cache_flash"
    lz.kv_append_paged(cache[0][0], cache[0][1], rows, rows, slots, kernel=kernel)
    for written in cache[0]:
        assert written.view(64, 8).sum(1).nonzero().flatten().tolist() == [1]


REFUSED = [
    ("vllm.rms_norm", "input=f32[2,64] weight=f64[64]", "DTYPE_UNSUPPORTED"),
    ("vllm.rms_norm", "input=f32[2,64]", None),
    ("vllm.gated_activation", "input=f32[2,64] activation=relu", None),
    ("vllm.gated_activation", "input=f32[2,64] limit=2", None),
    ("sgl_kernel.silu_and_mul", "input=bf16[2,24]", None),
    ("sgl_kernel.rms_norm", "input=f32[2,64] weight=f32[64]", "DTYPE_UNSUPPORTED"),
    ("vllm.topk_softmax", "logits=f32[5,8] k=2 scoring=sigmoid", None),
    ("vllm.topk_softmax", "logits=f32[5,8] k=2 scale=2", None),
    ("vllm.topk_softmax", "logits=f32[6,32] k=4 num_groups=8 top_groups=3", None),
    ("liger.geglu", "gate=f32[2,64] up=f32[2,64]", None),
    ("liger.layer_norm", "input=f32[2,64] normalized_shape=64 weight=f32[64]", None),
    ("quack.layer_norm", "input=bf16[2,64] normalized_shape=64 weight=f32[64] bias=bf16[64]", "DTYPE_UNSUPPORTED"),
    ("quack.softmax", "logits=f32[2,64] temperature=2", None),
    ("flashinfer.softmax", "logits=f32[2,64] row_temperature=f32[2]{1,2}", None),
    ("flashinfer.layernorm", "input=bf16[2,64] normalized_shape=64 weight=bf16[64] bias=bf16[64]", "DTYPE_UNSUPPORTED"),
    ("deep_gemm.bf16_gemm_nt", "input=bf16[2,64] weight=bf16[64,64] bias=bf16[64]", None),
    ("deep_gemm.bf16_gemm_nt", "input=bf16[2,65] weight=bf16[64,65]", None),
    (
        "vllm.reshape_and_cache_flash",
        "key_cache=bf16[2,4,2,16] value_cache=bf16[2,4,2,16] key=f32[3,2,16] value=f32[3,2,16] slots=i64[3]{1,7,2}",
        "KV_CACHE_DTYPE_MISMATCH",
    ),
]


@pytest.mark.parametrize(("kernel_id", "line", "code"), REFUSED, ids=[f"{k}: {line}" for k, line, _ in REFUSED])
def test_a_call_that_the_library_does_not_serve_is_refused_with_a_reason(kernel_id, line, code):
    name = NAMES[ROWS[kernel_id][0]]
    with pytest.raises(lz.NoKernelFoundError) as error:
        calls.call_door(name, line, f"stand_in.{kernel_id}")
    reasons = error.value.failures[f"stand_in.{kernel_id}"]
    assert reasons and (code is None or code in [r.code for r in reasons])


@pytest.mark.parametrize("kernel_id", ROWS)
def test_a_row_that_no_device_has_proven_ranks_below_torchs(kernel_id):
    """Such a row states no priority: the value is in one place for all libraries."""
    operation, row = ROWS[kernel_id]
    kernels = json.loads(_layerzero.kernels(None, False))
    torchs = [k["priority"] for k in kernels if k["backend"] == "torch" and k["operation"] == operation]
    own = [k["priority"] for k in kernels if (k["kernel_id"], k["operation"]) == (kernel_id, operation)]
    assert '"priority"' not in (backends.FOLDER / kernel_id.split(".")[0] / "capabilities.json").read_text()
    assert own == [backends.NOT_YET_MEASURED] and torchs and own[0] < min(torchs)


PLANTED = {
    "eps is dropped": lambda input, weight, eps, weight_offset=None: stand_ins._rms(input, weight, 0.0).to(input.dtype),
    "the weight is dropped": lambda input, weight, eps, weight_offset=None: stand_ins._rms(input, None, eps).to(
        input.dtype
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault):
    module = f"stand_in_planted_{len(fault)}"
    sys.modules[module] = types.SimpleNamespace(rms_norm=PLANTED[fault])
    _, row = ROWS["liger.rms_norm"]
    row = row | {"kernel_id": f"stand_in.{module}", "adapter": f"{module}:rms_norm", "requires_layouts": ["any"]}
    row |= {"dtypes": ["float32", "bfloat16"], "requires_contiguous": True, "accepts": ["weight"]}
    document = {"schema_version": "1.0", "backend": module, "backend_version": "1", "platform": "cpu"}
    del row["extends"], row["jit"]
    backends.register(document | {"ops": {"norm.rms": [row]}})
    ROWS[module] = ("norm.rms", row)
    try:
        assert any(calls.problems(name, line, got) for name, line, got in admitted(module))
    finally:
        del ROWS[module], sys.modules[module]
        _layerzero.unregister(f"{module}:rms_norm")
        backends._libraries.pop(module)


@pytest.mark.parametrize("name", stand_ins.SIGNATURES["functions"])
def test_a_call_that_a_signature_refuses_is_an_error_of_the_stand_in(name):
    with pytest.raises(TypeError):
        stand_ins.bound(name, lambda **_: None)(planted_argument=1)
