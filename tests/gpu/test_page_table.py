"""kv_page_table on the device: one launch, nothing read, the same as on the host for any index data."""

import layerzero as lz
import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("valid", [True, False])
def test_agrees_with_the_host(dtype, valid):
    generator = torch.Generator().manual_seed(0)

    def numbers(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator, dtype=dtype)

    for b, listed, size in ((1, 1, 16), (3, 64, 16), (64, 4096, 16), (300, 5000, 1), (5, 0, 16), (0, 4, 16)):
        lengths = torch.rand(b + 1, generator=generator).cumsum(0)
        offsets = (lengths / lengths[-1] * listed).to(dtype)
        offsets[0] = 0
        tables = [offsets, numbers(0, 900, listed), numbers(1, size + 1, b)]
        queries = numbers(0, 99, b + 1).cumsum(0).to(dtype)
        if not valid:
            tables = [numbers(-9, listed + 9, b + 1), numbers(-9, 1900, listed), numbers(-9, 2 * size, b)]
            queries = numbers(-9, 99, b + 1)
        for options in ({}, {"qo_indptr": queries, "total_q": 90}):
            want = lz.kv_page_table(*tables, 900, size, **options)
            on_device = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
            call = [t.cuda() for t in tables]
            for kernel in ("cuda.kv.page_table", "torch.kv_page_table"):
                got = lz.kv_page_table(*call, 900, size, **on_device, kernel=kernel)
                assert all(torch.equal(g.cpu(), w) for g, w in zip(got, want, strict=True)), (kernel, b, listed)


def test_in_a_capture():
    indptr, pages, last = (torch.tensor(t, dtype=torch.int32, device="cuda") for t in ([0, 2, 3], [4, 1, 7], [3, 16]))
    lz.kv_page_table(indptr, pages, last, 8, 16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table, lengths = lz.kv_page_table(indptr, pages, last, 8, 16)
    indptr.copy_(torch.tensor([0, 1, 3]))
    graph.replay()
    assert table.tolist() == [[4, 0, 0], [1, 7, 0], [0, 0, 0]] and lengths.tolist() == [3, 32, 0]
