"""What looks like a known part and is none is left alone; on an unknown Transformers version each part is tried first."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import probe  # noqa: E402
from layerzero.integrations.transformers.run import attention as attention_interface  # noqa: E402
from layerzero.integrations.transformers.run import experts as experts_interface  # noqa: E402
from layerzero.models.families import FAMILIES  # noqa: E402
from linear_kinds import RoundingLinear, TransposedLinear  # noqa: E402
from small_llama import TOLERANCE, error, logits_of, plan_of, tiny  # noqa: E402

BY_NAME = {family.name: family for family in FAMILIES}


def assert_same_function(model, report_of=lz.kernelize):
    """The report, after the kernelized model gave the logits that it gave alone."""
    expected = logits_of(model)
    report = report_of(model)
    assert error(logits_of(model), expected) <= TOLERANCE
    return report


def planted(module, forward):
    """The module with another forward under the same parts: a class that a list of names would take for the old one."""
    module.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})


# ---- structures that lie


WRONG_MLPS = {
    "offset": lambda self, x: self.down_proj(self.act_fn(self.gate_proj(x)) * (self.up_proj(x) + 1)),
    "clamp": lambda self, x: self.down_proj(self.act_fn(self.gate_proj(x)).clamp(max=7) * self.up_proj(x)),
    "swapped": lambda self, x: self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x)),
    "scaled": lambda self, x: self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * 1.01,
}


@pytest.mark.parametrize("kind", WRONG_MLPS)
def test_an_mlp_that_computes_something_else(kind):
    model = tiny()
    planted(model.model.layers[1].mlp, WRONG_MLPS[kind])
    report = assert_same_function(model)
    # Parts are identified by what flows through them: a gate and up that are swapped are found as they are.
    if kind == "swapped":
        assert report.replaced["MLP"]["count"] == 3 and "decoder" in report.replaced
        return
    assert "something else" in report.left["model.layers.1.mlp"]
    assert report.replaced["MLP"]["count"] == 2 and "decoder" not in report.replaced
    assert report.left["decoder"].startswith("layer 1: ")


def test_parts_that_cannot_be_tried_are_left():
    """A forward that wants more than rows, and one that gives more than rows."""
    model = tiny()
    layers = model.model.layers

    def pair(self, rows, scale=None):
        return type(layers[1].mlp).forward(self, rows), scale

    def scaled(self, rows, scale):
        return type(layers[1].mlp).forward(self, rows) * scale

    planted(layers[0].mlp, pair)
    planted(layers[2].mlp, scaled)
    report = lz.kernelize(model)
    assert all("something else" in report.left[f"model.layers.{n}.mlp"] for n in (0, 2))
    assert report.replaced["MLP"]["count"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_right_mlp_passes_the_check(dtype):
    """Positive control of the test before: the same class with its own forward."""
    model = tiny(dtype)
    mlp = model.model.layers[1].mlp
    planted(mlp, type(mlp).forward)
    assert lz.kernelize(model).replaced["MLP"]["count"] == 3


class SwitchedLinear(torch.nn.Linear):
    """Has a state of its own that could change what it computes at any time."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.factor = 1.0

    def forward(self, rows):
        return super().forward(rows) * self.factor


@pytest.mark.parametrize(
    "kind, reason",
    [(TransposedLinear, None), (RoundingLinear, "computes something else"), (SwitchedLinear, "not exactly")],
)
def test_a_subclass_of_linear(kind, reason):
    model = tiny()
    attention = model.model.layers[0].self_attn
    other = kind(96, 96, False)
    other.load_state_dict(attention.q_proj.state_dict())
    attention.q_proj = other
    report = assert_same_function(model)
    left = report.left.get("model.layers.0.self_attn.q_proj")
    assert (left is None) if reason is None else (reason in left)
    assert report.replaced["Linear"]["count"] == (22 if reason is None else 21)


def in_8_bits(rows):
    return rows.to(torch.float8_e4m3fn).to(rows.dtype)


