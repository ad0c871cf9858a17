"""kernelize and the ways of Transformers to generate: beams, drafts, windows, quantised caches."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from small_llama import GREEDY, error, ids_of, plan_of, tiny  # noqa: E402


def generate_alike(model, ids, **options):
    """The report, after the kernelized model generated the very ids that the model alone does."""
    with torch.inference_mode():
        expected = model.generate(ids, **GREEDY | options)
        report = lz.kernelize(model)
        assert torch.equal(model.generate(ids, **GREEDY | options), expected)
    return report


@pytest.mark.parametrize("beams", [{"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}])
def test_beam_search(beams):
    model = tiny()
    report = generate_alike(model, ids_of(2, 7), **beams)
    assert report.replaced["decoder"]["calls"] and not plan_of(model).why_aside


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernelized_draft", [False, True])
def test_assisted_generation(kernelized_draft):
    """A draft of the same first layer is right now and then, so the cache is cut back and filled again."""
    model = tiny()
    draft = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in draft.model.layers.parameters():
            parameter.mul_(1.02)
    if kernelized_draft:
        lz.kernelize(draft)
    report = generate_alike(model, ids_of(1, 7), assistant_model=draft)
    assert report.replaced["decoder"]["calls"] < GREEDY["max_new_tokens"], "no draft was accepted"
    assert not plan_of(model).why_aside


def test_prompt_lookup():
    model = tiny()
    generate_alike(model, ids_of(1, 7), prompt_lookup_num_tokens=3)
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_sliding_window_cache(cache):
    """Twenty rows through a window of six: a dynamic cache keeps them all, a static one goes on with the model's code."""
    settings = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 6, "initializer_range": 0.3}
    torch.manual_seed(5)
    model = transformers.MistralForCausalLM(transformers.MistralConfig(**settings)).eval()
    report = generate_alike(model, ids_of(2, 8), cache_implementation=cache, pad_token_id=0)
    assert bool(report.replaced["decoder"]["calls"]) == (cache == "dynamic")
    window = "the cache holds its window alone, and more positions were seen"
    asides = {"dynamic": set(), "static": {window}}  # the memory of a static cache is no longer than the window
    assert set(plan_of(model).why_aside) == asides[cache]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(("implementation", "padding"), [("sdpa", 0), ("sdpa", 3), ("eager", 0)])
def test_masks_that_measure_another_layer(implementation, window, padding):
    """Transformers sizes MiniMax's masks by the cache of its first layer. One with a state has no keys there, so a token
    comes without a mask, whatever the window, or with that of the first key alone: its attention then sees everything,
    or nothing. A kernelized model does the same.
    """
    settings = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "block_size": 4}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "initializer_range": 0.3}
    kinds = ["linear_attention", "full_attention"] * 2
    torch.manual_seed(5)
    config = transformers.MiniMaxConfig(**settings, layer_types=kinds, sliding_window=window)
    model = transformers.MiniMaxForCausalLM(config).eval()
    model.set_attn_implementation(implementation)
    own, ids = copy.deepcopy(model), ids_of(2, 16)
    report = lz.kernelize(model)
    mask = torch.ones_like(ids)
    mask[1, :padding] = 0

    def steps(each):
        cache, logits = None, []
        for begin, end in ((0, 9), *((at, at + 1) for at in range(9, 16))):
            given = {"attention_mask": mask[:, :end], "past_key_values": cache, "use_cache": True}
            with torch.inference_mode():
                result = each(ids[:, begin:end], **given)
            cache = result.past_key_values
            logits.append(result.logits)
        return torch.cat(logits, dim=1)[mask.bool()]

    assert error(steps(model), steps(own)) <= 1e-4
    assert report.replaced["attention"]["calls"] == 16


def test_quantised_cache():
    pytest.importorskip("hqq")
    model, options = tiny(), {"backend": "hqq", "nbits": 4, "q_group_size": 16, "residual_length": 4}
    report = generate_alike(model, ids_of(), cache_implementation="quantized", cache_config=options)
    assert report.replaced["attention"]["calls"]
    reason = "the cache is neither a plain DynamicCache nor a plain StaticCache"
    assert plan_of(model).why_aside == {reason: GREEDY["max_new_tokens"]}


def test_quantised_cache_is_the_one_used():
    """Positive control: through four bits the logits differ from those of a plain cache."""
    pytest.importorskip("hqq")
    model = tiny()
    lz.kernelize(model)
    options = {"config": model.config, "nbits": 4, "q_group_size": 16, "residual_length": 1}

    def second(cache):
        with torch.inference_mode():
            model(ids_of(), past_key_values=cache)
            return model(ids_of()[:, :1], past_key_values=cache).logits

    plain = second(transformers.DynamicCache(config=model.config))
    assert error(second(transformers.QuantizedCache(backend="hqq", **options)), plain) > 1e-3
