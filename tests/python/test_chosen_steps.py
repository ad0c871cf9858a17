"""Tokens of `generate` that captured steps choose themselves, without a device. tests/gpu/test_chosen.py captures."""

# ruff: noqa: F811  (fixtures are imported)

import copy
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from captured_fakes import capturing, llama, pair, replayed  # noqa: E402, F401
from layerzero.integrations.transformers.arguments import cache_argument, cache_of  # noqa: E402
from layerzero.integrations.transformers.caches import rows_cache  # noqa: E402
from layerzero.integrations.transformers.run import choosing, decoder, generating, loop_inputs  # noqa: E402
from transformers.generation.streamers import BaseStreamer  # noqa: E402

IDS = torch.arange(3, 43).view(2, 20)
PLAIN = {"max_new_tokens": 10, "do_sample": False, "attention_mask": torch.ones_like(IDS), "pad_token_id": 0}


@pytest.fixture
def models(capturing, pair):
    capturing.captures = capturing.replays = 0
    return pair


def entry(report):
    return report.replaced["decoder"]


def both(models, **options):
    """The model's own tokens and ours, after the same seed, and a number drawn after each."""
    found = []
    for model in models[:2]:
        torch.manual_seed(5)
        found.append((model.generate(IDS, **PLAIN | options), torch.rand(3)))
    return found


def same(models, **options):
    (expected, number), (actual, ours) = both(models, **options)
    assert torch.equal(actual, expected), (actual, expected)
    assert torch.equal(ours, number)  # the generator is where the model's own code leaves it
    return expected


def ends(models, place=3):
    """The token that greedy decoding chooses at `place` for the first sequence."""
    return int(models[0].generate(IDS, **PLAIN, min_new_tokens=10)[0, 20 + place])


SAMPLED = [
    {"temperature": 0.7, "top_k": 5},
    {"top_p": 0.8, "top_k": 0},
    {"min_p": 0.1, "temperature": 1.5},
    {"top_k": 0, "min_new_tokens": 4},
]


@pytest.mark.parametrize("options", SAMPLED, ids=str)
def test_a_seed_has_the_same_tokens_inside_of_steps(options, models, capturing):
    for _ in range(2):
        same(models, do_sample=True, **options)
    assert entry(models[2])["chosen"] >= 16 and "chosen_outside" not in entry(models[2])
    assert capturing.replays >= 12 and entry(models[2])["captured"] == capturing.replays


def test_a_mask_grows_with_its_memory(models, monkeypatch):
    monkeypatch.setattr(rows_cache, "_ROOM", 4)
    mask = torch.ones_like(IDS)
    mask[0, :7] = 0
    same(models, attention_mask=mask, max_new_tokens=24, min_new_tokens=24)
    assert entry(models[2])["chosen"] == 23


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("sampled", [False, True])
def test_sequences_that_end_are_padded_and_a_step_too_much_leaves_no_trace(sampled, cache, models, capturing):
    options = {"eos_token_id": ends(models), "do_sample": sampled, "cache_implementation": cache, "top_k": 2}
    for _ in range(3):
        found = same(models, **options | {"max_new_tokens": 30, "num_return_sequences": 2 if sampled else 1})
    assert (found[:, -1] == 0).any() or found.shape[1] < 50, found
    results = [m.generate(IDS, **PLAIN | options | {"return_dict_in_generate": True}) for m in models[:2]]
    lengths = [int(cache_of(result).get_seq_length()) for result in results]
    assert lengths[0] == lengths[1] == results[1].sequences.shape[1] - 1 or sampled
    assert lengths[1] == results[1].sequences.shape[1] - 1


def test_sampled_sequences_that_all_end_leave_the_generator_as_it_was(models):
    for seed_of in range(3):
        found = same(models, do_sample=True, eos_token_id=[*range(seed_of, 100, 3)], max_new_tokens=40)
        assert found.shape[1] < 60  # the end came before the maximal length, and a step was launched ahead
    assert entry(models[2])["chosen"] > 3


def test_one_sequence_that_ends_and_its_cache_is_used_again(models):
    """Everything has ended where a step was launched ahead; what follows sees none of it."""
    eos = ends(models)
    found = []
    for model in models[:2]:
        out = model.generate(
            IDS[:1], **PLAIN | {"attention_mask": None}, eos_token_id=eos, return_dict_in_generate=True
        )
        assert int(out.sequences[0, -1]) == eos and out.sequences.shape[1] < 30
        further = torch.cat([out.sequences, torch.tensor([[7, 8]])], 1)
        cache = cache_argument(model, cache_of(out))
        found += [out.sequences, model.generate(further, **PLAIN | {"attention_mask": None}, **cache)]
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])


