"""torch's rows of paged, packed, latent, sparse and merged attention on the device: against the references, without a read.

Every call runs under `torch.cuda.set_sync_debug_mode("error")` and in a captured graph; unused slots hold NaN.
"""

import contextlib

import layerzero as lz
import pytest
import torch

BF16, F32 = torch.bfloat16, torch.float32
H_Q, H_KV, D, SIZE = 8, 2, 64, 16
LENGTHS = (70, 0, 16, 1, 333)
OTHERS = {"return_lse": True}


def r(*shape, dtype=BF16):
    return torch.randn(shape, device="cuda", dtype=dtype)


def index(*values):
    return torch.tensor(values, device="cuda", dtype=torch.int32)


def offsets(lengths):
    return index(0, *torch.tensor(lengths).cumsum(0).tolist())


def paged(*widths, heads=(H_KV,), dtype=BF16):
    """Caches of the given widths with NaN in every slot that no sequence uses, and the CSR list of the sequences."""
    counts = [-(-n // SIZE) for n in LENGTHS]
    order = torch.randperm(sum(counts) + 3, device="cuda").int()
    last = index(*(n - (c - 1) * SIZE if c else 99 for n, c in zip(LENGTHS, counts, strict=True)))
    caches = [torch.full((len(order), SIZE, *heads, w), torch.nan, device="cuda", dtype=dtype) for w in widths]
    first = 0
    for n, c in zip(LENGTHS, counts, strict=True):
        pages = order[first : first + c].long()
        for cache in caches:
            flat = cache[pages].flatten(0, 1)
            flat[:n] = torch.randn(flat[:n].shape, device="cuda").to(dtype)
            cache[pages] = flat.view_as(cache[pages])
        first += c
    return caches, (offsets(counts), order, last)


def table(indptr, order):
    rows = torch.full((len(LENGTHS), 24), -1, device="cuda", dtype=torch.int32)
    for s in range(len(LENGTHS)):
        pages = order[int(indptr[s]) : int(indptr[s + 1])]
        rows[s, : len(pages)] = pages
    return rows


def calls(name, dtype):
    """Positional arguments and the keyword arguments to try."""
    torch.manual_seed(0)
    caches, lists = paged(D, D, dtype=dtype)
    b, sinks, slopes = len(LENGTHS), r(H_Q, dtype=F32), torch.rand(H_Q, device="cuda")
    packed, starts = (
        (r(120, H_Q, D, dtype=dtype), r(110, H_KV, D, dtype=dtype)),
        (offsets((3, 0, 60, 40)), offsets((9, 4, 60, 30))),
    )
    decode = [{}, {"sinks": sinks}, OTHERS, {"softcap": 3.0}]
    windows = [{"window_left": 20, **OTHERS}, {"alibi_slopes": slopes, **OTHERS}]
    latents, latent_lists = paged(512, 64, heads=(), dtype=dtype)
    return {
        "paged_decode_attention": ((r(b, H_Q, D, dtype=dtype), *caches, *lists), decode + windows),
        "paged_attention": (
            (r(b, 1, H_Q, D, dtype=dtype), *caches, table(*lists[:2]), index(*LENGTHS)),
            [*decode, {"window": 20}, {"alibi_slopes": slopes}],
        ),
        "paged_cross_attention": ((r(b, 3, H_Q, D, dtype=dtype), *caches, *lists), decode),
        "cascade_decode_attention": (
            (r(b, H_Q, D, dtype=dtype), r(90, H_KV, D, dtype=dtype), r(90, H_KV, D, dtype=dtype), *caches, *lists),
            decode + windows,
        ),
        "paged_prefill_attention": (
            (r(60, H_Q, D, dtype=dtype), *caches, offsets((20, 0, 16, 1, 20)), *lists),
            [{}, {"causal": False}, {"window_left": 9}, {"sinks": sinks, **OTHERS}],
        ),
        "ragged_attention": ((packed[0], packed[1], packed[1] + 1, *starts), [{}, {"window": 9}, {"sinks": sinks, **OTHERS}]),
        "pod_attention": (
            (packed[0], packed[1], packed[1] + 1, *starts, r(b, H_Q, D, dtype=dtype), *caches, *lists),
            [{}, {"sinks": sinks, **OTHERS}],
        ),
        "mla_decode": ((r(3, 16, 512, dtype=dtype), r(3, 16, 64, dtype=dtype), r(99, 1, 512, dtype=dtype), r(99, 1, 64, dtype=dtype), 0.07), [{}, {"causal": True, **OTHERS}]),
        "mla_decode_paged": ((r(b, 16, 512, dtype=dtype), r(b, 16, 64, dtype=dtype), *latents, *latent_lists, 0.07), [{}, OTHERS]),
        "mla_prefill": (tuple(r(2, s, h, w, dtype=dtype) for s, h, w in ((40, 4, 128), (40, 4, 64), (70, 4, 128), (70, 1, 64), (70, 4, 128))), [{"layout": "BSHD"}]),
        "attention_partials": ((r(2, 5, H_Q, D, dtype=dtype), r(2, 99, H_KV, D, dtype=dtype), r(2, 99, H_KV, D, dtype=dtype), 4), [{"layout": "BSHD"}, {"layout": "BSHD", "raw": True}]),
        "merge_attention": ((r(9, H_Q, D, dtype=dtype), r(9, H_Q, dtype=F32), r(9, H_Q, D, dtype=dtype), r(9, H_Q, dtype=F32)), [{}, {"sinks": sinks}]),
        "merge_partials": ((r(4, 9, H_Q, D, dtype=dtype), r(4, 9, H_Q, dtype=F32)), [{}, {"sinks": sinks}]),
        "block_sparse_attention": ((r(96, H_Q, D, dtype=dtype), r(64, H_KV, D, dtype=dtype), r(64, H_KV, D, dtype=dtype), index(0, 2, 2, 5), index(1, 3, 0, 1, 2), 32, 16), [{}, OTHERS]),
        "variable_block_sparse_attention": ((r(96, H_Q, D, dtype=dtype), r(64, H_KV, D, dtype=dtype), r(64, H_KV, D, dtype=dtype), torch.rand(2, 3, 2, device="cuda") > 0.4, index(32, 0, 64, 10, 50, 36).view(2, 3), index(32, 32, 9, 55).view(2, 2)), [{}, OTHERS]),
    }[name]  # fmt: skip


NAMES = (
    "paged_decode_attention", "paged_attention", "paged_cross_attention", "cascade_decode_attention",
    "paged_prefill_attention", "ragged_attention", "pod_attention", "mla_decode", "mla_decode_paged", "mla_prefill",
    "attention_partials", "merge_attention", "merge_partials", "block_sparse_attention",
    "variable_block_sparse_attention",
)  # fmt: skip


@contextlib.contextmanager
def no_reads():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def rows_of(name):
    return dict.fromkeys(k.kernel_id for k in lz.list_kernels(name) if k.installed and k.kernel_id.startswith("torch."))


def served(name, dtype):
    """(arguments, options, rows that take them, the reference's result)."""
    arguments, variants = calls(name, dtype)
    for options in variants:
        found = {}
        for kernel in rows_of(name):
            with contextlib.suppress(lz.NoKernelFoundError):
                found[kernel] = getattr(lz, name)(*arguments, **options, kernel=kernel)
        references = [k for k in found if k.startswith("torch.ref.")]
        assert references, options
        want = found.pop(references[0])
        yield arguments, options, [k for k in found if not k.startswith("torch.ref.")], want


def check(got, want, dtype):
    tolerance = 2e-2 if dtype == BF16 else 2e-3
    for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (got, want)), strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_agrees_and_reads_nothing(name, dtype):
    ran = 0
    for arguments, options, kernels, want in served(name, dtype):
        for kernel in kernels:
            with no_reads():
                got = getattr(lz, name)(*arguments, **options, kernel=kernel)
            check(got, want, dtype)
            ran += 1
    assert ran or dtype == F32


@pytest.mark.parametrize("name", NAMES)
def test_is_captured(name):
    for arguments, options, kernels, want in served(name, BF16):
        for kernel in kernels:
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                getattr(lz, name)(*arguments, **options, kernel=kernel)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                got = getattr(lz, name)(*arguments, **options, kernel=kernel)
            graph.replay()
            torch.cuda.synchronize()
            check(got, want, BF16)


@pytest.mark.parametrize("name", NAMES)
def test_no_reference_answers(name):
    arguments, variants = calls(name, BF16)
    assert not lz.which(name, *arguments, **variants[0])["kernel_id"].startswith(("torch.ref.", "ref."))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_caches_of_eight_bits(dtype):
    caches, lists = paged(D, D)
    stored = [torch.randn(c.shape, device="cuda").mul(20).to(dtype) for c in caches]
    q, units = (
        r(len(LENGTHS), H_Q, D),
        {"k_scale": torch.rand(H_KV, device="cuda") / 9, "v_scale": torch.rand(H_KV, device="cuda")},
    )
    want = lz.paged_decode_attention(q, *stored, *lists, **units, kernel="torch.ref.attention.gqa.decode.paged")
    for kernel in ("torch.varlen.units", "torch.paged"):
        with no_reads():
            got = lz.paged_decode_attention(q, *stored, *lists, **units, kernel=kernel)
        torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


def test_invalid_index_data_stay_within_the_tensors():
    """Undefined numbers, no fault on the device."""
    caches, (indptr, order, last) = paged(D, D)
    q, wrong = r(len(LENGTHS), H_Q, D), order.clone()
    wrong[0], wrong[7] = 1 << 30, -5
    for lists in (
        (indptr, wrong, last),
        (indptr.flip(0), order, last),
        (indptr * 1000, order, last),
        (indptr, order, last - 50),
    ):
        for kernel in ("torch.varlen", "torch.paged"):
            lz.paged_decode_attention(q, *caches, *lists, kernel=kernel)
            torch.cuda.synchronize()


def test_gradients_of_packed_attention():
    """Keys and queries of no sequence get a gradient of 0."""
    offsets_q, offsets_k = offsets((3, 0, 60, 40)), offsets((9, 4, 60, 30))
    leaves = [t.requires_grad_() for t in (r(120, H_Q, D), r(110, H_KV, D), r(110, H_KV, D))]
    twins = [t.detach().double().requires_grad_() for t in leaves]
    lz.ragged_attention(*leaves, offsets_q, offsets_k, kernel="torch.varlen").float().square().sum().backward()
    reference = "torch.ref.attention.gqa.prefill.ragged"
    lz.ragged_attention(*twins, offsets_q, offsets_k, kernel=reference).square().sum().backward()
    for leaf, twin in zip(leaves, twins, strict=True):
        error = (leaf.grad.double() - twin.grad).norm() / twin.grad.norm()
        assert error < 2e-2, error
        assert not leaf.grad[-7:].any()
