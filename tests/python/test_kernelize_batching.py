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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [tiny, mistral])
def test_generate_batch_gives_the_same_ids(build, packed):
    model = build()
    expected = generate(model)
    report = lz.kernelize(model)
    assert generate(model) == expected
    assert packed and max(sequences for _, sequences in packed) > 1, "no batch had two sequences"
    assert model.config._attn_implementation == "layerzero"
    assert report.replaced["attention"]["calls"] == len(packed) and report.replaced["RMSNorm"]["calls"]
    assert generate(model) == expected
    lz.unkernelize(model)
    calls = len(packed)
    assert generate(model) == expected and len(packed) == calls
    assert "init_continuous_batching" not in model.__dict__


@pytest.mark.filterwarnings("ignore")
def test_named_paged_at_loading(packed):
    """Where Transformers has a prefix, the paged attention can be named; elsewhere the name means the attention itself."""
    register_with_transformers()
    config = tiny().config
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=continuous.PAGED).eval()
    model.load_state_dict(tiny().state_dict())
    if continuous.has_prefix():
        assert generate(model) == generate(tiny()) and packed
    else:
        assert model.config._attn_implementation == "layerzero"
        with pytest.raises(ValueError, match="not supported for continuous batching"):
            generate(model)


def test_a_block_table_is_refused():
    rows = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ValueError, match="max_blocks_per_request=0"):
        continuous.paged_attention(None, rows, rows, rows, object(), 1.0, None, None, None, {"block_table": rows})
