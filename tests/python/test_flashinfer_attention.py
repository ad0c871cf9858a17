"""Adapters of FlashInfer's attention over stand-ins with its signatures, against the FP64 references."""

import importlib
import sys

import flashinfer_stand_ins
import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.errors import KernelRefusedError  # noqa: E402
from library_rows import adapter_of, failures_of, installed, rows, served  # noqa: E402
from operation_cases import arguments_of  # noqa: E402

OURS = {name for name in contracts() if "attention" in name or name.startswith(("mla", "merge"))}
PAGED = "q=f32[2,4,64] paged_k_cache=f32[4,8,4,64] paged_v_cache=f32[4,8,4,64] kv_indptr=i32[3]{0,1,4} "
PAGED += "kv_indices=i32[4]{1,0,2,3} kv_last_page_len=i32[2]{8,3}"


@pytest.fixture(autouse=True)
def library(monkeypatch):
    with installed(flashinfer_stand_ins.modules(), ("flashinfer",)):
        monkeypatch.setattr(dense(), "_blocks", lambda device: 8)
        yield


def plans():
    import layerzero.backends.flashinfer.plans as module

    return module


def dense():
    return importlib.import_module("layerzero.backends.flashinfer.attention")


def tables_of(name, values):
    params = [p for p in contracts()[name]["params"] if p["kind"] == "tensor"]
    indices = {p["name"] for p in params if p["dtypes"] in (["int32", "int64"], ["int64", "int32"])}
    names = [p["name"] for p in contracts()[name]["params"]]
    return [v for n, v in zip(names, values, strict=False) if n in indices and v is not None]


def small_enough(row, arguments):
    """Rules of rows that the stand-ins do not need are left out; these say what a function can take at all."""
    first = next(iter(arguments.values()))
    if f"torch.{arguments.get('dtype', 'float32')}" != str(first.dtype) and "partials" in arguments:
        return False
    shape = first.shape
    one_sequence = {"field": "b", "relation": "==", "operand": 1, "code": "SHAPE_UNSUPPORTED"} in row["constraints"]
    return not one_sequence or shape[0] == 1


@pytest.mark.parametrize(
    ("name", "row"), [pytest.param(n, r, id=f"{r['kernel_id']}-{n}") for n, r in rows("flashinfer", OURS)]
)
def test_every_row_agrees_with_fp64(name, row):
    failures, ran, refused = [], 0, []
    for line, arguments, values in served(name, row):
        if not small_enough(row, arguments) or ("single_decode" in row["adapter"] and not decodes(arguments)):
            continue
        plans().read_tables(*tables_of(name, values))
        try:
            found = adapter_of(row)(*values)
        except KernelRefusedError as error:
            refused.append(str(error))
            continue
        except AssertionError as error:
            if str(error) != "a row without a key":  # a rule of the row
                raise
            continue
        ran += 1
        failures += failures_of(row, name, line, found)
    assert not failures, f"{len(failures)} of {ran}\n" + "\n".join(failures[:20])
    assert ran, refused


def decodes(arguments):
    return arguments["query"].shape[2 if arguments.get("layout") == "BHSD" else 1] == 1


def decode(arguments, **changed):
    from layerzero.backends.flashinfer.packed import paged_decode_attention

    a = {**arguments, **changed}
    tables = (a["kv_indptr"], a["kv_indices"], a["kv_last_page_len"])
    caches = (a["paged_k_cache"], a["paged_v_cache"])
    return paged_decode_attention(a["q"], *caches, *tables, 0.125, -1, None, None, None, None, None, False)


def test_unknown_tables_are_refused_and_written_ones_too():
    arguments = arguments_of("paged_decode_attention", PAGED)
    with pytest.raises(KernelRefusedError, match="kv_indptr.*not known on the host.*read_tables"):
        decode(arguments)
    plans().read_tables(arguments["kv_indptr"], arguments["kv_indices"], arguments["kv_last_page_len"])
    decode(arguments)
    arguments["kv_last_page_len"].fill_(5)
    with pytest.raises(KernelRefusedError, match="kv_last_page_len.*were written"):
        decode(arguments)
    plans().read_tables(arguments["kv_last_page_len"])
    want = lz.paged_decode_attention(**{**arguments, "sm_scale": 0.125})
    torch.testing.assert_close(decode(arguments), want, rtol=1e-4, atol=1e-4)