# own(rows, ids, weights): the experts' own code.
WRONG_EXPERTS = {
    "scaled": lambda own, rows, ids, weights: 2 * own(rows, ids, weights),
    "rounded": lambda own, rows, ids, weights: own(in_8_bits(rows), ids, weights),
    "offset": lambda own, rows, ids, weights: own(rows, ids, weights) + rows / 8,
    "normalised weights": lambda own, rows, ids, weights: own(rows, ids, weights / weights.sum(-1, keepdim=True)),
    "weights of the first row": lambda own, rows, ids, weights: own(rows, ids, weights[:1].expand_as(weights)),
    "equal weights": lambda own, rows, ids, weights: own(rows, ids, torch.full_like(weights, 0.5)),
    "the first expert alone": lambda own, rows, ids, weights: own(rows, ids[:, :1], weights[:, :1]),
    "the next experts": lambda own, rows, ids, weights: own(rows, (ids + 1) % 4, weights),
}


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("kind", WRONG_EXPERTS)
def test_experts_that_compute_something_else(kind, name):
    model = BY_NAME[name].build()
    experts = next(module for module in model.modules() if experts_interface.looks_like_experts(module))
    planted_experts(experts, WRONG_EXPERTS[kind])
    assert "something else" in experts_interface.gate_of(experts)[1]
    if kind == "scaled":
        expected = logits_of(model)
        report = lz.kernelize(model)
        assert error(logits_of(model), expected) <= TOLERANCE
        assert "experts" not in report.replaced and any("something else" in reason for reason in report.left.values())


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_the_right_experts_pass_the_check(name):
    """Positive control: the same class with its own code."""
    model = BY_NAME[name].build()
    experts = next(module for module in model.modules() if experts_interface.looks_like_experts(module))
    planted_experts(experts, lambda own, *arguments: own(*arguments))
    assert experts_interface.gate_of(experts)[1] is None


def planted_experts(experts, change):
    """Experts whose own code is `change(what it was, rows, ids, weights)`."""

    def changed(self, *arguments):
        return change(functools.partial(type(self).__mro__[1].forward.__wrapped__, self), *arguments)

    def dispatched(self, *arguments):
        return changed(self, *arguments)

    dispatched.__wrapped__ = changed
    planted(experts, dispatched)


@pytest.mark.parametrize(("offset", "factor", "limit"), [(2, 1, 7.0), (1, 2, 7.0), (1, 2, 1000.0)])
def test_a_gate_with_another_factor(monkeypatch, offset, factor, limit):
    """The clamped gate of gpt-oss is taken for what it computes: up + 1 is part of it, up + 2 is not."""
    model = BY_NAME["gpt_oss"].build()
    assert {"experts", "decoder"} <= assert_same_function(model).replaced.keys()
    lz.unkernelize(model)
    experts = next(module for module in model.modules() if experts_interface.looks_like_experts(module))

    def other(self, gate_up):
        limit = factor * self.limit
        gate, up = gate_up[..., ::2].clamp(max=limit), gate_up[..., 1::2].clamp(-limit, limit)
        return (up + offset) * gate * torch.sigmoid(gate * self.alpha)

    monkeypatch.setattr(type(experts), "_apply_gate", other)
    for experts in (part for part in model.modules() if experts_interface.looks_like_experts(part)):
        experts.limit = limit
    report = assert_same_function(model)
    assert not {"experts", "experts' gate", "decoder"} & report.replaced.keys()
    assert "experts have a gate of their own" in report.left["decoder"]


def test_a_gate_that_is_replaced_alone():
    """Of experts that compute something else around it."""
    model = BY_NAME["gpt_oss"].build()
    for experts in [part for part in model.modules() if experts_interface.looks_like_experts(part)]:
        planted_experts(experts, WRONG_EXPERTS["scaled"])
    report = assert_same_function(model)
    assert report.replaced["experts' gate"]["calls"] and "experts" not in report.replaced


def test_experts_of_transposed_weights_part_by_part():
    """By the model's parameters, whatever they are later; on a padded prompt and on tokens."""
    model = BY_NAME["gpt_oss"].build()
    own = copy.deepcopy(model)
    report = lz.kernelize(model)
    with torch.no_grad():
        for each in (model, own):
            for experts in (part for part in each.modules() if experts_interface.looks_like_experts(part)):
                experts.gate_up_proj.mul_(30)  # beyond the limit
                experts.down_proj_bias.add_(0.5)
    with torch.device("cpu"):  # a mode, under which no program runs
        assert error(logits_of(model), logits_of(own)) <= TOLERANCE
    assert report.replaced["experts"]["calls"] == 2


def test_a_gate_whose_limit_changes_later():
    model, reference = BY_NAME["gpt_oss"].build(), BY_NAME["gpt_oss"].build()
    lz.kernelize(model)
    for each in (model, reference):
        for module in each.modules():
            if experts_interface.looks_like_experts(module):
                module.limit, module.alpha = 0.01, 1.0
    assert error(logits_of(model), logits_of(reference)) <= TOLERANCE


