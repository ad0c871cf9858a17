"""The sampling operations on the device: the CPU's tokens for the same numbers, torch's generator, graphs, no waiting."""

import contextlib
import functools

import layerzero as lz
import pytest
import torch

CALLS = {
    "sample_topk": [{"k": 1}, {"k": 50}, {"k": 5000}, {"row_k": True}],
    "sample_topp": [{"p": 0.9}, {"p": 1.0}, {"p": 0.0}, {"row_p": True}],
    "sample_minp": [{"min_p": 0.1}, {"min_p": 0.0}, {"row_min_p": True}],
    "sample_topk_topp": [{"k": 50, "p": 0.9}, {"k": 9000, "p": 0.7}, {"row_k": True, "p": 0.9}],
}
EVERY = [(name, filters) for name, all_filters in CALLS.items() for filters in all_filters]
every = pytest.mark.parametrize(("name", "filters"), EVERY, ids=str)
both = pytest.mark.parametrize("provider", ["torch", "cuda"])


def row_of(name, provider):
    """The operation as torch's row or as the own kernel."""
    return functools.partial(getattr(lz, name), kernel=f"{provider}.sampling.{name.removeprefix('sample_')}")


@contextlib.contextmanager
def unread():
    """Nothing inside may wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def filters_of(filters, rows):
    torch.manual_seed(3)
    values = {
        "row_k": torch.randint(1, 300, (rows,)),
        "row_p": torch.rand(rows),
        "row_min_p": torch.rand(rows).square(),
    }
    return {key: values[key] if value is True else value for key, value in filters.items()}


def on_device(call):
    return {key: value.cuda() if isinstance(value, torch.Tensor) else value for key, value in call.items()}


def logits_of(kind, rows, vocab):
    torch.manual_seed(1)
    if kind == "ties":
        return torch.randint(-3, 4, (rows, vocab)).float()
    x = torch.randn(rows, vocab) * 3
    if kind == "bad" and rows > 3:
        x[0, 5], x[1], x[2, 7] = float("nan"), float("-inf"), float("inf")
        x[3, ::2] = float("-inf")
    return x.to(torch.bfloat16) if kind == "bf16" else x.half() if kind == "f16" else x.double() if kind == "f64" else x


def agree(name, call, got):
    """Equal tokens to the CPU's in float64, but for what rounding may move: looked at with both neighbours of u."""
    want = getattr(lz, name)(**call, kernel=f"ref.sampling.{name.removeprefix('sample_')}")
    got = got.cpu()
    different = (got != want).flatten().nonzero().flatten().tolist()
    assert len(different) <= max(1, got.numel() // 100), f"{len(different)} of {got.numel()}"
    for row in different:
        one = {key: value[row : row + 1] if isinstance(value, torch.Tensor) else value for key, value in call.items()}
        near = []
        for shift in (-2e-4, 2e-4):
            moved = one | {"uniform": (one["uniform"] + shift).clamp(0, 1 - 2.0**-53)}
            near.append(int(getattr(lz, name)(**moved, kernel=f"ref.sampling.{name.removeprefix('sample_')}")))
        assert min(near) <= int(got[row]) <= max(near), (row, int(got[row]), int(want[row]), near)


@every
@both
# Of the own kernels: a block a row (1000), 2 to 8 blocks a row (the others), a row too long for their shared memory.
@pytest.mark.parametrize(("rows", "vocab"), [(1, 128256), (7, 1000), (64, 32001), (130, 4097), (3, 700001)])
@pytest.mark.parametrize("kind", ["f32", "bf16", "f16", "f64", "ties", "bad"])
def test_tokens_are_the_cpus(name, filters, provider, rows, vocab, kind):
    if (provider, kind) == ("cuda", "f64"):
        pytest.skip("no row of that dtype")
    call = {"logits": logits_of(kind, rows, vocab)} | filters_of(filters, rows)
    for temperature in (1.0, 0.7):
        given = call | {"temperature": temperature, "uniform": torch.rand(rows, dtype=torch.float64)}
        device = on_device(given)
        with unread():
            got = row_of(name, provider)(**device)
        agree(name, given, got)


@every
@both
def test_a_seed_draws_the_cpus_numbers(name, filters, provider):
    """One million numbers of two tokens of equal probability show every bit of a mistake in the numbers."""
    call = {"logits": torch.zeros(5000, 2)} | filters_of(filters, 5000)
    for seed, offset in ((0, 0), (7, 3), (-5, 2**40 + 1)):
        device = on_device(call)
        with unread():
            got = row_of(name, provider)(**device, seed=seed, offset=offset)
        want = getattr(lz, name)(**call, seed=seed, offset=offset)
        assert int((got.cpu() != want).sum()) <= 1


def test_greedy_takes_the_first_of_equal_logits():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randint(0, 3, (64, 50001), device="cuda").to(dtype)
        assert torch.equal(lz.sample_topk(x, 1), x.cpu().float().argmax(-1).cuda())


@every
def test_torchs_generators_govern_the_draws(name, filters):
    call = on_device({"logits": torch.zeros(512, 4000)} | filters_of(filters, 512))
    sample = getattr(lz, name)
    generator = torch.Generator("cuda")
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        generator.manual_seed(9)
        with unread():
            runs.append([sample(**call), sample(**call), sample(**call, generator=generator)])
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)
    if filters not in ({"k": 1}, {"p": 0.0}):
        assert not torch.equal(runs[0][0], runs[0][1])
    torch.manual_seed(5)
    uniform = torch.rand(512, dtype=torch.float64, device="cuda")
    assert torch.equal(runs[0][0], sample(**call, uniform=uniform))
    with pytest.raises(lz.InvalidRequestError, match="generator: wanted one of cuda:0"):
        sample(**call, generator=torch.Generator())


