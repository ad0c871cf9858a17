"""Where the random numbers of the sampling operations come from: a seed, `uniform`, a generator, or torch's default one; and
strict mode, where -1 is an error."""

import json

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.contracts import contracts, is_seeded  # noqa: E402
from layerzero.program import ProgramBuilder, Rows  # noqa: E402
from layerzero.torch import random  # noqa: E402
from operation_cases import as_tuple, same, tensors_of  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

SEEDED = [name for name, contract in contracts().items() if is_seeded(contract)]
LOGITS = torch.zeros(64, 1000)
DRAFT, IDS, TARGET = torch.full((64, 3, 500), 2e-3), torch.arange(192).view(64, 3), torch.full((64, 4, 500), 2e-3)
# A call of each operation with many answers, so that equal draws are no accident.
CALLS = {
    "sample_topk": {"logits": LOGITS, "k": 500},
    "sample_topp": {"logits": LOGITS, "p": 0.9},
    "sample_minp": {"logits": LOGITS, "min_p": 0.1},
    "sample_topk_topp": {"logits": LOGITS, "k": 500, "p": 0.9},
    "speculative_sample": {"draft_probs": DRAFT, "draft_token_ids": IDS, "target_probs": TARGET},
}
every = pytest.mark.parametrize("name", SEEDED)


def from_seed(seed):
    return torch.Generator().manual_seed(seed)


def drawn(name, generator=None):
    """What a call without a seed draws next."""
    rows, pairs = random.source(name)
    return random.draw(CALLS[name][rows], pairs, generator)


def graph(name, backend="aot_eager", fullgraph=True):
    """The call as a function of its tensors, compiled."""
    tensors = tensors_of(CALLS[name])
    rest = {k: v for k, v in CALLS[name].items() if k not in tensors}
    compiled = torch.compile(lambda **t: getattr(lz, name)(**t, **rest), fullgraph=fullgraph, backend=backend)
    return lambda: compiled(**tensors)


def prepared(name):
    call = lz.prepare(name, **CALLS[name])
    tensors = [CALLS[name].get(p["name"]) for p in contracts()[name]["params"] if p["kind"] == "tensor"]
    return lambda: call(*tensors)


def arrays(name):
    call = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in CALLS[name].items()}

    def run():
        return tuple(torch.from_numpy(t) for t in as_tuple(getattr(lz, name)(**call)))

    return run


def traced(name):
    tensors = tensors_of(CALLS[name])
    rest = {k: v for k, v in CALLS[name].items() if k not in tensors}
    made = make_fx(lambda *t: getattr(lz, name)(**dict(zip(tensors, t, strict=True)), **rest))(*tensors.values())
    return lambda: made(*tensors.values())


def inference(name, function):
    with torch.inference_mode():
        call = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in CALLS[name].items()}

    def run():
        with torch.inference_mode():
            return function(**call)

    return run


def autocast(name):
    def run():
        with torch.autocast("cpu"):
            return getattr(lz, name)(**CALLS[name])

    return run


def operator(name):
    return getattr(torch.ops.layerzero, name)


WAYS = {
    "direct": lambda name: lambda: getattr(lz, name)(**CALLS[name]),
    "run": lambda name: lambda: lz.run(name, **CALLS[name]),
    "gradients": lambda name: lambda: getattr(lz, name)(
        **{k: v.clone().requires_grad_() if v is not IDS and isinstance(v, torch.Tensor) else v
           for k, v in CALLS[name].items()}
    ),
    "inference": lambda name: inference(name, getattr(lz, name)),
    "autocast": autocast,
    "prepared": prepared,
    "arrays": arrays,
    "operator": lambda name: lambda: operator(name)(**CALLS[name]),
    "operator in inference": lambda name: inference(name, operator(name)),
    "traced": traced,
    "compiled": graph,
}  # fmt: skip


@every
@pytest.mark.parametrize("way", WAYS)
def test_a_call_without_a_seed_draws_from_torchs_default_generator(name, way):
    """By every way in the same numbers: those of torch.rand."""
    call = WAYS[way](name)
    call()  # compiled, planned
    torch.manual_seed(5)
    first, second = call(), call()
    assert not all(torch.equal(a, b) for a, b in zip(as_tuple(first), as_tuple(second), strict=True))
    torch.manual_seed(5)
    for got in (first, second):
        same(got, getattr(lz, name)(**CALLS[name], uniform=drawn(name)))
    torch._dynamo.reset()


@every
def test_two_calls_in_one_graph_draw_twice(name):
    """Neither compiler passes nor operators called by themselves merge two equal calls."""
    call = operator(name)
    tensors = tensors_of(CALLS[name])
    rest = {k: v for k, v in CALLS[name].items() if k not in tensors}

    def by_functions(**t):
        return getattr(lz, name)(**t, **rest), getattr(lz, name)(**t, **rest)

    def by_operators(**t):
        return call(**t, **rest), call(**t, **rest)

    for function in (by_functions, by_operators):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                first, second = torch.compile(function, fullgraph=True, backend="aot_eager_decomp_partition")(**tensors)
            assert not torch.equal(as_tuple(first)[0], as_tuple(second)[0]), (function, mode)
        torch._dynamo.reset()


