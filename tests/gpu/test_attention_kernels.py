"""Own CUDA kernels of attention over many keys, where they are split, against torch's FP64 on the device."""

import layerzero as lz
import pytest
import torch
from layerzero.torch.references import call_reference

FEW = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
TILES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # weights of 16 bits
ALL_TILES = {torch.float32: 1e-5, **TILES}
LENGTHS = [1, 63, 64, 65, 127, 1000, 4096, 9000]
PAGE = 16


def of_tiles(kernel, dtype):
    return kernel if dtype in TILES else f"{kernel}.fp32"


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def double(values):
    floats = (torch.float32, torch.float16, torch.bfloat16)
    return {k: v.double() if isinstance(v, torch.Tensor) and v.dtype in floats else v for k, v in values.items()}


def check(name, values, kernel, tolerance, layout=None, **options):
    """Each row of the output within `tolerance` of its largest element; the lse, sums and largest logits as float32."""
    given = {"layout": layout} if layout else {}
    got = getattr(lz, name)(**values, **options, **given, kernel=kernel)
    want = call_reference(name, double({**values, **options}), layout)
    got, want = (t if isinstance(t, tuple) else (t,) for t in (got, want))
    output, expected = got[0].double(), want[0].double()
    least = torch.finfo(got[0].dtype).tiny  # below it float16 has fewer digits
    worst = ((output - expected).abs() / expected.abs().amax(-1, keepdim=True).clamp(min=max(least, 1e-6))).amax()
    assert worst <= tolerance, f"{name} {kernel} {options}: off by {worst}"
    for one, other in zip(got[1:], want[1:], strict=True):
        far = options.get("alibi_slopes") is not None  # float32 holds distances of 900 to 6e-5
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=6e-4 if far else 1e-4)


@pytest.mark.parametrize("dtype", FEW)
@pytest.mark.parametrize(("h_q", "h_kv", "d"), [(4, 4, 64), (8, 2, 128), (32, 4, 128), (9, 1, 80), (6, 2, 256)])
def test_decode_of_every_length(dtype, h_q, h_kv, d):
    torch.manual_seed(d)
    slopes, sinks = torch.rand(h_q, device="cuda") * 0.1, normal(h_q)
    group = "standard" if h_q == h_kv else "gqa"
    for s_kv in LENGTHS:
        for b in (1, 3):
            k, v = normal(b, h_kv, s_kv, d, dtype=dtype), normal(b, h_kv, s_kv, d, dtype=dtype)
            one = {"query": normal(b, h_q, 1, d, dtype=dtype), "key": k, "value": v}
            few = one | {"query": normal(b, h_q, 5, d, dtype=dtype)}
            for options in (
                {},
                {"window": 70},
                {"softcap": 5.0, "sinks": sinks},
                {"alibi_slopes": slopes, "return_lse": True},
                {"alibi_slopes": -slopes, "sinks": sinks, "window": 200, "return_lse": True},
            ):
                check("attention", one, f"cuda.attention.{group}.decode", FEW[dtype], "BHSD", **options)
                check("attention", few, f"cuda.attention.{group}.few", FEW[dtype], "BHSD", **options)
                if dtype in TILES:
                    check("attention", one, f"cuda.attention.{group}.decode.mma", TILES[dtype], "BHSD", **options)
                    check("attention", few, f"cuda.attention.{group}.prefill", TILES[dtype], "BHSD", **options)
            for raw in (False, True):
                options = {
                    "num_splits": 7,
                    "raw": raw,
                    "alibi_slopes": slopes,
                }  # distances of 900: float32 rounds by 6e-5
                check("attention_partials", one, f"cuda.attention.{group}.partials", 1e-4, "BHSD", **options)
                if dtype in TILES:
                    check(
                        "attention_partials",
                        one,
                        f"cuda.attention.{group}.partials.mma",
                        TILES[dtype],
                        "BHSD",
                        **options,
                    )


