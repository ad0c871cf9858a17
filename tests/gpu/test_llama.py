"""kernelize on the device: a small Llama with random weights, with and without LayerZero."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402


def llama(dtype, layers=2):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).to("cuda", dtype).eval()


def pair(dtype):
    theirs = llama(dtype)
    ours = copy.deepcopy(theirs)
    report = lz.kernelize(ours)
    assert "decoder" in report.replaced, report
    return theirs, ours


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_are_as_near_to_fp64_as_the_models_own(dtype):
    theirs, ours = pair(dtype)
    ids = torch.arange(3, 131, device="cuda").view(2, 64) % 1000
    with torch.inference_mode():
        exact = copy.deepcopy(theirs).double()(ids).logits
        error = [(m(ids).logits.double() - exact).abs() for m in (theirs, ours)]
    assert error[1].max() <= 1.25 * error[0].max()
    assert error[1].mean() <= 1.25 * error[0].mean()


@pytest.mark.parametrize("padded", [False, True])
def test_greedy_ids_are_equal_in_float32(padded):
    theirs, ours = pair(torch.float32)
    ids = torch.arange(3, 43, device="cuda").view(2, 20)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :7] = 0
    options = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "attention_mask": mask}
    for cache in (None, "static"):
        one, two = (m.generate(ids, cache_implementation=cache, **options) for m in (theirs, ours))
        assert torch.equal(one, two)


def test_unkernelize_and_another_stream():
    theirs, ours = pair(torch.bfloat16)
    ids = torch.arange(3, 67, device="cuda").view(1, 64)
    side = torch.cuda.Stream()
    with torch.inference_mode():
        here = ours(ids).logits
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            there = ours(ids).logits
        side.synchronize()
        torch.testing.assert_close(there, here, rtol=0, atol=0)
        assert lz.unkernelize(ours)
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=0, atol=0)


def test_a_prefill_is_captured_into_a_graph():
    _, ours = pair(torch.bfloat16)
    ids = torch.arange(3, 67, device="cuda").view(1, 64)
    step = lambda: ours(ids, use_cache=False).logits  # noqa: E731
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = step()
        ids.copy_(ids.flip(-1))
        graph.replay()
        torch.testing.assert_close(logits, step(), rtol=2e-2, atol=2e-2)
