"""Tokens of `generate` that captured steps choose themselves: the model's own tokens, also of a seed, and no waiting in between."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers.arguments import cache_of  # noqa: E402
from layerzero.integrations.transformers.kernelize import is_kernelized  # noqa: E402
from layerzero.integrations.transformers.run import captured, generating, loop_inputs  # noqa: E402
from transformers.generation.streamers import BaseStreamer  # noqa: E402

CACHES = [None, "static"]


def loaded():
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=32000, num_hidden_layers=2, max_position_embeddings=2048, **sizes)
    theirs = transformers.LlamaForCausalLM(config).to("cuda", torch.float32).eval()
    ours = copy.deepcopy(theirs)
    return theirs, ours, lz.kernelize(ours)


@pytest.fixture(scope="module")
def models():
    return loaded()


def generated(model, batch=2, padded=False, **options):
    ids = torch.arange(3, 3 + 20 * batch, device="cuda").view(batch, 20)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :7] = 0
    own = {} if is_kernelized(model) else {"disable_compile": True}
    torch.manual_seed(11)
    found = model.generate(ids, attention_mask=mask, pad_token_id=0, **{"max_new_tokens": 40} | options | own)
    return found, torch.rand(4, device="cuda")


def same(models, **options):
    (expected, number), (actual, ours) = (generated(model, **options) for model in models[:2])
    assert torch.equal(actual, expected)
    assert torch.equal(ours, number)  # the generator is where the model's own code leaves it
    return actual


def entry(models):
    return models[2].replaced["decoder"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("batch", [1, 2, 17])
def test_greedy_tokens(batch, cache, padded, models):
    before = entry(models).get("chosen", 0), entry(models).get("captured", 0)
    for _ in range(2):
        same(models, batch=batch, padded=padded, cache_implementation=cache, do_sample=False, min_new_tokens=40)
    assert entry(models)["chosen"] == before[0] + 78 and entry(models)["captured"] >= before[1] + 75
    assert not entry(models).get("chosen_outside"), entry(models)


SAMPLED = [
    {"top_k": 0},
    {"temperature": 0.7, "top_k": 50},
    {"top_p": 0.9, "top_k": 0},
    {"min_p": 0.05, "temperature": 1.3, "top_k": 0},
    {"top_k": 40, "top_p": 0.8, "temperature": 0.9, "min_new_tokens": 10},
]


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("options", SAMPLED, ids=str)
def test_tokens_of_a_seed(options, cache, models):
    before = entry(models).get("captured", 0)
    for padded in (False, True):
        for _ in range(2):
            same(models, padded=padded, do_sample=True, cache_implementation=cache, **options)
    assert entry(models)["captured"] > before + 100 and not entry(models).get("chosen_outside"), entry(models)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("sampled", [False, True])
def test_a_step_too_much_leaves_no_trace(sampled, cache, models):
    free, _ = generated(models[0], do_sample=sampled, top_k=5, min_new_tokens=40)
    ends = [int(free[0, 30]), int(free[1, 33])]
    options = {"eos_token_id": ends, "do_sample": sampled, "top_k": 5, "cache_implementation": cache}
    for _ in range(3):
        found = same(models, **options)
    result, _ = generated(models[1], **options, return_dict_in_generate=True)
    assert int(cache_of(result).get_seq_length()) == result.sequences.shape[1] - 1
    assert sampled or found.shape[1] <= 34


def test_a_step_waits_for_nothing_and_is_launched_before_the_host_reads_the_last_one(models, monkeypatch):
    order = []
    step, wait = generating._Loop._step, loop_inputs.Landed.wait

    def unread(self, last):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return step(self, last)
        finally:
            torch.cuda.set_sync_debug_mode("default")
            order.append("step")

    for sampled in (False, True):
        options = {"do_sample": sampled, "top_p": 0.9, "min_new_tokens": 40}
        for _ in range(3):  # what is left to capture is captured
            generated(models[1], **options)
        with monkeypatch.context() as patched:
            patched.setattr(generating._Loop, "_step", unread)
            patched.setattr(loop_inputs.Landed, "wait", lambda self: order.append("wait") or wait(self))
            generated(models[1], **options)
            generated(models[1], **options)
    assert order[:4] == ["step", "wait", "step", "wait"] and order.count("step") == 4 * 39


class Breaks(BaseStreamer):
    """Leaves the head's weight without numbers once it has got some values."""

    def __init__(self, model, after):
        self.weight, self.after, self.count = model.lm_head.weight, after, 0

    def put(self, value):
        self.count += 1
        if self.count == self.after:
            with torch.no_grad():
                self.weight[3] = float("nan")

    def end(self):
        pass


def without_numbers():
    """In a process of its own. The first token has no distribution, or one that a graph chooses."""
    _, ours, report = loaded()
    right = ours.lm_head.weight.detach().clone()
    expected, number = generated(ours, do_sample=True)
    for after in (0, 2, 9, 9, 0):
        streamer = Breaks(ours, after)
        with torch.no_grad():
            ours.lm_head.weight[3] = right[3] if after else float("nan")
        with pytest.raises(RuntimeError, match="probability tensor contains"):
            generated(ours, do_sample=True, streamer=streamer)
        torch.cuda.synchronize()  # the device has met no assertion
    with torch.no_grad():
        ours.lm_head.weight[3] = right[3]
    tokens, again = generated(ours, do_sample=True)
    assert torch.equal(tokens, expected) and torch.equal(again, number)
    assert report.replaced["decoder"]["captured"] > 40 and "chosen_outside" not in report.replaced["decoder"]
    print("raised")


def test_logits_without_numbers():
    paths = os.pathsep.join([str(Path(lz.__file__).parent.parent), str(Path(__file__).parent)])
    code = "import test_chosen; test_chosen.without_numbers()"
    env = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip().endswith("raised"), done.stdout + done.stderr


def test_a_choice_that_cannot_be_captured_runs_call_by_call(models, monkeypatch):
    theirs, ours = models[0], copy.deepcopy(models[0])
    report = lz.kernelize(ours)
    advance = captured.Step.advance_inputs
    monkeypatch.setattr(captured.Step, "advance_inputs", lambda self: self.lengths.tolist() and advance(self))
    same((theirs, ours, report), do_sample=True)
    assert any("cannot be captured" in reason for reason in report.replaced["decoder"]["not_captured"])


@pytest.mark.parametrize(
    "options", [{"top_p": 0.9, "top_k": 0}, {"top_k": 40, "top_p": 0.8}, {"min_p": 0.1, "top_k": 0}]
)
def test_operations_sample_where_they_are_asked_to(options, models):
    """The same tokens for a seed, whether a graph ran or calls, and Transformers' frequencies."""
    theirs, ours = models[0], copy.deepcopy(models[0])
    report = lz.kernelize(ours, sampling="layerzero")
    found = [generated(ours, do_sample=True, **options) for _ in range(4)]
    assert all(torch.equal(tokens, found[0][0]) and torch.equal(n, found[0][1]) for tokens, n in found)
    assert report.replaced["decoder"]["captured"] > 100
    ids, counts = torch.full((4096, 1), 7, device="cuda"), []
    for model in (theirs, ours):
        torch.manual_seed(1)
        given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 3, "do_sample": True, "temperature": 0.2}
        last = model.generate(ids, pad_token_id=0, **given, **options)[:, 3]
        counts.append(torch.bincount(last, minlength=32000).double() / len(ids))
    most = counts[0].topk(5).indices
    assert (counts[0][most] - counts[1][most]).abs().max() < 0.05