@pytest.mark.parametrize("dtype", ALL_TILES)
@pytest.mark.parametrize(("h_q", "h_kv", "d"), [(4, 4, 64), (8, 2, 128), (9, 1, 80), (6, 2, 256)])
def test_prefill_of_every_length(dtype, h_q, h_kv, d):
    torch.manual_seed(d)
    slopes, sinks = torch.rand(h_q, device="cuda") * 0.1, normal(h_q)
    kernel = of_tiles(f"cuda.attention.{'standard' if h_q == h_kv else 'gqa'}.prefill", dtype)
    for s_q, s_kv in ((2, 2), (63, 64), (65, 65), (200, 1000), (16, 4096), (1000, 1000), (70, 33)):
        k, v = normal(2, h_kv, s_kv, d, dtype=dtype), normal(2, h_kv, s_kv, d, dtype=dtype)
        values = {"query": normal(2, h_q, s_q, d, dtype=dtype), "key": k, "value": v}
        for options in (
            {},
            {"causal": False, "softcap": 5.0},
            {"window": 50, "sinks": sinks, "return_lse": True},
            {"alibi_slopes": slopes, "return_lse": True},
            {"attn_mask": torch.rand(s_q, s_kv, device="cuda") < 0.7, "return_lse": True},
        ):
            check("attention", values, kernel, ALL_TILES[dtype], "BHSD", **options)
        if dtype not in TILES:
            check("cross_attention", values, "cuda.attention.cross.prefill.fp32", FEW[dtype], "BHSD", return_lse=True)
            options, kernel_of_parts = {"num_splits": 3, "raw": True}, kernel.replace("prefill", "partials")
            check("attention_partials", values, kernel_of_parts, 1e-4, "BHSD", **options)


