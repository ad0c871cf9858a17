"""A captured decode step over the tables of a KV cache manager: it goes on when its sequences have grown."""

import layerzero as lz
import pytest
import torch
from torch.nn import functional as F

HEADS, DIM, LONGEST = 2, 64, 32


def decode(x, query, key, value):
    """New rows into the slots behind the last tokens, then attention, from the tables alone."""
    block, row = x.block_tables[:, 0].long(), x.context_lens.long() - 1
    x.key_cache[block, row] = key
    x.value_cache[block, row] = value
    keys, values = x.key_cache[block].transpose(1, 2), x.value_cache[block].transpose(1, 2)
    seen = torch.arange(LONGEST, device="cuda")[None] < x.context_lens[:, None]
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen[:, None, None])


def by_operation(x, query, key, value):
    slots = x.block_tables[:, 0].long() * LONGEST + x.context_lens.long() - 1
    lz.kv_append_paged(x.key_cache, x.value_cache, key, value, slots, layout="NHD")
    rows = query.transpose(1, 2)
    return lz.paged_attention(rows, x.key_cache, x.value_cache, x.block_tables, x.context_lens).transpose(1, 2)


@pytest.mark.parametrize("step", [decode, by_operation])
def test_a_captured_decode_step_follows_its_sequences(step):
    torch.manual_seed(0)
    manager = lz.KVCacheManager("contiguous", num_blocks=4, block_size=LONGEST)
    manager.allocate_storage(num_kv_heads=HEADS, head_dim=DIM, dtype=torch.float16, device="cuda")
    assert manager.is_cuda_graph_compatible()
    handles, rows = [manager.allocate(7, 3), manager.allocate(8, 5)], []
    for handle in handles:
        new = torch.randn(2, manager.length(handle), HEADS, DIM, device="cuda", dtype=torch.float16)
        manager.write(handle, *new)
        rows.append(new)

    x = manager.get_attention_input(handles)
    query, key, value = (torch.zeros(2, HEADS, 1, DIM, device="cuda", dtype=torch.float16) for _ in range(3))
    arguments = x, query, key[:, :, 0], value[:, :, 0]
    addresses = [t.data_ptr() for t in (x.block_tables, x.context_lens, x.kv_indptr, x.kv_indices, x.kv_last_page_len)]

    def append():
        for handle in handles:
            manager.append(handle)
        now = manager.get_attention_input(handles)
        tables = (now.block_tables, now.context_lens, now.kv_indptr, now.kv_indices, now.kv_last_page_len)
        assert [t.data_ptr() for t in tables] == addresses

    append()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(side):
            step(*arguments)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            out = step(*arguments)
    except lz.CudaGraphUnsafeError as error:
        pytest.skip(str(error))

    for number in range(3):
        if number:
            append()
        for t in (query, key, value):
            t.normal_()
        graph.replay()
        for i in range(2):
            new = torch.stack((key[i, :, 0], value[i, :, 0]))[:, None]
            rows[i] = torch.cat((rows[i], new), dim=1)
            keys, values = rows[i].transpose(1, 2)
            want = F.scaled_dot_product_attention(query[i], keys, values)
            torch.testing.assert_close(out[i], want, rtol=2e-3, atol=2e-3)


def test_inside_a_capture_the_tables_must_be_up_to_date():
    manager = lz.KVCacheManager("contiguous", num_blocks=2, block_size=LONGEST)
    manager.allocate_storage(num_kv_heads=HEADS, head_dim=DIM, dtype=torch.float16, device="cuda")
    handle = manager.allocate(1, 3)
    x = manager.get_attention_input(handle)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = manager.get_attention_input(handle).context_lens + 1  # nothing has changed: no copy
    graph.replay()
    assert y.tolist() == [4] and x.context_lens.tolist() == [3]
    manager.append(handle)
    with pytest.raises(lz.CudaGraphUnsafeError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        manager.get_attention_input(handle)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_captured_step_follows_block_tables(stored):
    """As engines hold them: one table of the widest size, whose rows change with every step; sequences come and go."""
    torch.manual_seed(0)
    page, width, heads = 16, 12, 8
    manager = lz.KVCacheManager("paged", num_blocks=64, block_size=page)
    scale = torch.full((1,), 0.5, device="cuda")
    scales = {"k_scale": scale, "v_scale": scale} if stored == torch.float8_e4m3fn else {}
    manager.allocate_storage(num_kv_heads=HEADS, head_dim=DIM, dtype=stored, device="cuda", **scales)
    keys, values = manager.storage(0)
    tables = torch.zeros(3, width, device="cuda", dtype=torch.int32)
    lengths, slots = torch.ones(3, device="cuda", dtype=torch.int32), torch.full((3,), -1, device="cuda")
    query = torch.zeros(3, 1, heads, DIM, device="cuda", dtype=torch.bfloat16)
    key, value = (torch.zeros(3, HEADS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def step():
        lz.kv_append_paged(keys, values, key, value, slots, layout="NHD", **scales)
        return lz.paged_attention(query, keys, values, tables, lengths, **scales)

    def fill(handles):
        """The engine's host: tables, lengths and slots of a step."""
        x = manager.get_attention_input(handles)
        tables.zero_()
        tables[:, : x.block_tables.shape[1]].copy_(x.block_tables)
        lengths.copy_(x.context_lens)
        slots.copy_(torch.cat([manager.slots(h, manager.length(h) - 1) for h in handles]))

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    handles = [manager.allocate(i, n) for i, n in enumerate((1, 15, 150))]
    for handle in handles:
        manager.write(handle, *torch.randn(2, manager.length(handle), HEADS, DIM, device="cuda", dtype=torch.bfloat16))
    for number in range(40):
        if number == 20:  # another sequence in the place of one that has ended
            manager.free(handles[1])
            handles[1] = manager.allocate(9, 33)
            new = torch.randn(2, 33, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
            manager.write(handles[1], *new)
        for handle in handles:
            manager.append(handle)
        fill(handles)
        for t in (query, key, value):
            t.normal_()
        graph.replay()
        got = out.clone()
        torch.testing.assert_close(got, step(), rtol=2e-2, atol=2e-2)  # outside of the graph, from the same tables
        units = 0.5 if scales else 1.0
        for i, handle in enumerate(handles):
            rows = manager.slots(handle)
            k, v = (t.flatten(0, 1)[rows.to(t.device)].float() * units for t in (keys, values))
            k, v = (t.repeat_interleave(heads // HEADS, 1).transpose(0, 1) for t in (k, v))
            want = F.scaled_dot_product_attention(query[i].transpose(0, 1).float(), k, v).transpose(0, 1)
            torch.testing.assert_close(got[i].float(), want, rtol=3e-2, atol=3e-2)
