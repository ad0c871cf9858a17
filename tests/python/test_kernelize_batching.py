"""Continuous batching of Transformers: packed sequences without a mask through the attention for packed sequences."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import register_with_transformers  # noqa: E402
from layerzero.integrations.transformers.run import continuous  # noqa: E402
from small_llama import tiny  # noqa: E402

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33], [5, 6, 7, 40]]


def generate(model, **changes):
    """The ids that each prompt is continued with; two requests at a time, so that others join while some decode."""
    settings = {"num_blocks": 16, "max_batch_tokens": 24, "default_compile_level": 0} | changes
    known = transformers.ContinuousBatchingConfig.__dataclass_fields__
    outputs = model.generate_batch(
        inputs=PROMPTS,
        generation_config=transformers.GenerationConfig(
            max_new_tokens=9, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            **{name: value for name, value in settings.items() if name in known}
        ),
        progress_bar=False,
    )
    assert not any(output.error for output in outputs.values())
    return sorted((output.prompt_ids, output.generated_tokens) for output in outputs.values())


def mistral():
    settings = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 4, "initializer_range": 0.3}
    torch.manual_seed(5)
    return transformers.MistralForCausalLM(transformers.MistralConfig(**settings)).eval()


@pytest.fixture
def packed(monkeypatch):
    """Counts the calls that came packed, and shows that there was no need of a mask."""
    seen = []
    original = continuous.paged_attention

    def spy(module, query, *rest):
        seen.append((query.shape[2], len(rest[-1]["cu_seq_lens_q"]) - 1))
        return original(module, query, *rest)

    monkeypatch.setattr(continuous, "paged_attention", spy)
    return seen


@pytest.fixture
def decoded(monkeypatch):
    """Counts the calls that read the pages of the cache in place."""
    seen = []
    original = continuous._decode
    monkeypatch.setattr(continuous, "_decode", lambda *given: (seen.append(len(given[0])), original(*given))[1])
    return seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [tiny, mistral])
def test_generate_batch_gives_the_same_ids(build, packed, decoded):
    model = build()
    expected = generate(model)
    report = lz.kernelize(model)
    assert generate(model) == expected
    assert packed and max(sequences for _, sequences in packed) > 1, "no batch had two sequences"
    assert model.config._attn_implementation == "layerzero"
    assert report.replaced["attention"]["calls"] == len(packed) and report.replaced["RMSNorm"]["calls"]
    assert bool(decoded) == (build is tiny), "windows have caches without block tables"
    assert generate(model, max_blocks_per_request=0) == expected
    lz.unkernelize(model)
    calls = len(packed)
    assert generate(model) == expected and len(packed) == calls


@pytest.mark.filterwarnings("ignore")
def test_named_at_loading(packed, decoded):
    """The attention alone, without kernelize; where Transformers has a prefix, by the name with it."""
    register_with_transformers()
    torch.manual_seed(5)
    name = continuous.PAGED if continuous.has_prefix() else "layerzero"
    model = transformers.LlamaForCausalLM._from_config(tiny().config, attn_implementation=name).eval()
    model.load_state_dict(tiny().state_dict())
    expected = generate(tiny())
    assert generate(model) == expected and packed
    assert bool(decoded) != continuous.has_prefix()
    assert generate(model, page_size=4) == expected
    assert model.config._attn_implementation == name


def test_a_block_table_of_another_cache_is_refused():
    rows, table = torch.zeros(1, 2, 1, 8), torch.zeros(1, 4, dtype=torch.int32)
    offsets = torch.tensor([0, 1], dtype=torch.int32)
    arguments = {"block_table": table, "cu_seq_lens_k": offsets}
    with pytest.raises(ValueError, match="max_blocks_per_request=0"):
        continuous.paged_attention(None, rows, rows, rows, None, 1.0, None, None, None, arguments)
    one = torch.zeros(4, 4, 2, 8)
    arguments |= {"k_cache": one, "v_cache": one.clone()}
    with pytest.raises(lz.InvalidRequestError, match="max_blocks_per_request=0"):
        continuous.paged_attention(None, rows, rows, rows, None, 1.0, None, None, None, arguments)


def test_padding_of_a_step_is_neither_stored_nor_attended_to():
    """A captured step has more rows than requests: theirs have no keys."""
    page, heads, width = 4, 2, 8
    cache = torch.randn(12, page, heads, width)
    keys, values = cache[:-1], cache[1:]
    table = torch.tensor([[4, 6], [-1, -1]], dtype=torch.int32)
    arguments = {"block_table": table, "k_cache": keys, "v_cache": values}
    arguments["cu_seq_lens_k"] = torch.tensor([0, 6, 6], dtype=torch.int32)
    query, key, value = (torch.randn(1, heads, 2, width) for _ in range(3))
    before = cache.clone()
    out = continuous.paged_attention(None, query, key, value, None, 0.5, None, None, None, arguments)
    assert torch.equal(cache[6, 1], key[0, :, 0]) and torch.equal(cache[7, 1], value[0, :, 0])
    assert (cache != before).any(-1).any(-1).sum() == 2, "no other row is written"
    seen_keys, seen_values = (torch.cat([cache[4 + i], cache[6 + i, :2]]) for i in (0, 1))
    weight = torch.einsum("hd,khd->hk", query[0, :, 0], seen_keys).mul(0.5).softmax(-1)
    assert torch.allclose(out[0, 0], torch.einsum("hk,khd->hd", weight, seen_values), atol=1e-5)
    assert not out[0, 1].any()


# What the configuration says has the effect that it has in Transformers.

WIDTH = {"num_blocks": 16, "page_size": 8, "max_batch_tokens": 24, "max_blocks_per_request": 2}
COMPILED = {"backend": "eager", "fullgraph": False}
has_tables = pytest.mark.skipif(
    continuous.has_prefix(), reason="this version has no block tables outside of flash attention"
)


@has_tables
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["argument", "generation_config", "model"])
@pytest.mark.parametrize("width, tables", [(2, 2), (None, 32), (0, 0)])
def test_settings_of_the_decoding_steps(where, width, tables):
    model = tiny()
    lz.kernelize(model)
    settings = transformers.ContinuousBatchingConfig(
        **WIDTH | {"max_blocks_per_request": width}, decode_compile_config=dict(COMPILED)
    )
    generation = transformers.GenerationConfig(eos_token_id=-1, pad_token_id=0)
    if where == "argument":
        manager = model.init_continuous_batching(generation, settings)
    else:
        generation.continuous_batching_config = settings
        if where == "model":
            model.generation_config = generation
        manager = model.init_continuous_batching(generation if where == "generation_config" else None)
    resolved = manager.continuous_batching_config
    assert resolved.max_blocks_per_request == tables
    assert (resolved.decode_compile_config is not None) == bool(tables)
    assert model.config._attn_implementation == "layerzero"


@pytest.mark.filterwarnings("ignore")
def test_all_other_settings_give_what_transformers_gives(decoded):
    settings = WIDTH | {"return_logprobs": True, "allow_block_sharing": False, "max_requests_per_batch": 2, "seed": 3}
    settings |= {"scheduler_type": "prefill_first", "safety_margin": 0.25, "per_request_processors": True}
    settings |= {"max_queue_size": 16, "max_memory_percent": 0.5, "use_async_batching": False, "use_cuda_graph": False}
    known = transformers.ContinuousBatchingConfig.__dataclass_fields__
    settings = transformers.ContinuousBatchingConfig(
        **{name: value for name, value in settings.items() if name in known}
    )
    generation = transformers.GenerationConfig(
        max_new_tokens=6, do_sample=True, top_k=1, num_return_sequences=2, eos_token_id=[50, 70], pad_token_id=0
    )

    def answers(model):
        found = model.generate_batch(PROMPTS, generation, settings).values()
        return [(one.prompt_ids, one.generated_tokens, one.error, one.logprobs) for one in found]

    model = tiny()
    expected = answers(model)
    assert len(expected) == 2 * len(PROMPTS) and all(each[3] for each in expected)
    lz.kernelize(model)
    found = answers(model)
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one[3] == pytest.approx(other[3], abs=1e-3)
    assert decoded or continuous.has_prefix()


@pytest.mark.filterwarnings("ignore")
def test_in_inference_mode(decoded):
    model = tiny()
    expected = generate(model)
    lz.kernelize(model)
    with torch.inference_mode():
        assert generate(model) == expected
    assert decoded or continuous.has_prefix()