def test_a_changed_file_is_seen(monkeypatch):
    """Another function of the file, put there after kernelize, is the one that the attention calls."""
    model = BY_NAME["mistral"].build()
    lz.kernelize(model)
    before = logits_of(model)
    own = vars(__import__("sys").modules[type(model).__module__])["ALL_ATTENTION_FUNCTIONS"]

    class Halved:
        def get_interface(self, *arguments):
            def attend(*given, **further):
                out, weights = own.get_interface(*arguments)(*given, **further)
                return out * 0.5, weights

            return attend

    monkeypatch.setattr(f"{type(model).__module__}.ALL_ATTENTION_FUNCTIONS", Halved())
    assert error(logits_of(model), before) > 0.01


# ---- unknown versions and unknown code


@pytest.fixture
def unknown_version(monkeypatch):
    monkeypatch.setattr(probe.transformers, "__version__", "9.1.0")


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "bert", "bart", "t5", "vit", "clip"])
def test_unknown_version_replaces_what_agrees(name, unknown_version):
    model, family = BY_NAME[name].build(), BY_NAME[name]
    assert "9.1.0" in probe.why_untested(model)
    with torch.inference_mode():
        expected = model(**family.example())[0]
        report = lz.kernelize(model)
        actual = model(**family.example())[0]
    assert error(actual, expected) <= TOLERANCE
    assert "attention" in report.replaced and "attention" not in report.left


@pytest.mark.parametrize("name", ["llama", "mistral", "bart", "vit"])
def test_unknown_version_that_means_something_else(name, unknown_version, monkeypatch):
    """Positive control: a version whose attention gets its scale in another way, so that ours would be wrong."""
    real = attention_interface.layerzero_attention

    def unaware(module, query, *rest, scaling=None, **further):
        return real(module, query * 1.5, *rest, scaling=scaling, **further)

    monkeypatch.setattr(attention_interface, "layerzero_attention", unaware)
    model, family = BY_NAME[name].build(), BY_NAME[name]
    with torch.inference_mode():
        expected = model(**family.example())[0]
        report = lz.kernelize(model)
        actual = model(**family.example())[0]
    assert error(actual, expected) <= TOLERANCE
    assert "another result" in report.left["attention"] and "9.1.0" in report.left["attention"]
    assert "attention" not in report.replaced and model.config._attn_implementation == "sdpa"
    monkeypatch.undo()
    lz.unkernelize(model)
    assert "attention" in lz.kernelize(model).replaced  # registers the right one again


def test_unknown_version_and_no_input_to_compare_by(unknown_version):
    family = BY_NAME["whisper"]
    report = lz.kernelize(family.build())
    assert "no input can be made" in report.left["attention"] and "attention" not in report.replaced


def test_code_from_elsewhere_is_tried_on_every_version():
    model = tiny()
    model.__class__ = type("RemoteLlama", (type(model),), {"__module__": "modeling_remote"})
    assert "no model of Transformers itself" in probe.why_untested(model)
    assert probe.why_untested(tiny()) is None
    report = assert_same_function(model)
    assert "attention" in report.replaced and report.replaced["decoder"]["calls"] == 1
    assert not plan_of(model).why_aside


def test_a_model_that_changes_itself_on_short_inputs():
    """BigBird goes over to full attention for good; a trial by `kernelize` is none of its inputs."""
    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 131}
    config = transformers.BigBirdPegasusConfig(**sizes, block_size=4, num_random_blocks=1, max_position_embeddings=128)
    model = transformers.BigBirdPegasusForConditionalGeneration(config).eval()
    kinds = [type(module) for module in model.modules()]
    lz.kernelize(model)
    assert model.model.encoder.attention_type == "block_sparse"
    assert [type(module) for module in model.modules()] == kinds


def test_norms_of_channels_are_not_norms_of_rows():
    norms = torch.nn.Sequential(torch.nn.GroupNorm(1, 16), torch.nn.GroupNorm(4, 16))
    report = lz.kernelize(norms)
    assert not report.replaced and set(report.left) >= {"0", "1"}


def test_a_head_whose_function_has_parameters():
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    model = transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=131, **sizes)).eval()
    assert "encoder" in assert_same_function(model).replaced


def test_a_classifier_whose_attention_is_tried():
    """MPNet does not support sdpa; what its classifier gives has no positions."""
    config = transformers.MPNetConfig(vocab_size=131, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                      intermediate_size=48, max_position_embeddings=64)  # fmt: skip
    model = transformers.MPNetForSequenceClassification(config).eval()
    ids = torch.randint(3, 131, (2, 9))
    with torch.no_grad():
        expected = model(ids).logits
        lz.kernelize(model)
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)
