"""generator= of the sampling operations: a torch.Generator draws the seed; and strict mode, where -1 is an error."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero._contracts import contracts, is_seeded  # noqa: E402
from operation_cases import as_tuple, few, same  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

SEEDED = [name for name, contract in contracts().items() if is_seeded(contract)]
LOGITS = torch.zeros(64, 1000)


def from_seed(seed):
    return torch.Generator().manual_seed(seed)


def a_call(name):
    for _, arguments in few(name):
        call = {k: v for k, v in arguments.items() if k != "seed"}
        try:
            getattr(lz, name)(**call)
        except lz.LayerZeroError:
            continue
        return call
    raise AssertionError(f"{name}: no case")


@pytest.mark.parametrize("name", SEEDED)
def test_a_generator_draws_the_seed(name):
    call = a_call(name)
    drawn = int(torch.empty((), dtype=torch.int64).random_(generator=from_seed(7)))
    same(getattr(lz, name)(**call, generator=from_seed(7)), getattr(lz, name)(**call, seed=drawn))
    assert as_tuple(lz.run(name, **call, generator=from_seed(7)))


def test_equal_generators_give_equal_tokens_and_move_on():
    generator = from_seed(1)
    first, second = (lz.sample_topk(LOGITS, 500, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    again = from_seed(1)
    same([lz.sample_topk(LOGITS, 500, generator=again) for _ in range(2)], [first, second])
    assert torch.equal(torch.from_numpy(lz.sample_topk(LOGITS.numpy(), 500, generator=from_seed(1))), first)
    assert torch.equal(lz.sample_topk(LOGITS, 500, generator=None), lz.sample_topk(LOGITS, 500))


def test_what_a_generator_cannot_stand_beside():
    with pytest.raises(lz.InvalidRequestError, match="sample_topk: seed: wanted none beside generator"):
        lz.sample_topk(LOGITS, 5, seed=1, generator=from_seed(1))
    with pytest.raises(lz.WrongTypeError, match="generator: wanted a torch.Generator, got int"):
        lz.sample_topk(LOGITS, 5, generator=3)
    with pytest.raises(TypeError, match="unexpected argument 'generator'"):
        lz.rms_norm(LOGITS, generator=from_seed(1))
    with pytest.raises(lz.InvalidRequestError, match="generator: wanted none in a prepared call.*pass seed="):
        lz.prepare("sample_topk", LOGITS, 5, generator=from_seed(1))
    assert lz.which("sample_topk", LOGITS, 5, generator=from_seed(1)) == lz.which("sample_topk", LOGITS, 5)


def test_tracing_refuses_a_generator():
    """Its seed would be a constant of the graph."""

    def sample(x):
        return lz.sample_topk(x, 5, generator=from_seed(1))

    with pytest.raises(lz.InvalidRequestError, match="generator: wanted none while torch traces"):
        make_fx(sample)(LOGITS)
    with pytest.raises(lz.InvalidRequestError, match="generator: wanted none while torch traces"):
        torch.func.vmap(sample)(LOGITS)


def test_a_compiled_graph_takes_a_seed_in_a_generators_place():
    generator = from_seed(1)

    def sample(x):
        return lz.sample_topk(x, 500, generator=generator) + 1

    with pytest.raises(Exception, match="(?s)generator|exception"):
        torch.compile(sample, fullgraph=True, backend="aot_eager")(LOGITS)
    torch._dynamo.reset()
    generator.manual_seed(1)
    want = lz.sample_topk(LOGITS, 500, generator=from_seed(1)) + 1
    assert torch.equal(torch.compile(sample, backend="aot_eager")(LOGITS), want)  # outside a full graph
    seeded = torch.compile(lambda x: lz.sample_topk(x, 500, seed=3) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(seeded(LOGITS), lz.sample_topk(LOGITS, 500, seed=3) + 1)


# ---- rows without an answer


@pytest.mark.parametrize("kernel", ["hwy", "ref", "torch.ref"])
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("topk", {"k": 3}), ("topp", {"p": 0.5}), ("minp", {"min_p": 0.1}), ("topk_topp", {"k": 3, "p": 0.5})],
)
def test_a_row_without_an_answer_is_an_error_in_strict_mode(name, kwargs, kernel):
    sample = getattr(lz, f"sample_{name}")
    for bad in (float("nan"), float("-inf")):
        logits = torch.zeros(3, 8)
        logits[1] = bad
        tokens = sample(logits, **kwargs, kernel=f"{kernel}.sampling.{name}")
        assert tokens[1] == -1 and (tokens[[0, 2]] >= 0).all()
        with lz.policy(strict_mode=True):
            with pytest.raises(lz.KernelExecutionError, match=f"sample_{name}: "):
                sample(logits, **kwargs, kernel=f"{kernel}.sampling.{name}")
            with pytest.raises(lz.KernelExecutionError, match=f"sample_{name}: "), torch.autocast("cpu"):
                sample(logits, **kwargs)  # the slow door
            assert (sample(logits[::2], **kwargs, kernel=f"{kernel}.sampling.{name}") >= 0).all()


@pytest.mark.parametrize("kernel", ["hwy", "ref", "torch.ref"])
def test_speculation_without_an_answer_is_an_error_in_strict_mode(kernel):
    draft, target = torch.full((2, 2, 4), 0.25), torch.full((2, 3, 4), 0.25)
    ids = torch.zeros(2, 2, dtype=torch.int64)
    target[1] = float("nan")
    kernel = f"{kernel}.sampling.speculative"
    assert lz.speculative_sample(draft, ids, target, kernel=kernel)[0][1, 0] == -1
    with lz.policy(strict_mode=True):
        with pytest.raises(lz.KernelExecutionError, match="speculative_sample: "):
            lz.speculative_sample(draft, ids, target, kernel=kernel)
        assert (lz.speculative_sample(draft[:1], ids[:1], target[:1], kernel=kernel)[0][0, 0]) >= 0