def test_a_plan_is_made_once_for_the_same_tables(monkeypatch):
    arguments, made = arguments_of("paged_decode_attention", PAGED), []
    wrapper = sys.modules["flashinfer"].BatchDecodeWithPagedKVCacheWrapper
    plan = wrapper.plan
    monkeypatch.setattr(wrapper, "plan", lambda own, *given, **named: (made.append(own), plan(own, *given, **named)))
    tables = [arguments[name] for name in ("kv_indptr", "kv_indices", "kv_last_page_len")]
    plans().read_tables(*tables)
    decode(arguments)
    decode(arguments, q=arguments["q"] * 2)
    assert len(made) == 1
    plans().read_tables(*tables)  # the same values: the plan stays
    decode(arguments)
    assert len(made) == 1
    tables[2].fill_(2)
    plans().read_tables(*tables)
    decode(arguments)
    assert len(made) == 2
    assert len(plans()._plans) <= plans().MOST


def test_a_write_that_torch_does_not_count_is_read_again():
    arguments = arguments_of("paged_decode_attention", PAGED)
    last = arguments["kv_last_page_len"]
    plans().read_tables(arguments["kv_indptr"], arguments["kv_indices"], last)
    decode(arguments)
    with torch.autograd._unsafe_preserve_version_counter(last):
        last.fill_(4)
    plans().read_tables(last)
    want = lz.paged_decode_attention(**{**arguments, "sm_scale": 0.125})
    torch.testing.assert_close(decode(arguments), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("table", [torch.zeros(2), [0, 1], None])
def test_other_values_than_index_tables_are_refused(table):
    with pytest.raises(lz.InvalidRequestError, match="read_tables: wanted int32 or int64 tensors, got"):
        lz.read_tables(table)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"kv_indices": [1, 0, 2, 9]}, "kv_indices: wanted values from 0 to 3"),
        ({"kv_last_page_len": [8, 9]}, "kv_last_page_len: wanted values from 0 to 8"),
        ({"kv_indptr": [0, 1, 5]}, "kv_indptr: wanted offsets"),
        ({"kv_indptr": [0, 0, 4]}, "without pages"),
        ({"kv_last_page_len": [0, 3]}, "empty last page"),
    ],
)
def test_index_data_is_checked_before_a_plan(changed, text):
    arguments = arguments_of("paged_decode_attention", PAGED)
    arguments |= {name: torch.tensor(values, dtype=torch.int32) for name, values in changed.items()}
    plans().read_tables(arguments["kv_indptr"], arguments["kv_indices"], arguments["kv_last_page_len"])
    with pytest.raises(KernelRefusedError, match=text):
        decode(arguments)


def test_more_key_heads_than_blocks_are_refused_over_many_keys(monkeypatch):
    """FlashInfer would divide by zero on the host."""
    attention = dense()

    def call(heads, keys, function, layout="BSHD"):
        shapes = ((1, 1, heads, 64), (1, keys, heads, 64), (1, keys, heads, 64))
        q, k, v = (torch.ones(s) if layout == "BSHD" else torch.ones(s).transpose(1, 2).contiguous() for s in shapes)
        return function(q, k, v, True, 0.125, None, 0.0, None, None, None, None, False, layout)

    monkeypatch.setattr(attention, "_blocks", lambda device: 12)
    for layout in ("BSHD", "BHSD"):
        with pytest.raises(KernelRefusedError, match="13 key heads over 257 keys.*at most 12"):
            call(13, 257, attention.single_decode, layout)
        call(12, 257, attention.single_decode, layout)
        call(13, 256, attention.single_decode, layout)
        call(13, 257, attention.single_decode_tensor_cores, layout)


def test_rows_that_plan_are_not_safe_in_a_capture():
    for _, row in rows("flashinfer", OURS):
        planned = row.get("extends") == "flashinfer.planned" or "mla" in row["kernel_id"]
        assert not planned or not row.get("is_cuda_graph_safe")
