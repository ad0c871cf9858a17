"""The expressions over paged caches beyond the conformance cases: blocks of few entries, one sequence of many pages."""

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
from adapter_calls import values_of  # noqa: E402
from conformance_calls import call_door, engine_accepts, problems  # noqa: E402
from layerzero.backends.torch import pages, partials, sparse  # noqa: E402
from layerzero.contracts import parameter_names  # noqa: E402
from operation_cases import cases, lines  # noqa: E402

ROWS = {
    "paged_decode_attention": "torch.paged",
    "paged_attention": "torch.paged",
    "paged_cross_attention": "torch.paged",
    "cascade_decode_attention": "torch.paged",
    "mla_decode_paged": "torch.mla_paged",
    "block_sparse_attention": "torch.block_sparse",
}


@pytest.mark.parametrize("name", ROWS)
def test_conformance_in_blocks_of_two(name, monkeypatch):
    """The cases are small: by themselves they are padded. In blocks of two most sequences have several."""
    used = set()

    def counted(*arguments, found=pages.blocks):
        block = found(*arguments)
        used.add(block.ends is not None)
        return block

    monkeypatch.setattr(pages, "block_length", lambda entries: 2)
    monkeypatch.setattr(pages, "blocks", counted)
    failures = []
    for line in lines(name):
        if not engine_accepts(name, line):
            continue
        try:
            result = call_door(name, line, kernel=ROWS[name])
        except lz.NoKernelFoundError:
            continue
        failures += [f"{line}\n    {text}" for text in problems(name, line, result)]
    assert not failures, "\n".join(failures)
    assert True in used or name == "paged_attention", "no case in blocks"


@pytest.mark.parametrize("size", [1, 4, 16])
def test_sequences_of_unlike_length(size):
    """One long sequence among short and empty ones; unused slots hold NaN; the same as the engine's own kernel."""
    generator = torch.Generator().manual_seed(size)
    lengths = [700, 0, 3, 64, 1, 129]
    counts = [-(-n // size) for n in lengths]
    total = sum(counts)
    caches = [torch.randn(total, size, 2, 16, generator=generator) for _ in range(2)]
    indices = torch.randperm(total, generator=generator).int()
    indptr = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    last = torch.tensor([n - (c - 1) * size if c else 9 for n, c in zip(lengths, counts, strict=True)]).int()
    for s, n in enumerate(lengths):
        for cache in caches:
            if n:
                cache[indices[indptr[s + 1] - 1].item(), last[s] :] = torch.nan
    q = torch.randn(len(lengths), 6, 16, generator=generator)
    arguments = (q, *caches, indptr, indices, last)
    for options in ({}, {"softcap": 2.0}, {"window_left": 40}, {"alibi_slopes": torch.linspace(-0.2, 0.5, 6)}):
        how = {"return_lse": True, "sinks": torch.linspace(-2, 2, 6), **options}
        got, want = (
            lz.paged_decode_attention(*arguments, **how, kernel=kernel)
            for kernel in ("torch.paged", "ref.attention.gqa.decode.paged")
        )
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_sequence_without_entries_reads_nothing_that_is_not_in_use(batch):
    """One sequence is padded, three are in blocks; no slot of the cache is in use and each holds NaN or infinity."""
    for bad in (torch.nan, torch.inf):
        cache = torch.full((2, 16, 2, 16), bad)
        tables = torch.arange(batch + 1).clamp(max=1).int(), torch.zeros(2).int(), torch.zeros(batch).int()
        q, shared = torch.randn(batch, 6, 16), torch.randn(2, 5, 2, 16)
        got, want = (
            lz.cascade_decode_attention(q, *shared, cache, cache, *tables, return_lse=True, kernel=kernel)
            for kernel in ("torch.paged", "torch.ref.attention.gqa.decode.cascade")
        )
        for a, b in zip(got, want, strict=True):
            assert bool(a.isfinite().all())
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        output, lse = lz.paged_decode_attention(q, cache, cache, *tables, return_lse=True, kernel="torch.paged")
        assert not bool(output.any()) and bool((lse == -torch.inf).all())


@pytest.mark.parametrize("name", ["merge_attention", "merge_partials"])
def test_merges_of_any_size(name):
    """Their rows leave small tensors on the CPU to the references: the functions are called as they are."""
    failures = []
    for line, arguments in cases(name):
        if any(isinstance(t, torch.Tensor) and t.shape[0] == 0 for t in arguments.values()):
            continue
        result = getattr(partials, name)(*values_of(name, arguments, parameter_names(name)))
        failures += [f"{line}\n    {text}" for text in problems(name, line, result)]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("size", [1e7, 1e8, -1e30])
def test_merges_with_a_sink_as_large_as_the_sums(size):
    """Three equal terms, two of them with the value 1."""
    ones, sums, sinks = torch.ones(2, 4, 4, 8), torch.full((2, 4, 4), size), torch.full((4,), size)
    output, lse = partials.merge_attention(ones[0], sums[0], ones[1], sums[1], sinks)
    torch.testing.assert_close(output, ones[0] * 2 / 3)
    torch.testing.assert_close(lse, sums[0])
    torch.testing.assert_close(partials.merge_partials(ones, sums, None, sinks, "float32")[0], ones[0] * 2 / 3)


def test_a_page_that_does_not_exist_is_refused_on_the_cpu_alone():
    """Tensors of another device are not read."""
    entries = pages.Entries(
        torch.tensor([0, 7, 1, -3, 2]), torch.tensor([0, 2, 4]), None, torch.tensor([2, 2, 1]), 1, 2, "x"
    )  # fmt: skip
    with pytest.raises(lz.KernelExecutionError, match="x: wanted pages below 3"):
        pages.blocks("operation", entries, 3)
    meta = pages.Entries(*(t.to("meta") if isinstance(t, torch.Tensor) else t for t in entries))
    assert pages.blocks("operation", meta, 3).row.device.type == "meta"


def test_blocks_of_unlike_size_by_the_fused_kernel():
    """A NaN key makes the rows that see it NaN and no others; a row without a block gives 0."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, h, 64, generator=generator) for n, h in ((64, 8), (96, 2), (96, 2)))
    k[5, 1] = torch.nan
    mask = torch.rand(2, 4, 6, generator=generator) < 0.5
    mask[0, 1] = False
    mask[1, 0, 0], mask[1, 1, 0] = True, False
    rows, columns = (
        torch.tensor([[16] * 4, [10, 20, 4, 30]]).int(),
        torch.tensor([[16] * 6, [6, 10, 20, 20, 20, 20]]).int(),
    )
    got = sparse.variable_block_sparse_sdpa(q, k, v, mask, rows, columns, 0.125, False)
    want = lz.variable_block_sparse_attention(
        q, k, v, mask, rows, columns, kernel="torch.ref.attention.sparse.variable_block"
    )
    assert want.isnan().any() and not want.isnan().all()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)
