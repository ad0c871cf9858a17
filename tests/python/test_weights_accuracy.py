"""What `kernelize(weights=)` measures of models that are no plain decoders: other inputs, no logits, parts out of reach."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import block_parts as parts  # noqa: E402
import layerzero as lz  # noqa: E402
import two_stacks as stacks  # noqa: E402
from block_families import error  # noqa: E402
from layerzero.errors import InvalidRequestError  # noqa: E402
from layerzero.models.families import as_trained  # noqa: E402

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE = {"image_size": 28, "patch_size": 14}
IDS = torch.randint(3, 131, (1, 12), generator=torch.Generator().manual_seed(1))


def of(kind, config, **arguments):
    torch.manual_seed(3)
    config = getattr(transformers, config)(**SIZES, initializer_range=0.3, **arguments)
    return as_trained(getattr(transformers, kind)(config).eval())


MODELS = {
    "classes of a text": lambda: of("BertForSequenceClassification", "BertConfig", vocab_size=131),
    "rows alone": lambda: of("BertModel", "BertConfig", vocab_size=131),
    "classes of an image": lambda: of("ViTForImageClassification", "ViTConfig", **IMAGE),
    "rows of an image": lambda: of("Dinov2Model", "Dinov2Config", **IMAGE),
    "two stacks": lambda: stacks.build("T5"),
    "an encoder of sound": lambda: stacks.build("Whisper"),
    "an image beside a text": lambda: parts.build("idefics3"),
}


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def test_every_model_says_what_its_weights_cost(name):
    model = MODELS[name]()
    report = lz.kernelize(model, weights="int8", max_perplexity_ratio=2)
    assert report.weights.layers > 0 and report.weights.max_logit_error > 0
    assert 1 < report.weights.perplexity_ratio < 1.2 and report.weights.perplexity is None
    assert lz.unkernelize(model)
    fewer = lz.kernelize(model, weights="int4", max_perplexity_ratio=50)
    assert fewer.weights.perplexity_ratio > report.weights.perplexity_ratio


def test_what_costs_too_much_is_undone(name):
    model = MODELS[name]()
    with pytest.raises(InvalidRequestError, match="raise max_perplexity_ratio"):
        lz.kernelize(model, weights="int4", max_perplexity_ratio=1.000001)
    assert not any("_layerzero" in key for module in model.modules() for key in module.__dict__)


def test_a_given_text_of_two_stacks():
    report = lz.kernelize(stacks.build("T5"), weights="int8", accuracy_ids=IDS, max_perplexity_ratio=2)
    before, after = report.weights.perplexity
    assert before > 1 and after > 1 and before != after


def test_layers_that_no_text_reaches_keep_their_weights():
    model, own = parts.build("idefics3"), parts.build("idefics3")
    report = lz.kernelize(model, weights="int8", max_perplexity_ratio=2)
    left = {path for path, reason in report.left.items() if "nothing tells what others would cost" in reason}
    assert left == {"model.vision_model.encoder.layers", "model.connector.modality_projection.proj"}
    blocks = {path for path, m in model.named_modules() if "_layerzero_blocks" in m.__dict__}
    assert blocks and all(".layers." in path or path == "lm_head" for path in blocks)
    assert not any("vision" in path for path in blocks)
    images = parts.given("idefics3")["pixel_values"]
    with torch.inference_mode():
        rows = [each.model.get_image_features(images).last_hidden_state for each in (model, own)]
    assert error(*rows) <= 1e-5
    assert 1e-4 < error(parts.run(model, "idefics3"), parts.run(own, "idefics3")) < 0.2
    assert not [plan for plan in parts.programs_of(model) if plan.why_aside]


def test_one_logit_is_no_distribution():
    model = of("BertForSequenceClassification", "BertConfig", vocab_size=131, num_labels=1)
    assert lz.kernelize(model, weights="int8", max_perplexity_ratio=2).weights.perplexity_ratio > 1


def test_a_given_text_that_the_logits_are_not_of():
    model = of("BertForTokenClassification", "BertConfig", vocab_size=131, num_labels=3)
    assert lz.kernelize(model, weights="int8", accuracy_ids=IDS, max_perplexity_ratio=2).weights.perplexity is None


def test_two_vocabularies():
    sizes = {"d_model": 64, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 131, "decoder_vocab_size": 40}
    heads = {
        f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in (("layers", 2), ("attention_heads", 4))
    }
    tokens = {
        "share_encoder_decoder_embeddings": False,
        "decoder_start_token_id": 1,
        "pad_token_id": 0,
        "eos_token_id": 2,
    }
    torch.manual_seed(3)
    model = transformers.MarianMTModel(transformers.MarianConfig(**sizes, **heads, **tokens, init_std=0.3)).eval()
    assert lz.kernelize(model, weights="int8", max_perplexity_ratio=2).weights.layers > 0


def test_a_model_without_an_input():
    model = parts.build("clip")
    with pytest.raises(InvalidRequestError, match="no input can be made up"):
        lz.kernelize(model, weights="int8")
    assert torch.equal(parts.run(model, "clip"), parts.run(copy.deepcopy(model), "clip"))
    with pytest.raises(InvalidRequestError, match="wanted a model that reads text or images"):
        lz.kernelize(parts.build("wav2vec2"), weights="int8")
    with pytest.raises(InvalidRequestError, match="no input can be made up"):  # wants an image beside the text
        lz.kernelize(parts.build("siglip"), weights="int8")
    with pytest.raises(InvalidRequestError, match="accuracy_ids: wanted none"):
        lz.kernelize(MODELS["classes of an image"](), weights="int8", accuracy_ids=IDS)
