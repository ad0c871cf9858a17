"""KVCacheManager from Python: paged attention over what it manages equals dense attention, and its refusals."""

import random
import threading

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402

HEADS, GROUP, DIM = 2, 3, 16


def rows(tokens):
    """Keys and values that a model would give: a function of the token and its place."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2, 64, HEADS, DIM, generator=generator)
    places = torch.randn(2, 256, HEADS, DIM, generator=generator)
    index = torch.tensor(tokens, dtype=torch.int64)
    return table[:, index] + places[:, : len(tokens)]


def write(manager, handle, tokens, begin):
    key, value = rows(tokens)[:, begin:]
    if key.shape[0]:
        manager.write(handle, key, value)


def check_attention(manager, sequences):
    """Each sequence's last query, in both conventions, against dense attention over rows made anew."""
    handles = [handle for handle, _ in sequences]
    x = manager.get_attention_input(handles)
    query = torch.randn(len(handles), HEADS * GROUP, DIM)
    table = lz.paged_attention(query[:, None], x.key_cache, x.value_cache, x.block_tables, x.context_lens)
    csr = lz.paged_decode_attention(query, x.key_cache, x.value_cache, x.kv_indptr, x.kv_indices, x.kv_last_page_len)
    for i, (_, tokens) in enumerate(sequences):
        key, value = rows(tokens)
        dense = torch.nn.functional.scaled_dot_product_attention(
            query[i, :, None], key.transpose(0, 1), value.transpose(0, 1), enable_gqa=True
        )
        torch.testing.assert_close(table[i, 0], dense[:, 0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(csr[i], dense[:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("strategy", ["paged", "contiguous"])
def test_managed_attention_equals_dense(strategy, layout):
    sizes = {"num_blocks": 40, "block_size": 4} if strategy == "paged" else {"num_blocks": 8, "block_size": 64}
    manager = lz.KVCacheManager(strategy, **sizes)
    manager.allocate_storage(num_kv_heads=HEADS, head_dim=DIM, layout=layout)
    draw, live, number = random.Random(3), [], iter(range(1000))
    for _ in range(60):
        action = draw.random()
        try:
            if not live or action < 0.35:
                prompt = [draw.randrange(3) for _ in range(draw.randrange(1, 18))]
                handle = manager.allocate(next(number), len(prompt), prompt)
                write(manager, handle, prompt, handle.num_cached_tokens)
                manager.commit(handle)
                live.append((handle, prompt))
            elif action < 0.65:
                handle, tokens = draw.choice(live)
                more = [draw.randrange(3) for _ in range(draw.randrange(1, 6))]
                assert manager.append(handle, len(more), more) == []
                tokens += more
                write(manager, handle, tokens, len(tokens) - len(more))
            elif action < 0.8:
                handle, tokens = draw.choice(live)
                child, copies = manager.fork(handle, next(number))
                assert copies == []
                live.append((child, list(tokens)))
            elif action < 0.9:
                handle, tokens = draw.choice(live)
                del tokens[draw.randrange(1, len(tokens) + 1) :]
                manager.truncate(handle, len(tokens))
            else:
                handle, _ = live.pop(draw.randrange(len(live)))
                manager.free(handle)
        except lz.KVCacheFullError:
            if live:
                manager.free(live.pop(0)[0])
        if live:
            check_attention(manager, live)
    assert manager.stats()["num_sequences"] == len(live)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_storage_in_units(dtype, heads):
    """What is written with scales is attended to with the same."""
    most = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    units = {"k_scale": torch.tensor([7.0, 6.0])[:heads] / most, "v_scale": torch.tensor([7.0, 8.0])[:heads] / most}
    manager = lz.KVCacheManager(num_blocks=40, block_size=4)
    manager.allocate_storage(num_kv_heads=HEADS, head_dim=DIM, num_layers=2, dtype=dtype, **units)
    tokens = [i % 64 for i in range(50)]
    handle = manager.allocate(1, len(tokens))
    key, value = rows(tokens)
    manager.write(handle, key, value, layer=1)
    x = manager.get_attention_input(handle, layer=1)
    assert x.k_scale is units["k_scale"] and manager.scales(1) == units
    query = torch.randn(1, HEADS * GROUP, DIM)
    scales = {"k_scale": x.k_scale, "v_scale": x.v_scale}
    table = lz.paged_attention(query[:, None], x.key_cache, x.value_cache, x.block_tables, x.context_lens, **scales)
    lists = (x.kv_indptr, x.kv_indices, x.kv_last_page_len)
    csr = lz.paged_decode_attention(query, x.key_cache, x.value_cache, *lists, **scales)
    slots = manager.slots(handle)
    stored = [
        lz.kv_gather(cache, slots, scale=unit, dtype="float32", layout="NHD")
        for cache, unit in zip(manager.storage(1), units.values(), strict=True)
    ]
    want = torch.nn.functional.scaled_dot_product_attention(
        query[0, :, None], stored[0].transpose(0, 1), stored[1].transpose(0, 1), enable_gqa=True
    )
    torch.testing.assert_close(table[0, 0], want[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(csr[0], want[:, 0], rtol=1e-4, atol=1e-4)
    rounding = {torch.int8: 0.03, torch.float8_e4m3fn: 0.3, torch.float8_e5m2: 0.6}[dtype]
    torch.testing.assert_close(stored[0], key, rtol=0, atol=rounding)
    if dtype is torch.int8:
        with pytest.raises(lz.InvalidRequestError, match="v_scale"):
            lz.paged_decode_attention(query, x.key_cache, x.value_cache, *lists, k_scale=x.k_scale)


def test_shared_prefixes_are_not_computed_again():
    manager = lz.KVCacheManager(num_blocks=16, block_size=4)
    manager.allocate_storage(num_kv_heads=HEADS, head_dim=DIM)
    prompt = list(range(10))
    first = manager.allocate(1, 10, prompt)
    write(manager, first, prompt, 0)
    manager.commit(first)
    manager.free(first)
    second = manager.allocate(2, 13, [*prompt, 1, 2, 3])
    assert second.num_cached_tokens == 8
    write(manager, second, [*prompt, 1, 2, 3], 8)
    check_attention(manager, [(second, [*prompt, 1, 2, 3])])
    assert manager.allocate(3, 13, [*prompt, 1, 2, 3], salt=5).num_cached_tokens == 0
    manager.forget_prefixes()
    assert manager.allocate(4, 13, [*prompt, 1, 2, 3]).num_cached_tokens == 0
    assert manager.stats()["num_cached_tokens"] == 8


def test_without_storage_the_caller_copies():
    manager = lz.KVCacheManager(num_blocks=4, block_size=4)
    parent = manager.allocate(1, 6)
    child, copies = manager.fork(parent, 2)
    assert copies == []
    assert manager.append(child) == [(1, 2)]
    x = manager.get_attention_input([parent, child])
    assert x.key_cache is None
    assert x.block_tables.tolist() == [[0, 1], [0, 2]]
    assert x.context_lens.tolist() == [6, 7]
    assert (x.kv_indptr.tolist(), x.kv_indices.tolist()) == ([0, 2, 4], [0, 1, 0, 2])
    assert x.kv_last_page_len.tolist() == [2, 3]
    assert manager.slots(child, 5).tolist() == [9, 10]
    assert manager.get_attention_input([]).block_tables.shape == (0, 0)


TABLES = ("block_tables", "context_lens", "kv_indptr", "kv_indices", "kv_last_page_len")


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("strategy", ["contiguous", "paged"])
def test_graph_compatible_tables_stay_where_they_are(strategy, stored):
    """What a captured graph needs: the same addresses and shapes, contents that move on."""
    manager = lz.KVCacheManager(strategy, num_blocks=9, block_size=8 if strategy == "paged" else 64)
    assert manager.is_cuda_graph_compatible() is (strategy == "contiguous")
    if stored:
        manager.allocate_storage(num_kv_heads=1, head_dim=4)
    handles = [manager.allocate(1, 0), manager.allocate(2, 5)]
    first = manager.get_attention_input(handles)
    seen = {name: (getattr(first, name).data_ptr(), getattr(first, name).shape) for name in TABLES}
    for length in range(1, 12):
        for handle in handles:
            manager.append(handle)
        now = manager.get_attention_input(handles)
        assert now.context_lens.tolist() == [length, 5 + length]
        assert now.kv_last_page_len.tolist() == [(n - 1) % manager.block_size + 1 for n in (length, 5 + length)]
        if manager.is_cuda_graph_compatible():
            assert seen == {name: (getattr(now, name).data_ptr(), getattr(now, name).shape) for name in TABLES}
            assert first.context_lens.tolist() == now.context_lens.tolist()  # the graph's own tensor


def test_tables_of_other_batches_are_other_tables():
    manager = lz.KVCacheManager("contiguous", num_blocks=3, block_size=8)
    a, b = manager.allocate(1, 2), manager.allocate(2, 3)
    one, both, turned = (manager.get_attention_input(batch) for batch in (a, [a, b], [b, a]))
    manager.append(a)
    assert manager.get_attention_input([b, a]).context_lens.tolist() == [3, 3]
    assert one.context_lens.tolist() == [2]  # until it is asked for
    assert manager.get_attention_input(a).context_lens.data_ptr() == one.context_lens.data_ptr()
    assert one.context_lens.tolist() == [3] and both.context_lens.tolist() == [2, 3]
    assert turned.context_lens.tolist() == [3, 3]
    manager.free(a)
    assert list(manager._fixed) == []  # tables of freed sequences go
    c = manager.allocate(3, 1)
    assert manager.get_attention_input(c).context_lens.tolist() == [1]
    assert one.context_lens.tolist() == [3]


def test_tables_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr("layerzero.kv_cache._MOST_BATCHES", 4)
    manager = lz.KVCacheManager("contiguous", num_blocks=9, block_size=8)
    handles = [manager.allocate(i, 1) for i in range(9)]
    for handle in handles:
        manager.get_attention_input(handle)
    assert len(manager._fixed) == 4
    assert manager.get_attention_input(handles[0]).context_lens.tolist() == [1]


@pytest.mark.parametrize("strategy", ["virtual", "unified"])
def test_other_strategies_are_refused_with_the_reason(strategy):
    with pytest.raises(lz.InvalidRequestError, match="KV_STRATEGY_UNSUPPORTED") as caught:
        lz.KVCacheManager(strategy, num_blocks=2, block_size=8)
    assert caught.value.got == strategy


def test_refusals_say_what_was_wanted():
    manager = lz.KVCacheManager(num_blocks=2, block_size=4)
    with pytest.raises(lz.InvalidRequestError, match="wanted contiguous or paged, got 'blocks'"):
        lz.KVCacheManager("blocks", num_blocks=2, block_size=8)
    with pytest.raises(lz.KVCacheFullError, match="wanted 3 more blocks, got 2 of 2"):
        manager.allocate(1, 9)
    handle = manager.allocate(1, 3)
    with pytest.raises(lz.InvalidRequestError, match="seq_id: wanted one that is not in use, got 1"):
        manager.allocate(1, 1)
    with pytest.raises(lz.InvalidRequestError, match="tokens: wanted none or 2, got 1"):
        manager.append(handle, 2, [5])
    with pytest.raises(lz.InvalidRequestError, match="smaller numbers"):
        manager.allocate(2, 1, [2**40])
    with pytest.raises(lz.InvalidRequestError, match="layer: wanted a number below 0"):
        manager.write(handle, torch.ones(1, 1, 4), torch.ones(1, 1, 4))
    cache = torch.empty(2, 4, 1, 8)
    with pytest.raises(lz.InvalidRequestError, match="KV_CACHE_LAYOUT_MISMATCH"):
        manager.attach(torch.empty(2, 3, 1, 8), cache)
    with pytest.raises(lz.InvalidRequestError, match="KV_CACHE_DTYPE_MISMATCH"):
        manager.attach(cache, cache.half())
    for scale in (0.1, torch.ones(3), torch.ones(1, 1), torch.ones(1).double(), torch.ones(1, device="meta")):
        with pytest.raises(lz.InvalidRequestError, match="v_scale: wanted a float32 tensor of one element or 1 on cpu"):
            manager.attach(cache, cache, v_scale=scale)
    assert manager.num_layers == 0 and not manager.has_scales
    manager.free(handle)
    with pytest.raises(lz.InvalidRequestError, match="it was freed; allocate again"):
        manager.length(handle)


def test_threads_lose_nothing():
    manager = lz.KVCacheManager(num_blocks=64, block_size=4)

    def work(me):
        draw = random.Random(me)
        for step in range(100):
            tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 20))]
            try:
                handle = manager.allocate(me * 1000 + step, len(tokens), tokens)
            except lz.KVCacheFullError:
                continue
            manager.commit(handle)
            manager.free(handle)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = manager.stats()
    assert (stats["num_sequences"], stats["num_free"] + stats["num_idle"]) == (0, 64)


def test_the_layers_of_a_step_get_the_same_tables():
    manager = lz.KVCacheManager(num_blocks=8, block_size=4)
    for _ in range(2):
        manager.allocate_storage(num_layers=1, num_kv_heads=1, head_dim=8, dtype=torch.float32)
    handle = manager.allocate(1, 6)
    first, second = (manager.get_attention_input(handle, layer) for layer in range(2))
    assert second.kv_indices is first.kv_indices and second.key_cache is not first.key_cache
    manager.append(handle, 1)
    after = manager.get_attention_input(handle)
    assert after.kv_last_page_len.tolist() == [3] and first.kv_last_page_len.tolist() == [2]
    after.kv_last_page_len.zero_()  # by the caller: the next call does not see it
    assert manager.get_attention_input(handle).kv_last_page_len.tolist() == [3]
    with torch.inference_mode():  # torch counts no writes here
        manager.append(handle, 1)
        manager.get_attention_input(handle).kv_last_page_len.zero_()
        assert manager.get_attention_input(handle).kv_last_page_len.tolist() == [4]


@pytest.mark.parametrize("strategy", ["paged", "contiguous"])
def test_tables_are_given_to_kernels_that_plan_on_the_host(strategy, monkeypatch):
    from layerzero.backends.flashinfer import plans

    names = ("kv_indptr", "kv_indices", "kv_last_page_len")
    manager = lz.KVCacheManager(strategy, num_blocks=8, block_size=8)
    handle = manager.allocate(1, 3)
    with pytest.raises(lz.KernelRefusedError, match="read_tables"):
        plans.known("kv_indptr", manager.get_attention_input(handle).kv_indptr)
    monkeypatch.setattr(plans, "wanted", lambda: True)
    for tokens in (3, 4):
        x = manager.get_attention_input(handle)
        kept = [plans.known(name, getattr(x, name)) for name in names]
        for name, found in zip(names, kept, strict=True):
            assert found.host.tolist() == found.device.tolist() == getattr(x, name).tolist()
        assert kept[2].host.tolist() == [tokens]
        again = manager.get_attention_input(handle)
        assert all(a is plans.known(name, getattr(again, name)) for name, a in zip(names, kept, strict=True))
        manager.append(handle, 1)
