"""Adapters of the FlashAttention packages over stand-ins with the packages' signatures, against the FP64 references."""

import importlib

import pytest

torch = pytest.importorskip("torch")
import flash_stand_ins  # noqa: E402
import layerzero as lz  # noqa: E402
from adapter_calls import values_of  # noqa: E402
from conformance_calls import problems  # noqa: E402
from library_rows import adapter_of, failures_of, installed, rows, served  # noqa: E402
from operation_cases import cases  # noqa: E402

BACKENDS = ("flash_attn", "flash_attn_3", "flash_attn_4", "vllm_fa2", "vllm_fa3")
LATENT = ("flash_mla", "vllm_flash_mla")


@pytest.fixture(scope="module", autouse=True)
def packages():
    with installed(flash_stand_ins.modules(), (*BACKENDS, *LATENT)):
        yield


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_row_agrees_with_fp64(backend):
    failures, ran = [], {}
    for name, row in rows(backend):
        for line, _, values in served(name, row):
            ran[row["kernel_id"], name] = ran.get((row["kernel_id"], name), 0) + 1
            failures += failures_of(row, name, line, adapter_of(row)(*values))
    assert not failures, f"{len(failures)} of {ran}\n" + "\n".join(failures[:20])
    assert not [key for name, row in rows(backend) if (key := (row["kernel_id"], name)) not in ran], ran


@pytest.mark.parametrize("backend", LATENT)
def test_latents_in_one_tensor_agree_with_fp64(backend):
    from layerzero.errors import KernelRefusedError

    ((name, row),) = rows(backend)
    failures, ran = [], 0
    for line, _, values in served(name, row):
        with pytest.raises(KernelRefusedError, match="one tensor"):
            adapter_of(row)(*values)
        width, both = values[2].shape[2], torch.cat(values[2:4], -1)
        values[2:4] = both[..., :width], both[..., width:]
        ran += 1
        failures += failures_of(row, name, line, adapter_of(row)(*values))
    assert ran and not failures, "\n".join(failures[:20])


# Measured on an H200: docs/design/0021.
PROVEN = ("vllm_fa3.attention", "vllm_fa3.ragged_attention", "vllm_fa3.paged_prefill_attention")


@pytest.mark.parametrize("backend", (*BACKENDS, *LATENT))
def test_unproven_rows_rank_below_torch(backend):
    lz.rms_norm(torch.ones(1, 8))
    kernels = {k.kernel_id: k for k in lz.list_kernels()}
    lowest = min(
        k.priority for k in kernels.values() if k.kernel_id.startswith(("torch.sdpa", "torch.varlen", "torch.paged"))
    )
    own = [k for i, k in kernels.items() if i.startswith(f"{backend}.") and i not in PROVEN]
    assert own and all(k.priority < lowest for k in own)


@pytest.mark.parametrize("name", ["attention", "ragged_attention", "paged_attention", "paged_prefill_attention"])
def test_a_wrong_window_would_be_seen(name, monkeypatch):
    packed = importlib.import_module("layerzero.backends.flash_attn.packed")

    monkeypatch.setattr(packed, "window_of", lambda window: (-1, -1) if window is None else (window, 0))
    monkeypatch.setattr(packed, "window_left_of", lambda left: (-1, -1) if left < 0 else (left + 1, 0))
    operations = importlib.import_module("layerzero.backends.vllm_fa3.adapters").operations
    row = next(row for n, row in rows("vllm_fa3") if n == name)
    wrong = [
        line
        for line, arguments, values in served(name, row)
        if arguments.get("window", arguments.get("window_left"))
        if problems(name, line, getattr(operations, name)(*values))
    ]
    assert wrong