class Streamer(BaseStreamer):
    def __init__(self, stop_at=None):
        self.values, self.stop_at = [], stop_at

    def put(self, value):
        if len(self.values) == self.stop_at:
            raise InterruptedError
        self.values.append(value.clone())

    def end(self):
        self.values.append("end")


def test_streamers_and_criteria_see_each_token_once(models):
    seen = []

    class Stops(transformers.StoppingCriteria):
        def __init__(self):
            self.lengths = []
            seen.append(self)

        def __call__(self, ids, scores, **_):
            assert scores is None
            self.lengths.append((ids.shape[1], int(ids[0, -1])))
            return torch.tensor([ids.shape[1] >= 24, ids.shape[1] >= 27])

    streamers = []
    for model in models[:2]:
        streamers.append(Streamer())
        criteria = transformers.StoppingCriteriaList([Stops()])
        model.generate(IDS, **PLAIN, stopping_criteria=criteria, streamer=streamers[-1])
    assert seen[0].lengths == seen[1].lengths and len(seen[1].lengths) == 7
    assert all(
        a == b if isinstance(a, str) else torch.equal(a, b) for a, b in zip(*(s.values for s in streamers), strict=True)
    )
    assert entry(models[2])["chosen"] >= 6


def test_a_streamer_that_raises_leaves_the_cache_without_the_step_ahead(models):
    for kind in (transformers.DynamicCache, transformers.StaticCache):
        further = {"max_cache_len": 64} if kind is transformers.StaticCache else {}
        cache = kind(config=models[1].config, **further)
        with pytest.raises(InterruptedError):
            models[1].generate(IDS, **PLAIN, streamer=Streamer(5), **cache_argument(models[1], cache))
        assert int(cache.get_seq_length()) == 20 + 4


def test_a_step_is_launched_before_the_host_waits_for_the_last_one(models, monkeypatch):
    order, step, wait = [], generating._Loop._step, loop_inputs.Landed.wait
    monkeypatch.setattr(generating._Loop, "_step", lambda self, last: order.append("step") or step(self, last))
    monkeypatch.setattr(loop_inputs.Landed, "wait", lambda self: order.append("wait") or wait(self))
    same(models, min_new_tokens=10)
    assert order == ["step", "wait"] * 9 + ["wait"]  # none after the last token


class Doubles(transformers.LogitsProcessor):
    def __call__(self, ids, scores):
        return scores.roll(1, -1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"logits_processor": transformers.LogitsProcessorList([Doubles()])}, "it has a Doubles"),
        ({"repetition_penalty": 1.3}, "it has a RepetitionPenaltyLogitsProcessor"),
        ({"return_dict_in_generate": True, "output_scores": True}, "scores, logits, attentions or hidden states"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "scores, logits, attentions or hidden"),
        ({"use_cache": False}, "it is no step with a cache"),
        ({"num_beams": 2}, None),
        ({"prompt_lookup_num_tokens": 3}, None),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_what_is_chosen_outside(options, why, models):
    if "prompt_lookup_num_tokens" in options:
        found = [m.generate(IDS[:1], **PLAIN | {"attention_mask": None} | options) for m in models[:2]]
    else:
        found = [m.generate(IDS, **PLAIN | options) for m in models[:2]]
    expected, actual = (f if isinstance(f, torch.Tensor) else f.sequences for f in found)
    assert torch.equal(actual, expected)
    assert "chosen" not in entry(models[2])
    reasons = entry(models[2]).get("chosen_outside", {})
    assert [*reasons.values()] == ([1] if why else []) and all(why in reason for reason in reasons), reasons
    assert not why or f"chose tokens outside of steps: {why}" in str(models[2])


def test_heads_that_change(models):
    theirs, ours, report = models
    same(models)
    weight = torch.randn_like(ours.lm_head.weight)
    for model in (theirs, ours):
        model.lm_head.weight = torch.nn.Parameter(weight.clone())
    same(models)
    other = copy.copy(ours)  # another head over the same decoder
    other.lm_head = copy.deepcopy(theirs.lm_head)
    torch.nn.init.normal_(other.lm_head.weight)
    theirs.lm_head, kept = copy.deepcopy(other.lm_head), theirs.lm_head
    same((theirs, other))
    theirs.lm_head = kept
    before = entry(report)["chosen"]
    handles = [m.lm_head.register_forward_hook(lambda m, a, out: out.roll(1, -1)) for m in (theirs, ours)]
    same(models)
    assert entry(report)["chosen"] == before
    assert entry(report)["chosen_outside"] == {"the model's head has hooks": 1}
    for handle in handles:
        handle.remove()
    same(models)
    assert entry(report)["chosen"] > before
    assert lz.unkernelize(ours)
    same(models)


