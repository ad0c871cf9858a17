"""Models of an encoder and a decoder: two programs, the second over keys and values of what the first gives."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import TOLERANCE, error  # noqa: E402
from torch import nn  # noqa: E402
from two_stacks import MODELS, OLD, build  # noqa: E402

WRONG = "the model's own code does something else with its layers"
GREEDY = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "disable_compile": True}


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def source(name, dtype=torch.float32, batch=2, padded=True):
    """Arguments of an encoder; the first row ends in padding."""
    generator = torch.Generator().manual_seed(3)
    if name == "Whisper":
        return {"input_features": torch.randn(batch, 8, 40, generator=generator).to(dtype)}
    ids = torch.randint(3, 131, (batch, 9), generator=generator)
    if not padded:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    return {"input_ids": ids.where(mask.bool(), 0), "attention_mask": mask}


def target(batch=2, length=7):
    return torch.randint(3, 131, (batch, length), generator=torch.Generator().manual_seed(4))


def run(model, name, **given):
    given = {"decoder_input_ids": target()} | given
    with torch.inference_mode():
        return model(**source(name, model.dtype) | given)


def plan_of(part):
    return part.__dict__["_layerzero_decoder"]


def decoder_of(model):
    return model.get_decoder()


def layers_of(part):
    return part.block if hasattr(part, "block") else part.layers


def alike(model, own, name, **given):
    actual, expected = (run(each, name, **given).logits for each in (model, own))
    assert error(actual, expected) <= TOLERANCE
    return expected


def test_two_programs(name):
    model, own = build(name), build(name)
    plan = lz.compile(model)
    assert plan.block == "block.decoder" and {row["operation"] for row in plan.phases["decode"]} >= {"attention"}
    parts = [plan.report.replaced[part] for part in ("encoder", "decoder")]
    assert all(part["calls"] == 0 for part in parts)
    mask = torch.ones_like(target())
    mask[1, :2] = 0
    for given, rows in (({}, slice(None)), ({"decoder_attention_mask": mask}, mask.bool())):
        actual, expected = (run(each, name, **given).logits[rows] for each in (model, own))
        assert error(actual, expected) <= TOLERANCE
    assert all(part["calls"] == 2 for part in parts)
    assert not plan_of(decoder_of(model)).why_aside
    assert lz.unkernelize(model) and torch.equal(run(model, name).logits, run(own, name).logits)


def test_errors_in_bf16(name):
    """Over several models: those of one alone scatter by half of their size."""
    sums = [0.0, 0.0]
    for seed in range(6):
        model = build(name, torch.bfloat16, seed)
        exact = run(copy.deepcopy(model).float(), name).logits
        sums[1] += error(run(model, name).logits, exact)
        lz.kernelize(model)
        sums[0] += error(run(model, name).logits, exact)
        assert not plan_of(decoder_of(model)).why_aside
    assert sums[0] <= 1.25 * sums[1]


def generates_alike(model, own, name, batch=2, **options):
    with torch.inference_mode():
        ids = [each.generate(**source(name, batch=batch), **GREEDY | options) for each in (model, own)]
    assert torch.equal(*ids)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": False}])
def test_generation(name, options):
    model, own = build(name), build(name)
    report = lz.kernelize(model)
    generates_alike(model, own, name, **options)
    assert report.replaced["decoder"]["calls"] >= 8 and not plan_of(decoder_of(model)).why_aside


def test_a_draft_that_is_wrong_now_and_then(name):
    if OLD and name == "T5":
        pytest.skip("Transformers 5.17 itself cannot crop the cache of such a draft")
    model, own, draft = build(name), build(name), build(name)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(1.02)
    lz.kernelize(model)
    generates_alike(model, own, name, batch=1, assistant_model=draft)


@pytest.mark.parametrize("first", ["program", "own"])
def test_a_cache_that_changes_hands(name, first):
    model, own, ids = build(name), build(name), target()
    lz.kernelize(model)
    order = (model, own) if first == "program" else (own, model)
    result = run(order[0], name, decoder_input_ids=ids[:, :3], use_cache=True)
    cache, encoded = result.past_key_values, (result.encoder_last_hidden_state,)
    logits = [result.logits]
    for at in range(3, 7):
        given = {"encoder_outputs": encoded, "past_key_values": cache, "decoder_input_ids": ids[:, at : at + 1]}
        logits.append(run(order[at % 2], name, **given).logits)
    assert error(torch.cat(logits, dim=1), run(own, name).logits) <= TOLERANCE
    keys, wanted = (run(each, name, use_cache=True).past_key_values for each in (model, own))
    for mine, theirs in zip(keys.cross_attention_cache.layers[:2], wanted.cross_attention_cache.layers, strict=False):
        assert mine.keys.shape == theirs.keys.shape and error(mine.values, theirs.values) <= TOLERANCE


def test_weights_that_change(name):
    """Of every part of a decoder's layer, by new parameters and in place; the program of the new ones runs."""
    model, own = build(name), build(name)
    lz.kernelize(model)
    before = alike(model, own, name)
    for path, _ in list(layers_of(decoder_of(model))[0].named_parameters()):
        for each in (model, own):
            module = layers_of(decoder_of(each))[0].get_submodule(path.rpartition(".")[0])
            last = path.rpartition(".")[2]
            setattr(module, last, nn.Parameter(getattr(module, last).detach().flip(0) * 1.5))
        after = alike(model, own, name)
        alone = path.endswith("k_proj.bias")  # adds one number to all scores of a row: none after the softmax
        assert alone or not torch.equal(after, before), f"{path} changed nothing"
        before = after
    with torch.no_grad():
        for each in (model, own):
            for parameter in layers_of(decoder_of(each)).parameters():
                parameter.mul_(1.1)
    assert error(alike(model, own, name), before) > 10 * TOLERANCE
    assert not plan_of(decoder_of(model)).why_aside