def test_declared_offsets_are_passed_on(monkeypatch):
    from layerzero.torch import offsets

    operations = importlib.import_module("layerzero.backends.vllm_fa3.adapters").operations
    forward, seen = operations.forward, []
    monkeypatch.setattr(operations, "forward", lambda *given: seen.append(given) or forward(*given))
    query, key = torch.randn(9, 4, 64, dtype=torch.bfloat16), torch.randn(9, 2, 64, dtype=torch.bfloat16)
    host = torch.tensor([0, 4, 4, 9], dtype=torch.int32)

    def run(start, rows=9):
        given = query[:rows], key, key, start, start, True, 0.125, None, None, None, None, None, None, True
        return operations.ragged_attention(*given), seen.pop()

    guarded, given = run(host.clone())
    assert len(given[2]) == 6 and given[3] == 9
    start = host.clone()
    offsets.declare(start, host.numpy())
    passed, given = run(start)
    assert given[2] is start and given[1].offsets is start and (given[3], given[1].longest) == (5, 5)
    for one, other in zip(passed, guarded, strict=True):
        torch.testing.assert_close(one, other)
    assert len(run(start, 8)[1][2]) == 6, "offsets of more rows than there are"
    start[1] = 3
    assert len(run(start)[1][2]) == 6, "written since they were declared"
    offsets.declare(start, torch.tensor([0, 5, 4, 9]).numpy())
    assert len(run(start)[1][2]) == 6, "no offsets"


@pytest.mark.parametrize("backend", ["flash_attn", "vllm_fa2"])
@pytest.mark.parametrize("starts", [[0, 1], [0, 0, 1], [0, 1, 1, 2]])
def test_declared_offsets_of_single_queries(backend, starts):
    from layerzero.torch import offsets

    adapter = importlib.import_module(f"layerzero.backends.{backend}.adapters").operations.ragged_attention
    start, ends = (torch.tensor(t, dtype=torch.int32) for t in (starts, [9 * i for i in range(len(starts))]))
    query, key = (torch.randn(n, h, 64, dtype=torch.bfloat16) for n, h in ((starts[-1], 4), (int(ends[-1]), 2)))
    guarded = adapter(query, key, key, start, ends, True, 0.125, None, None, None, None, None, None, True)
    for index in (start, ends):
        offsets.declare(index, index.numpy())
    passed = adapter(query, key, key, start, ends, True, 0.125, None, None, None, None, None, None, True)
    for one, other in zip(passed, guarded, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", sorted({name for name, _ in rows("flash_attn")}))
def test_no_value_is_read(name, monkeypatch):
    from layerzero.backends.flash_attn.packed import Operations
    from layerzero.torch.references import reference_function

    monkeypatch.setattr(lz, "kv_page_table", reference_function("kv_page_table"))  # operations refuse meta tensors

    def forward(query, keys, cu_q, most, how, rows):
        output = query.new_empty(*query.shape[:2], keys.value.shape[-1])
        return output, query.new_empty(query.shape[:2], dtype=torch.float32)

    adapter, ran = getattr(Operations(forward), name), 0
    for _, arguments in cases(name):
        row = next(row for n, row in rows("flash_attn") if n == name)
        values = values_of(name, arguments, (*row["accepts"], "causal"), lambda tensor: tensor.to("meta"))
        if values is None or any(isinstance(v, torch.Tensor) and v.numel() == 0 for v in arguments.values()):
            continue
        adapter(*values)  # a read of a meta tensor raises
        ran += 1
    assert ran


@pytest.mark.parametrize(
    ("batch", "rows_each", "keys", "capturing", "first"),
    [
        (1, 512, 512, False, False),
        (1, 512, 512, True, True),
        (1, 512, 1024, False, False),
        (1, 512, 1040, False, True),
        (4, 256, 2048, False, True),
    ],
)
def test_flash_attention_3_comes_first_over_pages_but_for_few_keys(batch, rows_each, keys, capturing, first):
    lz.rms_norm(torch.ones(1, 8))
    pages = batch * keys // 16
    q, cache = torch.empty(batch * rows_each, 8, 128).half(), torch.empty(pages, 16, 2, 128).half()
    starts, indptr = (torch.arange(0, batch * n + 1, n, dtype=torch.int32) for n in (rows_each, keys // 16))
    last = torch.full((batch,), 16, dtype=torch.int32)
    index = torch.arange(pages, dtype=torch.int32)
    call = (q, cache, cache, starts, indptr, index, last)
    found = lz.explain("paged_prefill_attention", *call, device="h100", capturing=capturing)
    assert (found.kernel_id == "vllm_fa3.paged_prefill_attention") == first