def test_weights_that_change_within_a_call(models):
    """The rest of the call runs by the model's own code, with all that steps have counted."""

    class Changes(Streamer):
        def put(self, value):
            super().put(value)
            if len(self.values) == 5:
                self.model.lm_head.weight = torch.nn.Parameter(self.model.lm_head.weight.roll(1, 0))

    mask = torch.ones_like(IDS)
    mask[1, :3] = 0
    found = []
    for model in models[:2]:
        streamer = Changes()
        streamer.model = model
        found.append(model.generate(IDS, **PLAIN | {"attention_mask": mask}, min_new_tokens=10, streamer=streamer))
    # One step is launched before the host hears of the change.
    assert torch.equal(found[0][:, :24], found[1][:, :24]) and found[1].shape == (2, 30)
    assert entry(models[2])["chosen_outside"] == {"the model's head was changed": 1}
    shown = torch.cat([mask, torch.ones_like(found[1][:, 25:])], 1)
    again = models[0].generate(
        found[1][:, :25], **PLAIN | {"attention_mask": shown, "max_new_tokens": 5}, min_new_tokens=5
    )
    assert torch.equal(again, found[1])  # from there on with the weight that was set


HOST_READS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "nonzero", "numpy")


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("mask", ["none", "ones", "padded", "positions"])
def test_a_step_reads_no_number_that_a_device_would_have(mask, sampled, models, monkeypatch):
    """From the first step on: what is known of the prompt is read before its forward."""
    given = torch.ones_like(IDS)
    given[0, : 7 if mask == "padded" else 0] = 0
    options = {"do_sample": sampled, "attention_mask": None if mask == "none" else given, "min_new_tokens": 10}
    if mask == "positions":
        options["position_ids"] = torch.arange(20).expand(2, 20) + torch.tensor([[0], [4]])
    expected = same(models, **options)
    same(models, **options)  # nothing is left to capture
    step, steps = generating._Loop._step, []

    def unread(self, last):
        def forbid(name):
            def read(*_, **__):
                raise AssertionError(f"a step called Tensor.{name}")

            return read

        steps.append(1)
        with monkeypatch.context() as patched:
            for name in HOST_READS:
                patched.setattr(torch.Tensor, name, forbid(name))
            return step(self, last)

    run = generating._Loop.run

    def keeps_mask(self):
        if mask == "ones":  # which `generate` drops in some versions of Transformers
            self.kwargs["attention_mask"] = torch.ones_like(IDS)
        return run(self)

    monkeypatch.setattr(generating._Loop, "_step", unread)
    monkeypatch.setattr(generating._Loop, "run", keeps_mask)
    torch.manual_seed(5)
    assert torch.equal(models[1].generate(IDS, **PLAIN | options), expected)
    assert len(steps) == 9 and entry(models[2])["chosen"] == 27


class Breaks(Streamer):
    """Leaves the head's weight without numbers once it has got `stop_at` values."""

    def put(self, value):
        super().put(value)
        if len(self.values) == self.broken_at:
            with torch.no_grad():
                self.model.lm_head.weight[3] = float("nan")


class Seen(transformers.StoppingCriteria):
    def __init__(self):
        self.least = []

    def __call__(self, ids, scores, **_):
        self.least.append(int(ids.min()))
        return torch.zeros(len(ids), dtype=torch.bool)


@pytest.mark.parametrize("broken_at", [0, 2, 5])
def test_rows_without_a_distribution(broken_at, models, monkeypatch):
    """No draw is left to torch.multinomial, whose assertion on a CUDA device no process survives, and no id is out of range."""
    embedded, embed = [], decoder.DecoderPlan.embed

    def watched(self, ids, *args):
        embedded.append(int(ids.min()))
        return embed(self, ids, *args)

    for model in models[:2]:
        streamer, seen = Breaks(), Seen()
        streamer.model, streamer.broken_at = model, broken_at
        if not broken_at:
            with torch.no_grad():
                model.lm_head.weight[3] = float("nan")
        if model is models[1]:
            monkeypatch.setattr(torch, "multinomial", None)
            monkeypatch.setattr(decoder.DecoderPlan, "embed", watched)
        criteria = transformers.StoppingCriteriaList([seen])
        with pytest.raises(RuntimeError, match="probability tensor contains"):
            model.generate(IDS, **PLAIN | {"do_sample": True}, streamer=streamer, stopping_criteria=criteria)
        late = len(streamer.values) - max(1, broken_at)
        assert late in (0, 1)  # one step may be launched before the host hears of the weight
    assert min(seen.least) >= 0 and min(embedded) >= 0 and "chosen_outside" not in entry(models[2])