def captured(run):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


@every
def test_each_replay_of_a_graph_draws(name, filters):
    call = on_device({"logits": torch.zeros(512, 4000)} | filters_of(filters, 512))
    graph, token = captured(lambda: getattr(lz, name)(**call))
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(token.clone())
    if filters not in ({"k": 1}, {"p": 0.0}):
        assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    torch.manual_seed(11)
    graph.replay()
    first = token.clone()
    torch.manual_seed(11)
    graph.replay()
    assert torch.equal(first, token)


@every
@both
def test_a_seed_in_a_graph_repeats(name, filters, provider):
    call = on_device({"logits": torch.randn(64, 4000)} | filters_of(filters, 64))
    sample = row_of(name, provider)
    graph, token = captured(lambda: sample(**call, seed=3, offset=2))
    graph.replay()
    assert torch.equal(token, sample(**call, seed=3, offset=2))


@both
def test_draws_follow_the_distribution_in_the_far_tail(provider):
    """Pooled chi-square of many draws; tokens that expect fewer than ten are one cell."""
    torch.manual_seed(8)
    logits, draws = torch.randn(5000, dtype=torch.float64) * 3, 1 << 18
    probabilities = logits.bfloat16().double().softmax(-1)
    x = logits.bfloat16().cuda().expand(draws, 5000)
    token = row_of("sample_topp", provider)(x, 1.0, temperature=1.0, seed=5)
    seen, expected = torch.bincount(token.cpu(), minlength=5000).double(), probabilities * draws
    rare = expected < 10
    seen, expected = (torch.cat((t[~rare], t[rare].sum()[None])) for t in (seen, expected))
    freedom = len(seen) - 1
    assert float(((seen - expected) ** 2 / expected).sum() - freedom) < 5 * (2 * freedom) ** 0.5


def speculation(b, n, vocab, dtype=torch.float32):
    torch.manual_seed(2)
    draft, target = torch.randn(b, n, vocab).softmax(-1).to(dtype), torch.randn(b, n + 1, vocab).softmax(-1).to(dtype)
    return {"draft_probs": draft, "draft_token_ids": torch.randint(0, vocab, (b, n)), "target_probs": target}