def pages(lengths, dtype, *tail):
    """A cache with pages in random order, and its lists."""
    counts = [-(-n // PAGE) for n in lengths]
    total = sum(counts)
    ends = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    last = [n - (c - 1) * PAGE if c else 0 for n, c in zip(lengths, counts, strict=True)]
    lists = {
        "kv_indptr": ends,
        "kv_indices": torch.randperm(total, device="cuda").to(torch.int32),
        "kv_last_page_len": torch.tensor(last, dtype=torch.int32, device="cuda"),
    }
    return normal(total, PAGE, *tail, dtype=dtype), normal(total, PAGE, *tail, dtype=dtype), lists


@pytest.mark.parametrize("dtype", TILES)
@pytest.mark.parametrize(("h_q", "h_kv", "d"), [(8, 1, 512), (6, 2, 320), (2, 2, 264)])
def test_wide_heads(dtype, h_q, h_kv, d):
    torch.manual_seed(d)
    group = "standard" if h_q == h_kv else "gqa"
    slopes, sinks = torch.rand(h_q, device="cuda") * 0.1, normal(h_q)
    for s_q, s_kv in ((1, 1), (1, 65), (1, 9000), (5, 127), (65, 65), (16, 4096), (200, 1000), (70, 33)):
        k, v = normal(2, h_kv, s_kv, d, dtype=dtype), normal(2, h_kv, s_kv, d, dtype=dtype)
        values = {"query": normal(2, h_q, s_q, d, dtype=dtype), "key": k, "value": v}
        kernel = f"cuda.attention.{group}.{'decode.mma' if s_q == 1 else 'prefill'}"
        for options in (
            {},
            {"softcap": 5.0, "sinks": sinks},
            {"window": 50, "sinks": sinks, "return_lse": True},
            {"alibi_slopes": slopes, "return_lse": True},
        ):
            check("attention", values, kernel, TILES[dtype], "BHSD", **options)
        if s_q > 1:
            mask = torch.rand(s_q, s_kv, device="cuda") < 0.7
            check("attention", values, kernel, TILES[dtype], "BHSD", attn_mask=mask, return_lse=True)


@pytest.mark.parametrize("dtype", FEW)
@pytest.mark.parametrize(("h_q", "h_kv", "d"), [(4, 4, 64), (8, 2, 128), (32, 2, 96)])
def test_paged_sequences_of_unlike_length(dtype, h_q, h_kv, d):
    torch.manual_seed(d)
    group = "standard" if h_q == h_kv else "gqa"
    for lengths in ([1], [5000], [0, 7, 300, 4096, 16], [100] * 70):
        k, v, lists = pages(lengths, dtype, h_kv, d)
        caches, b = {"paged_k_cache": k, "paged_v_cache": v}, len(lengths)
        q, sinks = normal(b, h_q, d, dtype=dtype), normal(h_q)
        for options in ({}, {"window_left": 40, "sinks": sinks, "return_lse": True}):
            values = {"q": q, **caches, **lists}
            check("paged_decode_attention", values, f"cuda.attention.{group}.decode.paged", FEW[dtype], **options)
            if dtype in TILES:
                kernel = f"cuda.attention.{group}.decode.paged.mma"
                check("paged_decode_attention", values, kernel, TILES[dtype], **options)
            shared = {"shared_k": normal(99, h_kv, d, dtype=dtype), "shared_v": normal(99, h_kv, d, dtype=dtype)}
            values = {"query": q, **shared, **caches, **lists}
            kernel = f"cuda.attention.{group}.decode.cascade"
            check("cascade_decode_attention", values, kernel, FEW[dtype], **options)
            if dtype in TILES:
                check("cascade_decode_attention", values, f"{kernel}.mma", TILES[dtype], **options)
        values = {"query": normal(b, 16, h_q, d, dtype=dtype), **caches, **lists}
        check("paged_cross_attention", values, "cuda.attention.cross.few.paged", FEW[dtype], sinks=sinks)
        if dtype in TILES:
            check("paged_cross_attention", values, "cuda.attention.cross.prefill.paged", TILES[dtype], sinks=sinks)
        counts = torch.tensor([min(n, 37) for n in lengths])
        starts = torch.tensor([0, *counts.cumsum(0).tolist()], dtype=torch.int32, device="cuda")
        rows = int(counts.sum()) + 3  # three that belong to no sequence
        values = {"query": normal(rows, h_q, d, dtype=dtype), **caches, "qo_indptr": starts, **lists}
        kernel = f"cuda.attention.{group}.prefill"
        keys = {"key": normal(rows, h_kv, d, dtype=dtype), "value": normal(rows, h_kv, d, dtype=dtype)}
        packed = {"query": values["query"], **keys, "cu_seqlens_q": starts, "cu_seqlens_kv": starts}
        if dtype in TILES:
            check("paged_prefill_attention", values, f"{kernel}.paged", TILES[dtype], return_lse=True)
            check("ragged_attention", packed, f"{kernel}.ragged", TILES[dtype], return_lse=True)
        for more in ({}, {"sinks": sinks, "softcap": 5.0}):
            check("paged_prefill_attention", values, f"{kernel}.paged.fp32", FEW[dtype], **more, return_lse=True)
            check("ragged_attention", packed, f"{kernel}.ragged.fp32", FEW[dtype], **more, return_lse=True)


@pytest.mark.parametrize("dtype", ALL_TILES)
@pytest.mark.parametrize("heads", [1, 16, 128])
def test_latents(dtype, heads):
    torch.manual_seed(heads)
    for tokens, length in ((1, 1), (1, 4096), (3, 100), (4, 2000)):
        values = {"q_nope": normal(tokens, heads, 512, dtype=dtype), "q_pe": normal(tokens, heads, 64, dtype=dtype)}
        values |= {"ckv": normal(length, 1, 512, dtype=dtype), "kpe": normal(length, 1, 64, dtype=dtype)}
        for causal in (False, True):
            options = {"sm_scale": 0.05, "causal": causal, "return_lse": True}
            check("mla_decode", values, of_tiles("cuda.attention.mla.decode", dtype), ALL_TILES[dtype], **options)
    for lengths in ([1], [3000], [0, 7, 300, 2048, 16]):
        ckv, _, lists = pages(lengths, dtype, 512)
        kpe = normal(*ckv.shape[:2], 64, dtype=dtype)
        b = len(lengths)
        values = {"q_nope": normal(b, heads, 512, dtype=dtype), "q_pe": normal(b, heads, 64, dtype=dtype)}
        values |= {"ckv_cache": ckv, "kpe_cache": kpe, **lists}
        options = {"sm_scale": 0.05, "return_lse": True}
        check(
            "mla_decode_paged", values, of_tiles("cuda.attention.mla.decode.paged", dtype), ALL_TILES[dtype], **options
        )
    for s_q, s_kv in ((1, 70), (130, 130), (40, 300)):
        values = {"q_nope": normal(2, s_q, heads, 128, dtype=dtype), "q_pe": normal(2, s_q, heads, 64, dtype=dtype)}
        values |= {"k_nope": normal(2, s_kv, heads, 128, dtype=dtype), "k_pe": normal(2, s_kv, 1, 64, dtype=dtype)}
        values["value"] = normal(2, s_kv, heads, 128, dtype=dtype)
        kernel = of_tiles("cuda.attention.mla.prefill", dtype)
        check("mla_prefill", values, kernel, ALL_TILES[dtype], "BSHD", return_lse=True)


@pytest.mark.parametrize("dtype", FEW)
def test_merges(dtype):
    for n, h, d in ((1, 1, 8), (16, 32, 128), (700, 3, 33), (5, 2, 256)):
        parts, lse = normal(9, n, h, d, dtype=dtype), normal(9, n, h) * 5
        lse[3] = -torch.inf
        sums, sinks = torch.rand(9, n, h, device="cuda") + 0.5, normal(h)
        a = {"v_a": parts[0], "s_a": lse[0], "v_b": parts[1], "s_b": lse[1]}
        for more in ({}, {"sinks": sinks}):
            check("merge_attention", a, "cuda.attention.merge", FEW[dtype], **more)
            for options in (more, more | {"row_sum": sums}):
                values = {"partials": parts, "part_lse": lse}
                check("merge_partials", values, "cuda.attention.merge.partials", 2e-5, **options)