def test_the_first_token_is_drawn_as_the_others_are(models, monkeypatch):
    expected, number = both((models[0], models[0]), do_sample=True, top_p=0.9)[0]
    monkeypatch.setattr(torch, "multinomial", None)
    torch.manual_seed(5)
    assert torch.equal(models[1].generate(IDS, **PLAIN | {"do_sample": True, "top_p": 0.9}), expected)
    assert torch.equal(torch.rand(3), number)


def test_few_settings_of_sampling_have_graphs(models, monkeypatch):
    monkeypatch.setattr(generating, "_MOST_KINDS", 2)
    for temperature in (0.5, 0.6, 0.7, 0.5):
        same(models, do_sample=True, temperature=temperature, max_new_tokens=3)
    assert entry(models[2])["chosen_outside"] == {"more than 2 settings of sampling were asked for": 1}


@pytest.mark.parametrize(
    ("options", "operation"),
    [
        ({"top_k": 0}, "sample_topp"),
        ({"top_k": 3, "temperature": 0.7}, "sample_topk"),
        ({"top_k": 0, "top_p": 0.6, "min_new_tokens": 10}, "sample_topp"),
        ({"top_k": 4, "top_p": 0.6}, "sample_topk_topp"),
        ({"top_k": 0, "min_p": 0.3, "temperature": 1.2}, "sample_minp"),
        ({"top_k": 3, "min_p": 0.3}, None),
        ({"top_k": 1}, "sample_topk"),
    ],
    ids=str,
)
def test_operations_sample_where_they_are_asked_to(options, operation, models, monkeypatch):
    theirs, _, _ = models
    ours = copy.deepcopy(theirs)
    report = lz.kernelize(ours, quiet=True, sampling="layerzero")
    calls = []
    own = choosing._layerzero.ops
    recorded = {name: lambda *a, _n=name, **k: calls.append((_n, k)) or own[_n](*a, **k) for name in own}
    monkeypatch.setattr(choosing, "_layerzero", types.SimpleNamespace(ops=recorded))
    for _ in range(2):
        found = []
        for model in (ours, ours, theirs):
            torch.manual_seed(9)
            found.append(model.generate(IDS, **PLAIN | {"do_sample": True} | options))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2]) or (operation and options["top_k"] != 1)
    assert {name for name, _ in calls} == ({operation} if operation else set()) and entry(report)["chosen"] > 20
    filters = {"temperature", "top_k" if options["top_k"] else "", "top_p", "min_p"} & options.keys()
    assert not calls or len(calls[0][1]) == max(1, len(filters))
    with pytest.raises(lz.InvalidRequestError, match="unkernelize"):
        lz.kernelize(models[1], sampling="layerzero")
    lz.kernelize(ours)  # changes nothing


def test_operations_draw_the_distribution(models):
    """Frequencies of the second token of 4,000 sequences, which the captured step draws."""
    theirs, ours = models[0], copy.deepcopy(models[0])
    lz.kernelize(ours, quiet=True, sampling="layerzero")
    counts = []
    for model in (theirs, ours):
        torch.manual_seed(1)
        options = {"max_new_tokens": 2, "do_sample": True, "top_k": 6, "top_p": 0.9, "temperature": 0.8}
        ids = torch.full((4000, 1), 7)
        found = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
        counts.append(torch.bincount(found[:, 2], minlength=100).double() / 4000)
    assert (counts[0] - counts[1]).abs().sum() < 0.12, (counts[0] - counts[1]).abs().sum()
    assert torch.equal(counts[0] > 0.01, counts[1] > 0.01) or (counts[0] - counts[1]).abs().max() < 0.02


def test_a_sampling_that_is_unknown():
    with pytest.raises(lz.InvalidRequestError, match="layerzero"):
        lz.kernelize(torch.nn.Linear(2, 2), sampling="mine")


def test_a_cpu_keeps_its_loop_and_says_nothing():
    theirs, ours, report = llama()
    assert torch.equal(ours.generate(IDS, **PLAIN), theirs.generate(IDS, **PLAIN))
    assert entry(report).keys().isdisjoint({"chosen", "chosen_outside"})
