"""What is found by structure alone: bounds, tables of positions, vectors and routers of any kind; and what is refused."""

import copy
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import TOLERANCE, build, error, ids_of, plan_of  # noqa: E402


def logits(model, **given):
    with torch.inference_mode():
        return model(**{"input_ids": ids_of(2)} | given).logits


def is_same_program(model, own):
    report = lz.kernelize(model)
    assert "decoder" in report.replaced, report.left["decoder"]
    assert error(logits(model), logits(own)) <= TOLERANCE
    assert not plan_of(model).why_aside


def refusal(model):
    own = copy.deepcopy(model)
    reason = lz.kernelize(model).left["decoder"]
    assert error(logits(model), logits(own)) <= TOLERANCE
    return reason


def small_llama(**further):
    config = transformers.LlamaConfig(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                      num_attention_heads=4, **further)  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


# ---- bounds


class Bounded(transformers.models.llama.modeling_llama.LlamaMLP):
    """Of what nothing in a program has a bound for."""

    def forward(self, x):
        return super().forward(x).clamp(-1e4, 1e4)


class SometimesBounded(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        if x.shape[1] > 100:
            x = x.clamp(-1, 1)
        return super().forward(x)


class BoundedByAMethod(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return self.bounded(super().forward(x))

    def bounded(self, x):
        return x if len(x) < 100 else x.clamp(-1, 1)


class BoundedAbove(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return super().forward(x).clamp_max(1e4)


class BoundedByAFunction(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return torch.nn.functional.hardtanh(super().forward(x), -1e4, 1e4)


class BoundedWhere(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return torch.where(x > 1e4, 1e4, x)


class BoundedByAMask(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return x.masked_fill_(x.gt(1e4), 1e4)


class BoundedByAProduct(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return x * (x <= 1e4)


class BoundedByABranch(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return x / 2 if float(x.amax()) > 1e4 else x


class BoundedWhereInfinite(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return x.new_zeros(x.shape) if torch.isinf(x).any() else x


class BoundedByTheSmaller(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return torch.min(super().forward(x), torch.tensor(1e4))


class BoundedByEquality(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return x.masked_fill(x.abs() == torch.inf, 0)


class BoundedByRounding(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return x - (x / 1e4).trunc()


class BoundedByARemainder(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        return super().forward(x).fmod(1e4)


class BoundedByAShrinkage(transformers.models.llama.modeling_llama.LlamaMLP):
    def forward(self, x):
        x = super().forward(x)
        return x - torch.nn.functional.softshrink(x, 1e4)


BOUNDS = [
    (Bounded, "clamp: is"),
    (SometimesBounded, "its code calls clamp:"),
    (BoundedByAMethod, "its code calls clamp:"),
    (BoundedAbove, "its code calls clamp_max:"),
    (BoundedByAFunction, "its code calls hardtanh:"),
    (BoundedWhere, "where: is"),
    (BoundedByAMask, "masked_fill: is"),
    (BoundedByAProduct, "mul: is"),
    (BoundedByABranch, "its code calls __float__:"),
    (BoundedWhereInfinite, "its code calls __bool__:"),
    (BoundedByTheSmaller, "min: is"),
    (BoundedByEquality, "masked_fill: is"),
    (BoundedByRounding, "sub: is"),
    (BoundedByARemainder, "fmod: is"),
    (BoundedByAShrinkage, "sub: is"),
]


@pytest.mark.parametrize(("kind", "reason"), BOUNDS)
def test_bounds_that_no_program_has(kind, reason):
    model = small_llama()
    model.model.layers[1].mlp.__class__ = kind
    assert refusal(model).startswith(f"layer 1: mlp: {reason}")
    assert "model.layers.1.mlp" in lz.kernelize(model).left
    # The part by itself is none either: it shows beyond the bound.
    rows = 1e9 * torch.randn(1, 3, 64)
    with torch.no_grad():
        assert torch.equal(model.model.layers[1].mlp(rows), kind.forward(model.model.layers[1].mlp, rows))


class NormWithABound(transformers.models.llama.modeling_llama.LlamaRMSNorm):
    def forward(self, rows):
        return super().forward(torch.where(rows > 1e4, 0, rows))


class LinearWithABound(torch.nn.Linear):
    def forward(self, rows):
        rows = super().forward(rows)
        return rows.masked_fill(rows > 1e4, 0)


@pytest.mark.parametrize(
    ("path", "kind", "reason"),
    [
        ("layers.1.input_layernorm", NormWithABound, "layer 1: input_layernorm: where: "),
        ("layers.0.mlp.up_proj", LinearWithABound, "layer 0: mlp: mul: mlp: it computes something else"),
    ],
)
def test_bounds_of_smaller_parts(path, kind, reason):
    model = small_llama()
    part = model.model.get_submodule(path)
    part.__class__ = kind
    assert refusal(model).startswith(reason)
    lz.kernelize(model)
    rows = 1e9 * torch.randn(1, 3, 64)
    with torch.no_grad():
        assert torch.equal(part(rows), kind.forward(part, rows))


@pytest.mark.parametrize("activation", ["gelu_10", "xielu", "relu6", "laplace"])
def test_activations_with_bounds_are_the_models_own(activation):
    """gelu_10 is gelu up to 10."""
    model = small_llama(hidden_act=activation)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate_proj.weight *= 300
        ids = torch.randint(3, 131, (2, 9))
        expected = model(ids).logits
        lz.kernelize(model)
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["olmo", "olmoe, every expert"])
@pytest.mark.parametrize("bound", [0.1, 1e6])
def test_bounds_from_the_configuration(name, bound):
    """The first is reached by every row, the second by none."""
    model = build(name)
    model.config.clip_qkv = bound
    is_same_program(model, copy.deepcopy(model))
    attention = plan_of(model).stack.layers[0].attention
    assert {part.clip for part in (attention.query, attention.key, attention.value)} == {(-bound, bound)}


def test_a_rotation_that_the_first_positions_do_not_show(monkeypatch):
    """Rows become larger where a cosine is near -1: of position 22, not of the first six."""
    file = sys.modules[transformers.LlamaModel.__module__]
    own = file.apply_rotary_pos_emb

    def rotate(q, k, cos, sin, *rest, **further):
        q, k = own(q, k, cos, sin, *rest, **further)
        return q * (1 + (cos.unsqueeze(1)[..., :1] < -0.9999)), k

    monkeypatch.setattr(file, "apply_rotary_pos_emb", rotate)
    model = small_llama()
    own_model, ids = copy.deepcopy(model), torch.arange(3, 63).reshape(2, 30)
    assert "rotation" in lz.kernelize(model).left["decoder"]
    assert error(logits(model, input_ids=ids), logits(own_model, input_ids=ids)) <= TOLERANCE


# ---- routers


def gates_of(model, attribute):
    return [module for module in model.modules() if hasattr(module, attribute)]


@pytest.mark.parametrize("least", [1e-12, 0.6, 2.0])
def test_the_least_sum_that_weights_are_divided_by(least):
    model = build("ernie4_5_moe")
    for gate in gates_of(model, "norm_min"):
        gate.norm_min = least
    is_same_program(model, copy.deepcopy(model))
    assert plan_of(model).stack.layers[1].mlp.route.min_sum == least


@pytest.mark.parametrize("jitter", [0.01, 0.2, 0.45])
def test_experts_that_a_sparse_mixer_counts(jitter):
    model = build("phimoe")
    for gate in gates_of(model, "router_jitter_noise"):
        gate.router_jitter_noise = jitter
    is_same_program(model, copy.deepcopy(model))
    assert plan_of(model).stack.layers[0].mlp.route.jitter == jitter


def test_a_router_with_another_bound(monkeypatch):
    """Of the logits: small ones do not show it."""
    model = build("ernie4_5_moe")
    file = sys.modules[type(model).__module__]
    own = file.Ernie4_5_MoeTopKRouter.forward

    def forward(self, hidden_states):
        return own(self, torch.clamp(hidden_states, min=-1e4, max=1e4))

    monkeypatch.setattr(file.Ernie4_5_MoeTopKRouter, "forward", forward)
    assert "chooses" in refusal(model) or "clamp" in refusal(model)


def test_a_router_that_is_kept_in_float32():
    """As ERNIE's is in every checkpoint."""
    exact, model = build("ernie4_5_moe"), build("ernie4_5_moe", torch.bfloat16)
    for gate in gates_of(model, "norm_min"):
        gate.float()
    own = copy.deepcopy(model)
    report = lz.kernelize(model)
    assert "decoder" in report.replaced, report.left["decoder"]
    assert error(logits(model), logits(exact)) <= 1.25 * error(logits(own), logits(exact))
    assert not plan_of(model).why_aside


# ---- tables, vectors, masks


@pytest.mark.parametrize("name", ["gptj", "codegen"])
def test_tables_that_are_exchanged(name):
    model, own = build(name), build(name)
    is_same_program(model, own)
    before = logits(own)
    for each in (model, own):
        for module in (m for m in each.modules() if "embed_positions" in m._buffers):
            module.embed_positions = module.embed_positions.flip(0).contiguous()
    assert error(logits(own), before) > 10 * TOLERANCE
    assert error(logits(model), logits(own)) <= TOLERANCE


in_layers = pytest.mark.skipif(
    not transformers.__version__.startswith(("5.17.", "5.23.")),
    reason="from 5.24 on layers have no tables of their own",
)


@in_layers
@pytest.mark.parametrize("name", ["gptj", "codegen"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("within", [False, True])
def test_a_table_of_one_layer_that_is_exchanged(name, layer, within):
    model, own = build(name), build(name)
    is_same_program(model, own)
    before = logits(own)
    for each in (model, own):
        module = [m for m in each.modules() if "embed_positions" in m._buffers][layer]
        if within:
            module.embed_positions.mul_(0.5)
        else:
            module.embed_positions = module.embed_positions * 0.5
    assert error(logits(own), before) > 10 * TOLERANCE
    assert error(logits(model), logits(own)) <= TOLERANCE
    assert plan_of(model).why_aside == {"tables of positions differ between layers": 1}


@in_layers
def test_tables_that_differ_between_layers():
    model = build("gptj")
    model.transformer.h[1].attn.embed_positions.mul_(0.5)
    assert "its tables of positions are others" in refusal(model)


@pytest.mark.parametrize("name", ["gptj", "codegen"])
def test_positions_of_the_callers_own(name):
    model, own = build(name), build(name)
    lz.kernelize(model)
    for positions in (torch.arange(11)[None] + 3, torch.arange(22).reshape(2, 11)):
        assert error(*(logits(each, position_ids=positions) for each in (model, own))) <= TOLERANCE
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("equal", [False, True])
def test_vectors_of_a_layer(equal):
    """The graph shows which is the factor of what, also where both have the same numbers at first."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.InternVLVisionConfig(**sizes, image_size=[16, 16], patch_size=[8, 8])
    torch.manual_seed(1)
    model = transformers.InternVLVisionModel(config).eval()
    own, pixels = copy.deepcopy(model), torch.randn(2, 3, 16, 16)
    report = lz.kernelize(model) if equal else None
    with torch.no_grad():
        for layers in zip(model.encoder.layer, own.encoder.layer, strict=True):
            for name in ("lambda_1", "lambda_2"):
                vector = torch.randn(64)
                for layer in layers:
                    layer.get_parameter(name).copy_(vector)
    report = report or lz.kernelize(model)
    assert [kind in report.replaced for kind in ("encoder", "decoder")].count(True) == 1
    with torch.inference_mode():
        assert error(model(pixels)[0], own(pixels)[0]) <= TOLERANCE


def test_attention_that_its_mask_alone_makes_causal():
    """Without padding Transformers makes no mask for such a model, whose rows then see what comes later. PaliGemma always
    has one, and its text is a program: test_block_parts.py.
    """
    config = copy.deepcopy(build("gemma").config)
    config.use_bidirectional_attention = True
    assert refusal(transformers.GemmaForCausalLM(config).eval()) == "its attention is not causal without a mask"