def test_what_the_program_steps_aside_for():
    model, own = build("Bart"), build("Bart")
    lz.kernelize(model)
    asides = plan_of(decoder_of(model)).why_aside
    expected = run(own, "Bart", output_attentions=True).cross_attentions
    actual = run(model, "Bart", output_attentions=True).cross_attentions
    assert all(error(mine, theirs) <= TOLERANCE for mine, theirs in zip(actual, expected, strict=True))
    states = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(2))
    for further in ({"encoder_hidden_states": None}, {"encoder_hidden_states": states[:1]}):
        given = {"input_ids": target(), "use_cache": False} | further
        results = []
        for each in (model, own):
            with torch.inference_mode():
                results.append(decoder_of(each)(**given)[0])
        assert error(*results) <= TOLERANCE
    for each in (model, own):
        decoder_of(each).layers[0].encoder_attn.k_proj.register_forward_hook(lambda _, arguments, result: result * 2)
    alike(model, own, "Bart")
    assert set(asides) == {
        "attentions or hidden states are asked for",
        "the rows of the encoder are missing, or of another dtype",
        "the rows of the encoder are of another batch or device",
        "a module has hooks",
    }


def _scaled(rows, layers):
    for layer in layers:
        rows = layer(rows, None).mul_(2)
    return rows


def _scaled_and_back(rows, layers):
    for factor, layer in zip((-1, -1, 1), layers, strict=True):
        rows = layer(rows, None).mul_(factor)
    return rows


def _scaled_for_some(rows, layers):
    factor = 2 if rows.mean() > 1 else 1
    for layer in layers:
        rows = layer(rows, None).mul_(factor)
    return rows


def _gathered(rows, layers):
    kept = []
    for layer in layers:
        rows = layer(rows, None)
        kept.append(rows)
    return sum(kept)


def _twice(rows, layers):
    for layer in (*layers, *layers):
        rows = layer(rows, None)
    return rows


def _in_turn(rows, layers):
    for layer in layers:
        rows = layer(rows, None)
    return rows


_ASIDE = {
    _in_turn: set(),
    _scaled: {"its rows were changed between the layers"},
    _scaled_for_some: {"its rows were changed between the layers"},
    _scaled_and_back: {WRONG},
    _gathered: {WRONG},
    _twice: {"its layers were called again"},
}


@pytest.mark.parametrize("through", _ASIDE)
def test_layers_that_no_small_input_reaches(through):
    """What is done with them shows in no trial: the first call is compared with the model's own code."""
    whisper = transformers.models.whisper.modeling_whisper

    class Encoder(whisper.WhisperEncoder):
        __module__ = whisper.__name__

        def forward(self, input_features, **_):
            rows = self.embed_positions.weight + input_features.mean(dim=(1, 2), keepdim=True)
            rows = self.layer_norm(through(rows, self.layers))
            return transformers.modeling_outputs.BaseModelOutput(rows)

    model, own = build("Whisper"), build("Whisper")
    for each in (model, own):
        each.get_encoder().__class__ = Encoder
    report = lz.kernelize(model)
    for level in (-5.0, 5.0):
        alike(model, own, "Whisper", input_features=torch.full((2, 8, 40), level))
    assert set(plan_of(model.get_encoder()).why_aside) == _ASIDE[through]
    assert report.replaced["encoder"]["calls"] == {_in_turn: 2, _scaled_for_some: 1}.get(through, 0)


def test_what_the_model_writes_before_its_layers():
    """Into what it was given: the first call, which is computed in both ways, does it once."""
    whisper = transformers.models.whisper.modeling_whisper

    class Encoder(whisper.WhisperEncoder):
        __module__ = whisper.__name__

        def forward(self, input_features, **_):
            rows = self.embed_positions.weight + input_features.mul_(2).mean(dim=(1, 2), keepdim=True)
            return transformers.modeling_outputs.BaseModelOutput(_in_turn(rows, self.layers))

    model, own = build("Whisper"), build("Whisper")
    for each in (model, own):
        each.get_encoder().__class__ = Encoder
    lz.kernelize(model)
    for _ in range(2):
        given = [torch.ones(2, 8, 40) for _ in range(2)]
        actual, expected = (
            run(each, "Whisper", input_features=x).logits for each, x in zip((model, own), given, strict=True)
        )
        assert error(actual, expected) <= TOLERANCE and torch.equal(*given)


