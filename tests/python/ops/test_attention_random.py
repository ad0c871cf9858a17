"""Attention operations on random calls: C++ references, chosen kernels and torch references against FP64 loops."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import layerzero as lz  # noqa: E402
from attention_cases import Batch, How, attend, close, close_lse, hows, lengths, sizes, strided  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from layerzero.torch.references import call_reference  # noqa: E402

few = settings(max_examples=25, deadline=None, derandomize=True)


def every_way(name, arguments):
    """(who, result) of the chosen kernel, of the C++ reference and of the torch reference."""
    given_arguments = {k: v for k, v in arguments.items() if v is not None}
    operation = lz.explain(name, **given_arguments).operation
    yield lz.which(name, **given_arguments)["kernel_id"], getattr(lz, name)(**given_arguments)
    yield f"ref.{operation}", getattr(lz, name)(**given_arguments, kernel=f"ref.{operation}")
    yield f"torch.ref.{name}", call_reference(name, given_arguments)


def check(name, arguments, want, want_lse):
    dtype = next(v for v in arguments.values() if isinstance(v, torch.Tensor)).dtype
    for who, (out, lse) in every_way(name, arguments | {"return_lse": True}):
        close(out, want, dtype, who)
        close_lse(lse, want_lse, who)


def keywords(how, *, window_left=False):
    window = {"window": how.window}
    if window_left:
        window = {"window_left": -1 if how.window is None else how.window - 1}
    return {"softcap": how.softcap, "sinks": how.sinks, "alibi_slopes": how.slopes, **window}


MASKS = ["none", "bool", "float", "per head", "broadcast rows", "causal"]


@few
@given(st.data())
def test_dense(data):
    s = data.draw(sizes())
    b, n_q, n_kv = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 9)), data.draw(st.integers(0, 40))
    torch.manual_seed(s.seed)
    generator = torch.Generator().manual_seed(s.seed)
    q, k, v = (
        strided(torch.randn(b, n, h, d).to(s.dtype), generator)
        for n, h, d in ((n_q, s.heads, s.d), (n_kv, s.kv_heads, s.d), (n_kv, s.kv_heads, s.d_v))
    )
    how, kind = data.draw(hows(s.heads, s.d, causal=False)), data.draw(st.sampled_from(MASKS))
    how.causal = kind == "causal"
    mask = None
    if kind not in ("none", "causal"):
        shape = {"per head": (s.heads, n_q, n_kv), "broadcast rows": (b, 1, 1, n_kv)}.get(kind, (n_q, n_kv))
        mask = torch.rand(shape) > 0.4
        if kind == "float":
            mask = torch.where(mask, torch.randn(shape), -torch.inf)
        # What no row may see of a key that is hidden from all of them.
        gone = ~(mask if mask.dtype == torch.bool else mask != -torch.inf).reshape(-1, n_kv).any(0)
        k, v = (t.masked_fill(gone[:, None, None], torch.nan) for t in (k, v))
    full = None if mask is None else mask.broadcast_to(b, s.heads, n_q, n_kv)
    parts = [
        attend(q[i], k[i], v[i], How(**{**vars(how), "mask": None if full is None else full[i]})) for i in range(b)
    ]
    want = torch.stack([o for o, _ in parts]) if b else torch.zeros(0, n_q, s.heads, s.d_v).double()
    lse = torch.stack([x.T for _, x in parts]) if b else torch.zeros(0, s.heads, n_q).double()
    arguments = {"query": q, "key": k, "value": v, "scale": how.scale, "causal": how.causal, "attn_mask": mask}
    check("attention", arguments | keywords(how), want, lse)
    if not how.causal and how.window is None and how.slopes is None:
        arguments = {"query": q, "key": k, "value": v, "scale": how.scale, "attn_mask": mask}
        check("cross_attention", arguments | {"softcap": how.softcap, "sinks": how.sinks}, want, lse)


@few
@given(sizes(), lengths, st.data())
def test_ragged_and_paged_prefill(s, lengths, data):
    batch, extra = Batch.of(s, lengths), data.draw(st.integers(0, 2))
    how = data.draw(hows(s.heads, s.d))
    want, lse = batch.expected(how, extra)
    query, cu_q = batch.packed("queries", extra), batch.offsets(batch.queries)
    ragged = {
        "query": query,
        "key": batch.packed("keys", 1),
        "value": batch.packed("values", 1),
        "cu_seqlens_q": cu_q,
        "cu_seqlens_kv": batch.offsets(batch.keys),
    }
    options = {"causal": how.causal, "scale": how.scale}
    check("ragged_attention", ragged | options | keywords(how), want, lse)
    k, v, indptr, indices, last = batch.pages(data.draw(st.integers(1, 9)))
    paged = {"query": query, "paged_k_cache": k, "paged_v_cache": v, "qo_indptr": cu_q}
    paged |= {"kv_indptr": indptr, "kv_indices": indices, "kv_last_page_len": last}
    options = {"causal": how.causal, "sm_scale": how.scale}
    check("paged_prefill_attention", paged | options | keywords(how, window_left=True), want, lse)


@few
@given(sizes(), lengths, st.data())
def test_decode_over_pages_tables_and_a_shared_prefix(s, lengths, data):
    batch = Batch.of(s, [(1, n) for _, n in lengths])
    how, page_size = data.draw(hows(s.heads, s.d, causal=False)), data.draw(st.integers(1, 9))
    k, v, indptr, indices, last = batch.pages(page_size)
    query = batch.packed("queries")
    want, lse = batch.expected(how)
    lists = {"paged_k_cache": k, "paged_v_cache": v, "kv_indptr": indptr}
    lists |= {"kv_indices": indices, "kv_last_page_len": last, "sm_scale": how.scale}
    check("paged_decode_attention", {"q": query} | lists | keywords(how, window_left=True), want, lse)

    table = torch.full((len(lengths), 9), -1, dtype=torch.int32)
    table = torch.nn.functional.pad(table, (0, 40 // page_size))
    for i in range(len(lengths)):
        pages = indices[indptr[i] : indptr[i + 1]]
        table[i, : len(pages)] = pages
    context = torch.tensor([len(part) for part in batch.keys], dtype=torch.int32)
    blocks = {"query": query[:, None], "key_cache": k, "value_cache": v, "block_tables": table}
    blocks |= {"context_lens": context, "scale": how.scale}
    check("paged_attention", blocks | keywords(how), want[:, None], lse)

    shared = data.draw(st.integers(0, 20))
    prefix_k, prefix_v = (torch.randn(shared, s.kv_heads, d).to(s.dtype) for d in (s.d, s.d_v))
    whole = Batch(s, batch.queries, [torch.cat([prefix_k, x]) for x in batch.keys])
    whole.values = [torch.cat([prefix_v, x]) for x in batch.values]
    want, lse = whole.expected(how)
    cascade = {"query": query, "shared_k": prefix_k, "shared_v": prefix_v}
    check("cascade_decode_attention", cascade | lists | keywords(how, window_left=True), want, lse)


STORED = [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16]


def in_units(batch, dtype, scales):
    """Keys and values as codes of `dtype`, and a batch of what they stand for."""
    codes, meant = Batch(batch.sizes, batch.queries), Batch(batch.sizes, batch.queries)
    for name, unit in zip(("keys", "values"), scales, strict=True):
        stored = [(x.float() * 40).round().clamp(-127, 127).to(dtype) for x in getattr(batch, name)]
        setattr(codes, name, stored)
        factor = 1.0 if unit is None else unit.double().reshape(-1, 1)
        setattr(meant, name, [x.double() * factor for x in stored])
    return codes, meant


@few
@given(sizes(), lengths, st.sampled_from(STORED), st.data())
def test_caches_in_units(s, lengths, dtype, data):
    batch = Batch.of(s, lengths)
    units = [data.draw(st.sampled_from([(), (1,), (s.kv_heads,)])) for _ in range(2)]
    absent = dtype is not torch.int8 and data.draw(st.booleans())
    scales = [None if absent else 0.005 + 0.02 * torch.rand(unit) for unit in units]
    how, page_size = data.draw(hows(s.heads, s.d)), data.draw(st.integers(1, 9))
    how.scale = how.scale / 40 if absent else how.scale
    scale = {"sm_scale": how.scale, "k_scale": scales[0], "v_scale": scales[1]}

    codes, meant = in_units(batch, dtype, scales)
    k, v, indptr, indices, last = codes.pages(page_size, dtype)
    pages = {"paged_k_cache": k, "paged_v_cache": v, "kv_indptr": indptr, "kv_indices": indices}
    paged = {"query": batch.packed("queries"), **pages, "qo_indptr": batch.offsets(batch.queries)}
    paged |= {"kv_last_page_len": last, "causal": how.causal}
    check("paged_prefill_attention", paged | scale | keywords(how, window_left=True), *meant.expected(how))

    codes, meant = in_units(Batch.of(s, [(1, n) for _, n in lengths]), dtype, scales)
    k, v, indptr, indices, last = codes.pages(page_size, dtype)
    how.causal, query = False, codes.packed("queries")
    want, lse = meant.expected(how)
    lists = {"paged_k_cache": k, "paged_v_cache": v, "kv_indptr": indptr, "kv_indices": indices}
    lists |= {"kv_last_page_len": last}
    check("paged_decode_attention", {"q": query} | lists | scale | keywords(how, window_left=True), want, lse)
    shared = {"shared_k": k[:0, 0], "shared_v": v[:0, 0]}
    cascade = {"query": query} | shared | lists | scale
    check("cascade_decode_attention", cascade | keywords(how, window_left=True), want, lse)

    how.window, how.slopes = None, None
    want, lse = (t.unsqueeze(1) for t in meant.expected(how))
    cross = {"query": query[:, None]} | lists | scale | {"softcap": how.softcap, "sinks": how.sinks}
    check("paged_cross_attention", cross, want, lse.transpose(1, 2))


@few
@given(sizes(), lengths, lengths, st.data())
def test_pod(s, prefill, decode, data):
    how = data.draw(hows(s.heads, s.d, slopes=False))
    one, two = Batch.of(s, prefill), Batch.of(s, [(1, n) for _, n in decode])
    k, v, indptr, indices, last = two.pages(data.draw(st.integers(1, 9)))
    arguments = {
        "query_p": one.packed("queries"),
        "key_p": one.packed("keys"),
        "value_p": one.packed("values"),
        "cu_seqlens_q": one.offsets(one.queries),
        "cu_seqlens_kv": one.offsets(one.keys),
        "query_d": two.packed("queries"),
        "paged_k_cache": k,
        "paged_v_cache": v,
        "kv_indptr": indptr,
        "kv_indices": indices,
        "kv_last_page_len": last,
        "sm_scale": how.scale,
        "causal": how.causal,
        "return_lse": True,
    }
    options = {key: value for key, value in keywords(how, window_left=True).items() if key != "alibi_slopes"}
    (want_p, lse_p), (want_d, lse_d) = one.expected(how), two.expected(how)
    for who, (out_p, out_d, got_p, got_d) in every_way("pod_attention", arguments | options):
        close(out_p, want_p, s.dtype, who)
        close(out_d, want_d, s.dtype, who)
        close_lse(got_p, lse_p, who)
        close_lse(got_d, lse_d, who)


@few
@given(sizes(), lengths, st.integers(0, 6), st.data())
def test_paged_cross(s, lengths, n_q, data):
    batch = Batch.of(s, [(n_q, n) for _, n in lengths])
    how = data.draw(hows(s.heads, s.d, causal=False, window=False, slopes=False))
    k, v, indptr, indices, last = batch.pages(data.draw(st.integers(1, 9)))
    want, lse = (t.unflatten(0, (len(lengths), n_q)) for t in batch.expected(how))
    query = batch.packed("queries").unflatten(0, (len(lengths), n_q))
    arguments = {"query": query, "paged_k_cache": k, "paged_v_cache": v, "kv_indptr": indptr, "kv_indices": indices}
    arguments |= {"kv_last_page_len": last, "sm_scale": how.scale, "softcap": how.softcap, "sinks": how.sinks}
    check("paged_cross_attention", arguments, want, lse.transpose(1, 2))


@few
@given(sizes(), st.integers(0, 7), st.integers(0, 30), st.booleans())
def test_latent_attention(s, n_q, n_kv, causal):
    torch.manual_seed(s.seed)
    heads, how = s.heads, How(scale=0.2, causal=causal)
    q, q_pe = torch.randn(n_q, heads, s.d).to(s.dtype), torch.randn(n_q, heads, 4).to(s.dtype)
    ckv, kpe = torch.randn(n_kv, 1, s.d).to(s.dtype), torch.randn(n_kv, 1, 4).to(s.dtype)
    want, lse = attend(torch.cat([q, q_pe], -1), torch.cat([ckv, kpe], -1), ckv, how)
    check(
        "mla_decode", {"q_nope": q, "q_pe": q_pe, "ckv": ckv, "kpe": kpe, "sm_scale": 0.2, "causal": causal}, want, lse
    )
    k, v = torch.randn(n_kv, heads, s.d).to(s.dtype), torch.randn(n_kv, heads, s.d_v).to(s.dtype)
    want, lse = attend(torch.cat([q, q_pe], -1), torch.cat([k, kpe.expand(-1, heads, -1)], -1), v, how)
    dense = {"q_nope": q, "q_pe": q_pe, "k_nope": k, "k_pe": kpe, "value": v}
    dense = {name: t.unsqueeze(0) for name, t in dense.items()}
    check("mla_prefill", dense | {"causal": causal, "sm_scale": 0.2}, want[None], lse.T[None])


@few
@given(sizes(), st.integers(0, 6), st.integers(0, 30), st.integers(1, 6), st.booleans(), st.data())
def test_partials_merge_to_the_whole(s, n_q, n_kv, splits, raw, data):
    batch = Batch.of(s, [(n_q, n_kv)])
    how = data.draw(hows(s.heads, s.d))
    want, lse = batch.expected(how)
    q, k, v = (t[0][None] for t in (batch.queries, batch.keys, batch.values))
    arguments = {"query": q, "key": k, "value": v, "num_splits": splits, "raw": raw, "causal": how.causal}
    arguments |= {"scale": how.scale, "window": how.window, "softcap": how.softcap, "alibi_slopes": how.slopes}
    parts = {}
    for who, result in every_way("attention_partials", arguments):
        assert len(result) == 2 + raw
        parts[who] = result
        first = next(iter(parts.values()))
        for one, other in zip(result, first, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    partials, part_lse, *row_sum = first
    merge = {"partials": partials, "part_lse": part_lse, "row_sum": row_sum[0] if raw else None, "sinks": how.sinks}
    for who, (out, got) in every_way("merge_partials", merge | {"dtype": "float64"}):
        close(out, want, torch.float64, who)
        close_lse(got, lse, who)


@few
@given(sizes(), st.data())
def test_block_sparse(s, data):
    block_q, block_k, rows, cols = (data.draw(st.integers(1, 4)) for _ in range(4))
    torch.manual_seed(s.seed)
    seen = torch.rand(rows, cols) > 0.5
    batch = Batch.of(s, [(rows * block_q, cols * block_k)])
    q, k, v = (t[0] for t in (batch.queries, batch.keys, batch.values))
    unseen = (~seen.any(0)).repeat_interleave(block_k)[:, None, None]
    k, v = k.masked_fill(unseen, torch.nan), v.masked_fill(unseen, torch.nan)
    mask = seen.repeat_interleave(block_q, 0).repeat_interleave(block_k, 1).expand(s.heads, -1, -1)
    want, lse = attend(q, k, v, How(scale=0.3, mask=mask))
    indptr = torch.tensor([0, *seen.sum(1).cumsum(0)], dtype=torch.int32)
    indices = seen.nonzero()[:, 1].to(torch.int32)
    blocks = {"q": q, "k": k, "v": v, "indptr": indptr, "indices": indices, "R": block_q, "C": block_k}
    check("block_sparse_attention", blocks | {"sm_scale": 0.3}, want, lse)

    # Blocks of unlike size, a map per KV head.
    maps = torch.rand(s.kv_heads, rows, cols) > 0.5
    row_sizes, col_sizes = (_cut(n, parts, s.kv_heads) for n, parts in ((len(q), rows), (len(k), cols)))
    k, v = batch.keys[0], batch.values[0]
    masks = [
        m.repeat_interleave(r, 0).repeat_interleave(c, 1) for m, r, c in zip(maps, row_sizes, col_sizes, strict=True)
    ]
    mask = torch.stack(masks).repeat_interleave(s.heads // s.kv_heads, 0)
    want, lse = attend(q, k, v, How(scale=0.3, mask=mask))
    variable = {"q": q, "k": k, "v": v, "block_mask": maps, "row_sizes": row_sizes, "col_sizes": col_sizes}
    check("variable_block_sparse_attention", variable | {"sm_scale": 0.3}, want, lse)


def _cut(n, parts, times):
    """`times` ways to write n as a sum of `parts` sizes, 0 among them."""
    cuts = torch.randint(0, n + 1, (times, parts - 1)).sort(-1).values
    ends = torch.cat([torch.zeros(times, 1), cuts, torch.full((times, 1), n)], -1)
    return ends.diff(dim=-1).to(torch.int32)


@few
@given(sizes(), lengths.filter(len), st.booleans(), st.data())
def test_nested_batches_are_ragged_ones(s, lengths, heads_first, data):
    batch, how = Batch.of(s, lengths), data.draw(hows(s.heads, s.d))
    nested = [
        torch.nested.nested_tensor_from_jagged(batch.packed(name), batch.offsets(getattr(batch, name)).long())
        for name in ("queries", "keys", "values")
    ]
    layout = {}
    if heads_first:
        nested, layout = [t.transpose(1, 2) for t in nested], {"layout": "BHSD"}
    options = {k: v for k, v in keywords(how).items() if v is not None}
    out, lse = lz.attention(*nested, causal=how.causal, scale=how.scale, return_lse=True, **options, **layout)
    want, want_lse = batch.expected(how)
    assert out.is_nested and out.layout == torch.jagged and out.shape[0] == len(lengths)
    out = out.transpose(1, 2) if heads_first else out
    close(out.values(), want, s.dtype)
    close_lse(lse.values(), want_lse)