@every
@pytest.mark.parametrize("kernel", ["hwy", "ref", "torch", "torch.ref"])
def test_a_seed_with_its_offset_repeats_whatever_torch_has_drawn(name, kernel):
    kernel = f"{kernel}.{contracts()[name]['operations'][0]['id']}"
    state = torch.get_rng_state()
    calls = [getattr(lz, name)(**CALLS[name], seed=7, offset=o, kernel=kernel) for o in (2, 3, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    same(calls[0], calls[2])
    assert not torch.equal(as_tuple(calls[0])[0], as_tuple(calls[1])[0])


@every
def test_questions_draw_nothing(name):
    state = torch.get_rng_state()
    lz.which(name, **CALLS[name])
    lz.explain(name, **CALLS[name])
    lz.prepare(name, **CALLS[name])
    assert torch.equal(torch.get_rng_state(), state)
    assert lz.which(name, **CALLS[name]) == lz.which(name, **CALLS[name], generator=from_seed(1))


@every
def test_a_generator_draws(name):
    function = getattr(lz, name)
    state = torch.get_rng_state()
    same(function(**CALLS[name], generator=from_seed(7)), function(**CALLS[name], uniform=drawn(name, from_seed(7))))
    assert as_tuple(lz.run(name, **CALLS[name], generator=from_seed(7)))
    generator, again = from_seed(1), from_seed(1)
    first, second = (function(**CALLS[name], generator=generator) for _ in range(2))
    assert not torch.equal(as_tuple(first)[0], as_tuple(second)[0])
    same([as_tuple(function(**CALLS[name], generator=again))[0] for _ in range(2)],
         [as_tuple(first)[0], as_tuple(second)[0]])  # fmt: skip
    assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_draws_for_arrays():
    got = lz.sample_topk(LOGITS.numpy(), 500, generator=from_seed(1))
    assert torch.equal(torch.from_numpy(got), lz.sample_topk(LOGITS, 500, generator=from_seed(1)))


@every
def test_one_source_of_random_numbers(name):
    function, call, uniform = getattr(lz, name), CALLS[name], drawn(name)
    with pytest.raises(lz.InvalidRequestError, match=f"{name}: seed: wanted a seed with its offset, or uniform.*both"):
        function(**call, seed=1, uniform=uniform)
    with pytest.raises(lz.InvalidRequestError, match=f"{name}: seed: wanted a seed .*got neither"):
        function(**call, offset=1)
    with pytest.raises(lz.InvalidRequestError, match=f"{name}: uniform: "):
        function(**call, uniform=uniform[1:])
    for given in ({"seed": 1}, {"offset": 1}, {"uniform": uniform}):
        with pytest.raises(lz.InvalidRequestError, match=f"{name}: {next(iter(given))}: wanted none together with"):
            function(**call, **given, generator=from_seed(1))
    with pytest.raises(lz.WrongTypeError, match="generator: wanted a torch.Generator, got int"):
        function(**call, generator=3)
    with pytest.raises(lz.InvalidRequestError, match="generator: wanted none in a prepared call.*pass seed="):
        lz.prepare(name, **call, generator=from_seed(1))


@every
@pytest.mark.parametrize("kernel", ["hwy", "ref", "torch", "torch.ref"])
def test_uniform_outside_its_interval_is_refused(name, kernel):
    kernel = f"{kernel}.{contracts()[name]['operations'][0]['id']}"
    for bad in (1.0, -1e-9, float("nan"), float("inf")):
        uniform = drawn(name)
        uniform.view(-1)[3] = bad
        with pytest.raises(lz.KernelExecutionError, match=name):
            getattr(lz, name)(**CALLS[name], uniform=uniform, kernel=kernel)
    # The largest numbers below 1 of both dtypes give the last token that is kept.
    for uniform in (torch.full_like(drawn(name), 1 - 2.0**-53), torch.full_like(drawn(name).float(), 1 - 2.0**-24)):
        token = as_tuple(getattr(lz, name)(**CALLS[name], uniform=uniform, kernel=kernel))[0].flatten()[0]
        assert token == {"sample_topp": 899, "sample_minp": 999}.get(name, token)
        assert token >= 0


def test_a_generator_of_another_device_is_refused():
    """Meta has a generator wherever torch has none but the CPU's."""
    with pytest.raises(lz.InvalidRequestError, match="generator: wanted one of cpu, where the tensors are, got"):
        lz.sample_topk(LOGITS, 5, generator=Elsewhere())


class Elsewhere(torch.Generator):
    """A generator that says that it is of another device, which this machine may not have."""

    device = torch.device("cuda:0")


def test_operations_that_draw_nothing_have_no_generator():
    with pytest.raises(TypeError, match="unexpected argument 'generator'"):
        lz.rms_norm(LOGITS, generator=from_seed(1))


def test_tracing_refuses_a_generator():
    """Its state would be a constant of the graph."""

    def sample(x):
        return lz.sample_topk(x, 5, generator=from_seed(1))

    with pytest.raises(lz.InvalidRequestError, match="generator: wanted none while torch traces"):
        make_fx(sample)(LOGITS)
    with pytest.raises(lz.InvalidRequestError, match="generator: wanted none while torch traces"):
        torch.func.vmap(sample)(LOGITS)


def test_a_compiled_function_with_a_generator_runs_outside_the_graph():
    """As torch's own random operations do; a full graph takes a seed, or uniform."""
    generator = from_seed(1)

    def sample(x):
        return lz.sample_topk(x, 500, generator=generator) + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(sample, fullgraph=True, backend="aot_eager")(LOGITS)
    torch._dynamo.reset()
    generator.manual_seed(1)
    want = lz.sample_topk(LOGITS, 500, generator=from_seed(1)) + 1
    assert torch.equal(torch.compile(sample, backend="aot_eager")(LOGITS), want)
    seeded = torch.compile(lambda x: lz.sample_topk(x, 500, seed=3) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(seeded(LOGITS), lz.sample_topk(LOGITS, 500, seed=3) + 1)


def test_a_program_draws_by_a_seed_or_by_numbers_of_each_run():
    def program(**draw):
        make = ProgramBuilder()
        logits = make.rows(1000, "float32")
        given = {k: make.input() if v is None else v for k, v in draw.items()}
        make.add("elementwise", [Rows(logits, (1000,))], input=make.input(), other=make.weight(torch.zeros(1000)),
                 function="add")  # fmt: skip
        token = make.output(1, "int64")
        make.add("sample_topk", [Rows(token, (1,))], logits=Rows(logits, (1, 1000)), k=500, **given)
        return make.build()

    with pytest.raises(lz.InvalidRequestError, match="seed: wanted a seed, or uniform as a value of each run"):
        program()
    by_seed, by_uniform = program(seed=3), program(uniform=None)
    x, token = torch.zeros(2, 5, 1000), torch.empty(2, 5, 1, dtype=torch.int64)
    for uniform in (torch.rand(2, 5, 1, dtype=torch.float64) for _ in range(2)):
        by_uniform.run((uniform, x), (token,))
        assert torch.equal(token, lz.sample_topk(x[:, :, None], 500, uniform=uniform))
        by_seed.run((x,), (token,))
        assert torch.equal(token, lz.sample_topk(x[:, :, None], 500, seed=3))


def test_greedy_generation_draws_nothing():
    from layerzero.models import Sampling

    state = torch.get_rng_state()
    assert torch.equal(Sampling.of().draw(LOGITS, 0), torch.zeros(64, dtype=torch.int64))
    assert torch.equal(torch.get_rng_state(), state)
    drawing = Sampling.of(temperature=1.0)
    assert not torch.equal(drawing.draw(LOGITS, 0), drawing.draw(LOGITS, 0))
    repeated = Sampling.of(temperature=1.0, seed=2)
    assert torch.equal(repeated.draw(LOGITS, 4), repeated.draw(LOGITS, 4))


def test_one_choice_serves_every_seed_and_every_draw():
    """A new seed, offset or draw is no reason to select again."""

    def step(i):
        for call in ({"seed": i}, {"seed": 2**40 + i}, {"seed": i, "offset": 1 + i}, {}):
            lz.sample_topk(LOGITS, 7, **call)
        return json.loads(_layerzero.stats())["cache"]["inserted"]

    first = step(0)
    assert [step(i) for i in range(1, 4)] == [first] * 3


# ---- rows without an answer


@pytest.mark.parametrize("kernel", ["hwy", "ref", "torch", "torch.ref"])
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
                sample(logits, **kwargs)  # the slow path
            assert (sample(logits[::2], **kwargs, kernel=f"{kernel}.sampling.{name}") >= 0).all()


@pytest.mark.parametrize("kernel", ["hwy", "ref", "torch", "torch.ref"])
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


@every
@pytest.mark.parametrize("way", WAYS)
def test_by_every_way_a_row_without_an_answer_is_minus_one_and_in_strict_mode_an_error(name, way, monkeypatch):
    rows, _ = random.source(name)
    bad = CALLS[name][rows].clone()
    bad[3] = float("nan")
    bad[5] = 0.0 if name == "speculative_sample" else float("-inf")
    monkeypatch.setitem(CALLS, name, CALLS[name] | {rows: bad})
    call = WAYS[way](name)
    token = as_tuple(call())[0].view(64, -1)
    assert (token[[3, 5]] == -1).any(-1).all()
    assert (token[[0, 4]][:, 0] >= 0).all()
    # An operator that is called by itself on inference tensors is C++ alone, whose errors are torch's.
    error = RuntimeError if way == "operator in inference" else lz.KernelExecutionError
    with lz.policy(strict_mode=True), pytest.raises(error, match=f"{name}: "):
        call()
    torch._dynamo.reset()