def test_an_encoder_that_clamps_in_float16():
    """Its own code bounds infinities there: a model that becomes one runs part by part, and is right."""
    model = build("Bart")
    report = lz.kernelize(model)
    model.half()
    own = build("Bart").half()
    actual, expected, exact = (run(each, "Bart").logits for each in (model, own, build("Bart")))
    assert error(actual, exact) <= 2 * error(expected, exact)
    assert report.replaced["encoder"]["calls"] == 0 and report.replaced["decoder"]["calls"] == 1
    assert "its code calls clamp" in lz.kernelize(own).left["encoder"]


def test_weights_in_blocks():
    model, own = build("MBart"), build("MBart")
    plan = lz.compile(model, "int8", max_perplexity_ratio=2, accuracy_ids=target(1, 12))
    assert plan.report.weights.layers
    operations = {row["operation"] for row in plan.phases["decode"]}
    assert "linear_gguf" in operations and "linear" not in operations
    assert 1e-3 < error(run(model, "MBart").logits, run(own, "MBart").logits) < 0.2
    assert not plan_of(decoder_of(model)).why_aside


def test_cached_keys_of_one_source_for_all_targets():
    """The model repeats the one; the program leaves that to it."""
    model, own = build("MBart"), build("MBart")
    lz.kernelize(model)
    results = []
    for each in (model, own):
        with torch.inference_mode():
            first = each(**source("MBart", batch=1, padded=False), decoder_input_ids=target(1, 3), use_cache=True)
            cross = first.past_key_values.cross_attention_cache
            cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), cross)
            rows = first.encoder_last_hidden_state.expand(2, -1, -1)
            results.append(each(encoder_outputs=(rows,), decoder_input_ids=target(2, 4), past_key_values=cache).logits)
    assert error(*results) <= TOLERANCE
    assert set(plan_of(decoder_of(model)).why_aside) == {"the cached keys of the encoder are of another batch"}


@pytest.mark.parametrize("part", ["get_encoder", "get_decoder"])
def test_a_part_of_a_model(name, part):
    """By itself it is no model of two stacks, whatever its configuration says."""
    model, own = (getattr(build(name), part)() for _ in range(2))
    lz.kernelize(model)
    given = {"input_ids": target()} if part == "get_decoder" else source(name)
    with torch.inference_mode():
        assert error(model(**given)[0], own(**given)[0]) <= TOLERANCE


def test_two_models_put_together():
    """Both lists of layers lie in something that is called an encoder."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    bert = transformers.BertConfig(vocab_size=131, initializer_range=0.3, **sizes)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(bert, copy.deepcopy(bert))
    torch.manual_seed(2)
    model = transformers.EncoderDecoderModel(config).eval()
    own = copy.deepcopy(model)
    report = lz.kernelize(model)
    assert {"encoder", "decoder"} <= report.replaced.keys() | report.left.keys()
    given = source("Bart") | {"decoder_input_ids": target()}
    with torch.inference_mode():
        assert error(model(**given).logits, own(**given).logits) <= TOLERANCE


@pytest.mark.parametrize("name", [name for name in MODELS if "T5" in name])
def test_a_bias_by_distance(name, monkeypatch):
    """Beyond the distances that the trial saw, and when what makes it changes: its table, its constants, its code."""
    model, own = build(name), build(name)
    lz.kernelize(model)
    asides = plan_of(decoder_of(model)).why_aside
    alike(model, own, name, decoder_input_ids=target(2, 50))
    generates_alike(model, own, name, max_new_tokens=40, min_new_tokens=40)
    assert not asides
    attentions = [layers_of(decoder_of(each))[0].layer[0].SelfAttention for each in (model, own)]
    before = alike(model, own, name)
    for attention in attentions:
        with torch.no_grad():
            attention.relative_attention_bias.weight.mul_(-2)
    after = alike(model, own, name)
    assert error(after, before) > 10 * TOLERANCE and not asides
    for attention in attentions:
        attention.relative_attention_num_buckets = 4
    assert error(alike(model, own, name), after) > 10 * TOLERANCE
    assert set(asides) == {"an attribute of a module was changed after kernelize"}
    for attention in attentions:
        attention.relative_attention_num_buckets = 8
    alike(model, own, name)
    compute = type(attentions[0]).compute_bias
    monkeypatch.setattr(
        type(attentions[0]), "compute_bias", lambda self, *args, **given: 2 * compute(self, *args, **given)
    )
    assert error(alike(model, own, name), after) > 10 * TOLERANCE
