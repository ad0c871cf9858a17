"""Decode steps as graphs, without a device: what a capture records is run again at each replay."""

import contextlib
import copy
import types

import layerzero as lz
import pytest
import torch
import transformers
from layerzero.integrations.transformers.run import captured, decoder
from layerzero.torch import captures


@pytest.fixture
def replayed(monkeypatch):
    """Takes CPU calls for calls on a device; counts captures and replays."""
    counted = types.SimpleNamespace(captures=0, replays=0)

    def record(warm_up, run, pool):
        warm_up()
        counted.captures += 1

        def replay():
            counted.replays += 1
            run()

        return replay

    why_not = captured.why_not
    on_device = lambda hidden, cache: why_not(types.SimpleNamespace(is_cuda=True, shape=hidden.shape), cache)  # noqa: E731
    monkeypatch.setattr(captures, "replay_of", record)
    monkeypatch.setattr(captured, "why_not", on_device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "a stream")
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return counted


def llama(dtype=torch.float32, **further):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=100, num_hidden_layers=2, max_position_embeddings=512, **sizes, **further
    )
    theirs = transformers.LlamaForCausalLM(config).to(dtype).eval()
    ours = copy.deepcopy(theirs)
    return theirs, ours, lz.kernelize(ours)


@pytest.fixture
def pair(replayed):
    """A model, its kernelized copy and the report; captures in kernelize's own trials do not count."""
    models = llama()
    replayed.captures = replayed.replays = 0
    return models


def generated(model, cache, padded=False, tokens=12):
    ids = torch.arange(3, 43).view(2, 20)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :7] = 0
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "cache_implementation": cache}
    return model.generate(ids, attention_mask=mask, **options)


@pytest.fixture
def capturing(replayed):
    """As on a CUDA device, where layers of more families are called one by one."""
    decoder.CAPTURING.add("cpu")
    yield replayed
    decoder.CAPTURING.discard("cpu")
