"""Ids that name no row, such as the -1 of a sampling operation that found no token, are an error of `embedding`: by every
kernel and every way in, never a row of other memory."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

WEIGHT = torch.randn(8, 16)
KERNELS = ["cpu.embedding.lookup", "ref.embedding.lookup", "torch.embedding", "torch.ref.embedding.lookup"]


def ids(bad, dtype=torch.int64, count=5):
    found = torch.arange(count, dtype=dtype) % 8
    found[count // 2] = bad
    return found


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("bad", [-1, 8, -8, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("kernel", [None, *KERNELS])
def test_an_id_that_names_no_row_is_refused(kernel, bad, dtype):
    for count in (1, 5, 20000):
        with pytest.raises(lz.KernelExecutionError, match="embedding"):
            lz.embedding(ids(bad, dtype, count), WEIGHT, kernel=kernel)


def test_by_every_way_in():
    call = lz.prepare("embedding", ids(0), WEIGHT)
    compiled = torch.compile(lambda i: lz.embedding(i, WEIGHT), backend="aot_eager", fullgraph=True)
    for bad in (-1, 8):
        ways = (
            lambda bad=bad: call(ids(bad), WEIGHT),
            lambda bad=bad: torch.ops.layerzero.embedding(ids(bad), WEIGHT),
            lambda bad=bad: lz.embedding(ids(bad).numpy(), WEIGHT.numpy()),
            lambda bad=bad: lz.embedding(ids(bad), WEIGHT.clone().requires_grad_()),
            lambda bad=bad: lz.run("embedding", ids(bad), WEIGHT),
            lambda bad=bad: compiled(ids(bad)),
        )
        for way in ways:
            with pytest.raises(lz.KernelExecutionError, match="embedding"):
                way()
    torch._dynamo.reset()


def test_a_sampled_row_without_an_answer_does_not_reach_the_table():
    logits = torch.full((2, 8), float("-inf"))
    logits[0] = 0
    token = lz.sample_topk(logits, 3)
    assert token[1] == -1
    with pytest.raises(lz.KernelExecutionError, match="embedding"):
        lz.embedding(token, WEIGHT)
