"""LayerZero's samplers for both of vLLM's model runners: which tokens are drawn, and which steps stay vLLM's.

Runs with vLLM's own classes where vLLM is importable, else with stand-ins; test_vllm_signatures.py holds both to vLLM 0.25.
"""

import importlib
import importlib.util
import sys
import types

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import layerzero  # noqa: E402, F401
import vllm_stand_in  # noqa: E402

REAL = importlib.util.find_spec("vllm") is not None
OURS = "layerzero.integrations.vllm"
VOCABULARY = 8


@pytest.fixture(scope="module")
def plugin():
    made = {} if REAL else vllm_stand_in.modules()
    finders = list(sys.meta_path)
    sys.modules.update(made)
    try:
        yield types.SimpleNamespace(
            sampling=importlib.import_module(f"{OURS}.sampling"),
            states=importlib.import_module("vllm.v1.worker.gpu.sample.states"),
            runner=importlib.import_module("vllm.v1.worker.gpu.sample.sampler"),
        )
    finally:
        sys.meta_path[:] = finders
        for name in [n for n in sys.modules if n in made or (not REAL and n.startswith(OURS))]:
            del sys.modules[name]


def both(values, dtype):
    return types.SimpleNamespace(np=torch.tensor(values, dtype=dtype).numpy(), gpu=torch.tensor(values, dtype=dtype))


@pytest.fixture
def made(plugin, monkeypatch):
    """made(temperatures, top_k, top_p, seeds (None: not set by the user)) -> a sampler of the newer runner."""

    def make(temperatures, top_k=VOCABULARY, top_p=1.0, seeds=None, wanted=True, **attributes):
        monkeypatch.setattr(plugin.sampling, "wanted", lambda name: wanted and name == "sampler")
        count = len(temperatures)
        states = plugin.states.SamplingStates.__new__(plugin.states.SamplingStates)
        states.vocab_size = VOCABULARY
        states.temperature = both(temperatures, torch.float32)
        states.top_k, states.top_p = both([top_k] * count, torch.int32), both([top_p] * count, torch.float32)
        states.seeds = both(seeds or list(range(count)), torch.int64)
        states.seeds_set = numpy.full(count, seeds is not None)
        kind = plugin.sampling.newer(plugin.runner)
        sampler = kind.__new__(kind)
        sampler.sampling_states, sampler.logprobs_mode, sampler.use_fp64_gumbel = states, "raw_logprobs", False
        sampler.own = wanted
        sampler.apply_sampling_params = lambda logits, *_, skip_top_k_top_p: logits.float()
        vars(sampler).update(attributes)
        return sampler

    return make


def sampled(sampler, logits, positions, **further):
    rows = torch.arange(len(logits))
    return sampler.sample(logits, rows, rows.numpy(), positions, rows, rows, **further)


LOGITS = torch.tensor([0.0, 5.0, 4.8, 4.6, 1.0, 0.0, 0.0, -torch.inf]).bfloat16()


def test_kept_tokens_are_drawn_and_greedy_rows_keep_the_largest(made):
    temperatures = [1.0, 0.0] * 64
    token, scaled = sampled(made(temperatures, top_k=3), LOGITS.repeat(128, 1), torch.arange(128))
    assert token.dtype == torch.int64 and scaled.dtype == torch.float32
    assert set(token[::2].tolist()) == {1, 2, 3} and set(token[1::2].tolist()) == {1}
    token, _ = sampled(made(temperatures, top_p=0.5), LOGITS.repeat(128, 1), torch.arange(128))
    assert set(token[::2].tolist()) == {1, 2} and set(token[1::2].tolist()) == {1}
    token, _ = sampled(made(temperatures, top_k=2, top_p=0.9), LOGITS.repeat(128, 1), torch.arange(128))
    assert set(token[::2].tolist()) == {1, 2}
    token, _ = sampled(made([1.0] * 256), LOGITS.repeat(256, 1), torch.arange(256))
    assert 7 not in token and len(set(token.tolist())) > 3


def test_a_seed_gives_the_same_tokens_in_every_batch(made):
    positions = torch.arange(100, 164)
    alone, _ = sampled(made([1.0] * 64, seeds=[-(2**62) + 7] * 64), LOGITS.repeat(64, 1), positions)
    others = [2**61, -(2**62) + 7] * 64
    among, _ = sampled(made([1.0] * 128, seeds=others), LOGITS.repeat(128, 1), positions.repeat_interleave(2))
    assert torch.equal(among[1::2], alone) and not torch.equal(among[::2], alone)
    assert len(set(alone.tolist())) > 1  # positions differ


def test_numbers_of_a_seed_are_splitmix(plugin):
    def expected(seed, position):
        mask = 2**64 - 1
        z = (seed + position * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return ((z ^ z >> 31) >> 40) / 2**24

    pairs = [(5, 0), (5, 1), (-3, 70), (2**63 - 1, 4096), (-(2**63), 1)]
    seeds, positions = (torch.tensor(one) for one in zip(*pairs, strict=True))
    assert plugin.sampling.seeded(seeds, positions).tolist() == [expected(*pair) for pair in pairs]
    many = plugin.sampling.seeded(torch.arange(20_000) * 977, torch.arange(20_000) % 13)
    assert many.min() >= 0 and many.max() < 1 and abs(many.mean() - 0.5) < 0.01


@pytest.mark.parametrize(
    ("changed", "further"),
    [
        ({"temperatures": [0.0, 0.0]}, {}),  # all greedy
        ({"wanted": False}, {}),
        ({"logprobs_mode": "processed_logprobs"}, {"return_logprobs": True}),
    ],
    ids=["greedy", "not wanted", "processed log-probabilities"],
)
def test_steps_that_stay_vllms(plugin, made, monkeypatch, changed, further):
    theirs = []
    monkeypatch.setattr(plugin.runner.Sampler, "sample", lambda self, *given, **more: theirs.append((given, more)))
    sampled(made(**{"temperatures": [1.0, 0.0]} | changed), LOGITS.repeat(2, 1), torch.arange(2), **further)
    ((given, more),) = theirs
    assert len(given) == 6 and more == {"return_logprobs": bool(further)}


def test_the_newer_runner_gets_the_class_when_it_is_imported(plugin, monkeypatch):
    before = plugin.runner.Sampler
    monkeypatch.setattr(plugin.runner, "Sampler", before)  # put back afterwards
    user = types.ModuleType("vllm.v1.worker.gpu.model_runner")
    user.Sampler = before
    monkeypatch.setitem(sys.modules, user.__name__, user)
    plugin.sampling._take_name(plugin.runner)
    assert plugin.runner.Sampler is user.Sampler and issubclass(user.Sampler, before) and user.Sampler is not before


def test_the_older_runners_sampler_draws_what_is_kept(plugin, monkeypatch):
    monkeypatch.setattr(plugin.sampling, "wanted", lambda name: name == "sampler")
    sampler = plugin.sampling.LayerZeroSampler()
    assert sampler.forward == sampler.layerzero_forward
    logits, two = LOGITS.float().repeat(64, 1), torch.full((64,), 2)
    assert set(sampler.forward(logits, {}, two, None)[0].tolist()) == {1, 2}
    again = [sampler.forward(logits, {0: torch.Generator().manual_seed(5)}, None, None)[0][0] for _ in range(2)]
    assert again[0] == again[1]
    assert plugin.sampling.LayerZeroSampler("processed_logits").forward != sampler.layerzero_forward