@both
@pytest.mark.parametrize(("b", "n", "vocab"), [(1, 3, 32000), (64, 4, 5000), (9, 0, 300), (9, 2, 7)])
def test_speculation_gives_the_cpus_tokens(b, n, vocab, provider):
    speculate = functools.partial(lz.speculative_sample, kernel=f"{provider}.sampling.speculative")
    call = speculation(b, n, vocab)
    call["draft_token_ids"][0, :1] = vocab
    call["target_probs"][-1] = float("nan")
    device = on_device(call)
    for seed in range(20):
        with unread():
            tokens, count = speculate(**device, seed=seed)
        want = lz.speculative_sample(**call, seed=seed, kernel="ref.sampling.speculative")
        assert torch.equal(count.cpu(), want[1])
        assert int((tokens.cpu() != want[0]).sum()) <= b // 20
    torch.manual_seed(4)
    with unread():
        first, second = speculate(**device)[0], speculate(**device)[0]
    torch.manual_seed(4)
    assert torch.equal(first, speculate(**device)[0])
    assert b == 1 or not torch.equal(first, second)


@every
def test_strict_mode_refuses_a_row_without_a_distribution(name, filters):
    for bad in (float("nan"), float("-inf")):
        logits = torch.zeros(4, 500, device="cuda")
        logits[2] = bad
        call = on_device({"logits": logits} | filters_of(filters, 4))
        assert getattr(lz, name)(**call)[2] == -1
        with lz.policy(strict_mode=True), pytest.raises(lz.KernelExecutionError, match=name):
            getattr(lz, name)(**call)


@both
def test_numbers_of_rows_that_are_none_give_minus_one(provider):
    x, sample = torch.zeros(3, 50, device="cuda"), row_of("sample_topk", provider)
    with unread():
        tokens = sample(x, row_k=torch.tensor([2, 0, -1]).cuda(non_blocking=True))
        colder = sample(x, 3, row_temperature=torch.tensor([1.0, 0.0, float("nan")]).cuda(non_blocking=True))
    assert (tokens >= 0).tolist() == [True, False, False]
    assert (colder >= 0).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 128256), (64, 128256), (5, 50001), (300, 4100), (2, 700001), (9, 100)])
def test_softmax_of_the_own_kernel(dtype, rows, vocab):
    """A block a row, a cluster of 2 to 8, a row too long for their shared memory; rows that begin anywhere."""
    torch.manual_seed(1)
    x = (torch.randn(rows, vocab + 3, device="cuda") * 10).to(dtype)[:, 1 : vocab + 1]
    for temperature in (1.0, 0.3):
        with unread():
            got = lz.softmax(x, temperature=temperature, kernel="cuda.sampling.softmax")
        want = (x.double() / temperature).softmax(-1).float()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-9)
    x[0, vocab // 2] = float("nan")
    got = lz.softmax(x, kernel="cuda.sampling.softmax")
    assert bool(got[0].isnan().all()) and not bool(got[1:].isnan().any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_softmax_with_a_temperature_for_each_row(dtype):
    torch.manual_seed(1)
    x, t = (torch.randn(33, 5000) * 10).to(dtype), torch.rand(33) + 0.05
    device, temperature = x.cuda(), t.cuda()
    with unread():
        got = lz.softmax(device, row_temperature=temperature)
    torch.testing.assert_close(got.cpu(), (x.double() / t.double()[:, None]).softmax(-1).float(), rtol=1e-5, atol=1e-7)


def test_kernels_of_the_device_serve_it():
    """Not the references, which compute in float64 and sort everything; own kernels where a row has a cluster."""
    own = "cuda" if torch.cuda.get_device_capability() >= (9, 0) else "torch"
    x, rows = torch.zeros(2, 1 << 15, device="cuda"), {"row_temperature": torch.ones(2, device="cuda")}
    for name, call in (
        ("topk", {"k": 5}),
        ("topp", {"p": 0.5}),
        ("minp", {"min_p": 0.5}),
        ("topk_topp", {"k": 5, "p": 0.5}),
    ):
        assert lz.which(f"sample_{name}", x, **call)["kernel_id"] == f"{own}.sampling.{name}"
    assert lz.which("softmax", x, **rows)["kernel_id"] in ("cuda.sampling.softmax", "torch.softmax")
    assert lz.which("softmax", x[:, :1000], **rows)["kernel_id"] == "torch.softmax"
    speculative = on_device(speculation(2, 2, 50))
    assert lz.which("speculative_sample", **speculative)["kernel_id"] == "cuda.sampling.speculative"
