"""FlashInfer's rows that plan with values of tables: a call asks for them, and the compiler thread makes them ready.

The adapters are the shipped ones, over stand-ins with FlashInfer's recorded signatures; the rows are kernels of the CPU here.
"""

import importlib
import time

import flashinfer_stand_ins
import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero, backends  # noqa: E402
from layerzero.jit import library, store, work  # noqa: E402
from library_rows import installed  # noqa: E402
from operation_cases import arguments_of  # noqa: E402

CACHES = "paged_k_cache=f32[{pages},8,2,64] paged_v_cache=f32[{pages},8,2,64] "
DECODE = "q=f32[2,4,64] " + CACHES.format(pages=4) + "kv_indptr=i32[3]{0,1,4} kv_indices=i32[4]{1,0,2,3} "
PREFILL = "query=f32[{rows},4,64] " + CACHES.format(pages=3) + "qo_indptr=i32[3]{{0,{first},{rows}}} "
PREFILL += "kv_indptr=i32[3]{{0,2,3}} kv_indices=i32[3]{{2,0,1}} kv_last_page_len=i32[2]{{{last}}} causal=true"
CALLS = [
    ("flashinfer.paged_decode", "paged_decode_attention", DECODE + "kv_last_page_len=i32[2]{8,3}"),
    ("flashinfer.paged_prefill", "paged_prefill_attention", PREFILL.format(rows=5, first=3, last="8,3")),
    # a prompt: as many queries as keys
    ("flashinfer.paged_prefill", "paged_prefill_attention", PREFILL.format(rows=21, first=16, last="8,5")),
    (
        "flashinfer.ragged_prefill",
        "ragged_attention",
        "query=f32[9,4,64] key=f32[9,2,64] value=f32[9,2,64] cu_seqlens_q=i32[3]{0,7,9} cu_seqlens_kv=i32[3]{0,7,9} causal=true",
    ),
    (
        "flashinfer.cascade",
        "cascade_decode_attention",
        "query=f32[2,4,64] shared_k=f32[6,2,64] shared_v=f32[6,2,64] "
        + DECODE.partition(" ")[2]
        + "kv_last_page_len=i32[2]{8,3}",
    ),
    (
        "flashinfer.mla_decode_paged",
        "mla_decode_paged",
        "q_nope=f32[2,4,512] q_pe=f32[2,4,64] ckv_cache=f32[4,8,512] kpe_cache=f32[4,8,64] "
        "kv_indptr=i32[3]{0,1,4} kv_indices=i32[4]{1,0,2,3} kv_last_page_len=i32[2]{8,3} "
        "sm_scale=0.04",
    ),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_known", {})
    lz.configure(jit={"memory_mb": 0}, memory_headroom_mb=0)
    with installed(flashinfer_stand_ins.modules(), ("flashinfer",)):
        yield
        assert work.idle(time.monotonic() + 60)
    lz.configure(jit={"memory_mb": 2048}, memory_headroom_mb=1024)


@pytest.fixture
def planted():
    """Registers a row of FlashInfer as a kernel of the CPU that every call prefers."""
    adapters = []

    def plant(kernel_id):
        ops = backends.descriptor_of("flashinfer")["ops"]
        ((operation, row),) = [(o, r) for o, rows in ops.items() for r in rows if r["kernel_id"] == kernel_id]
        kept = ("adapter", "jit", "accepts", "masked_v_nan", "gqa_groups")
        any_size = {} if "mla" in operation else {"supports_gqa": True, "max_head_dim": None, "max_seq_len": None}
        fixed = {
            "kernel_id": "planted_plans.kernel",
            "dtypes": ["float32"],
            "requires_layouts": ["any"],
            "priority": 100,
        }
        own = {k: v for k, v in row.items() if k in kept} | any_size | fixed
        document = {"schema_version": "1.0", "backend": "planted_plans", "backend_version": "1", "platform": "cpu"}
        backends.register(document | {"ops": {operation: [own]}})
        adapters.append(own["adapter"])
        return own["kernel_id"]

    yield plant
    for adapter in adapters:
        _layerzero.unregister(adapter)


@pytest.mark.parametrize(("kernel_id", "name", "line"), CALLS, ids=[f"{k}-{i}" for i, (k, _, _) in enumerate(CALLS)])
def test_a_row_that_plans_becomes_ready_and_serves_calls_whose_tables_are_known(planted, kernel_id, name, line):
    # proves: jit
    kernel = planted(kernel_id)
    arguments = arguments_of(name, line)
    first = getattr(lz, name)(**arguments)
    assert work.idle(time.monotonic() + 60)
    assert [(one.state, one.detail) for one in library.works()] == [("ready", "")]
    assert lz.explain(name, **arguments).kernel_id == kernel
    plans = importlib.import_module("layerzero.backends.flashinfer.plans")  # the one that `installed` has imported
    plans.read_tables(*(t for t in arguments.values() if isinstance(t, torch.Tensor) and t.dtype == torch.int32))
    found = getattr(lz, name)(**arguments, kernel=kernel)
    torch.testing.assert_close(found, first, rtol=1e-4, atol=1e-4)


def test_a_refused_example_is_no_failure_of_the_compiler(planted):
    kernel = planted("flashinfer.paged_decode")
    more_sequences_than_pages = "q=f32[5,4,64] " + CACHES.format(pages=4) + "kv_indptr=i32[6]{0,1,1,2,3,4} "
    more_sequences_than_pages += "kv_indices=i32[4]{1,0,2,3} kv_last_page_len=i32[5]{8,0,8,8,3}"
    lz.paged_decode_attention(**arguments_of("paged_decode_attention", more_sequences_than_pages))
    assert work.idle(time.monotonic() + 60)
    (refused,) = library.works()
    assert refused.state == "failed" and "KernelRefusedError: a sequence without pages" in refused.detail
    key = library.key_of(kernel, refused.operation, refused.kind, refused.call)
    assert store.failure_of(key) is None, "the next process tries it with its own call"
