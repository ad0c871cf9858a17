"""What a user may change in a model after kernelize, or has around it: the model's own result, whatever it was."""

import contextlib
import copy
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.models.families import FAMILIES, first_output  # noqa: E402
from small_llama import TOLERANCE, error, ids_of, logits_of, plan_of, tiny  # noqa: E402

BY_NAME = {family.name: family for family in FAMILIES}
# Through one fused forward, as layers between the model's own code, and part by part.
FUSED_AND_PARTS = ["llama", "mistral", "deepseek_v3"]


def assert_honoured(name, change, wanted=10 * TOLERANCE):
    """`change` of a kernelized model and of a plain one, both run before: the same logits, other than without it."""
    family = BY_NAME[name]
    model, reference, example = family.build(), family.build(), family.example()
    lz.kernelize(model)
    first_output(model, example)
    before = first_output(reference, example)
    results = []
    for each in (model, reference):
        undo = change(each)
        results.append(first_output(each, example))
        if undo:
            undo.remove()
    assert error(results[1], before) > wanted, "nothing was changed"
    assert error(results[0], results[1]) <= TOLERANCE


def layers_of(model):
    return model.model.layers


def attribute(path, name, value):
    """Sets an attribute of a part of every layer."""

    def change(model):
        for layer in layers_of(model):
            part = layer.get_submodule(path)
            assert hasattr(part, name)
            setattr(part, name, value)

    return change


@pytest.mark.parametrize("name", FUSED_AND_PARTS)
@pytest.mark.parametrize("path, attribute_name, value", [
    ("input_layernorm", "variance_epsilon", 1.0),
    ("self_attn", "scaling", 2.0),
])  # fmt: skip
def test_constants_of_a_module(name, path, attribute_name, value):
    assert_honoured(name, attribute(path, attribute_name, value))


def test_an_equal_constant_is_no_change():
    model = tiny()
    lz.kernelize(model)
    expected = logits_of(model)
    for layer in layers_of(model):
        layer.self_attn.scaling = float(str(layer.self_attn.scaling))
    assert torch.equal(logits_of(model), expected) and not plan_of(model).why_aside
    model.model.layers[0].self_attn.q_norm = torch.zeros(3)
    model.model.layers[0].self_attn.config = copy.deepcopy(model.config)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert plan_of(model).why_aside == {"an attribute of a module was changed after kernelize": 1}


@pytest.mark.parametrize("when", ["before", "after"])
def test_attention_that_is_made_bidirectional(when):
    """As embedding models are made of decoders."""
    change = attribute("self_attn", "is_causal", False)
    if when == "after":
        assert_honoured("llama", change)
        return
    model = BY_NAME["llama"].build()
    change(model)
    expected = first_output(model, BY_NAME["llama"].example())
    report = lz.kernelize(model)
    assert error(first_output(model, BY_NAME["llama"].example()), expected) <= TOLERANCE
    assert report.left["decoder"] == "its attention is not causal without a mask"


@pytest.mark.parametrize("name", FUSED_AND_PARTS)
def test_a_configuration_that_asks_for_bidirectional_attention(name):
    assert_honoured(name, lambda model: setattr(model.config, "is_causal", False))


def test_an_embedding_that_is_limited():
    assert_honoured("llama", lambda model: setattr(model.model.embed_tokens, "max_norm", 0.01))


@pytest.mark.parametrize("name", FUSED_AND_PARTS)
@pytest.mark.parametrize("kind", ["RMSNorm", "SiLU"])
def test_hooks_of_all_modules(name, kind):
    def change(model):
        def scale(module, arguments, result):
            return result * 1.5 if kind in type(module).__name__ else None

        return torch.nn.modules.module.register_module_forward_hook(scale)

    assert_honoured(name, change)


class Patched:
    """Another function in a class or a file, for all models."""

    def __init__(self, owner, name, changed):
        self.owner, self.name, self.own = owner, name, getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: changed(self.own(*args, **kwargs)))

    def remove(self):
        setattr(self.owner, self.name, self.own)


def modeling_of(model):
    return sys.modules[type(model).__module__]


def scaled(result):
    return tuple([result[0] * 1.5, *result[1:]]) if isinstance(result, tuple) else result * 1.5


@pytest.mark.parametrize("name", FUSED_AND_PARTS)
@pytest.mark.parametrize("kind", ["RMSNorm", "MLP", "Attention", "DecoderLayer"])
def test_a_class_that_is_patched(name, kind):
    """As kernel packages do that replace the methods of a file."""

    def change(model):
        modeling = modeling_of(model)
        own = next(known for known in vars(modeling) if known.lower() == name.replace("_", "") + kind.lower())
        return Patched(getattr(modeling, own), "forward", scaled)

    assert_honoured(name, change)


@pytest.mark.parametrize("name", FUSED_AND_PARTS)
def test_a_rotation_that_is_patched(name):
    function = "apply_rotary_pos_emb_interleave" if name == "deepseek_v3" else "apply_rotary_pos_emb"
    assert_honoured(name, lambda model: Patched(modeling_of(model), function, scaled))


@pytest.mark.parametrize("name", FUSED_AND_PARTS[:2])  # that of the third calls no other function
def test_a_function_of_the_rotation_that_is_patched(name):
    assert_honoured(name, lambda model: Patched(modeling_of(model), "rotate_half", scaled))


@pytest.mark.parametrize("name", FUSED_AND_PARTS)
def test_an_object_of_another_class(name):
    def change(model):
        for layer in layers_of(model):
            own = type(layer.mlp)
            layer.mlp.__class__ = type("Other", (own,), {"forward": lambda self, x, own=own: own.forward(self, x) * 2})

    assert_honoured(name, change)


@pytest.mark.parametrize("kind", ["hook", "forward", "dtype"])
def test_experts(kind):
    def change(model):
        for layer in layers_of(model):
            experts = layer.mlp.experts
            if kind == "hook":
                experts.act_fn.register_forward_hook(lambda module, arguments, result: result * 2)
            elif kind == "forward":
                own = type(experts.act_fn).forward
                experts.act_fn.forward = lambda x, own=own, part=experts.act_fn: own(part, x) * 2
            else:
                experts.down_proj = torch.nn.Parameter(experts.down_proj.detach().bfloat16())

    assert_honoured("mixtral", change)


def test_experts_train_by_what_the_model_had():
    """Not by the loop over experts of their class."""
    model, reference = BY_NAME["mixtral"].build(), BY_NAME["mixtral"].build()
    lz.kernelize(model)
    ids = BY_NAME["mixtral"].example()["input_ids"]
    with torch.enable_grad():
        results = [each(input_ids=ids).logits for each in (model, reference)]
    for logits in results:
        logits.square().mean().backward()
    gradients = [each.model.layers[0].mlp.experts.down_proj.grad for each in (model, reference)]
    assert torch.equal(*gradients)


def test_dropout_of_an_attention_in_training_mode():
    model, reference = BY_NAME["llama"].build(), BY_NAME["llama"].build()
    lz.kernelize(model)
    results = []
    for each in (model, reference):
        for layer in layers_of(each):
            layer.self_attn.attention_dropout = 0.9
            layer.self_attn.train()
        torch.manual_seed(0)
        results.append(first_output(each, BY_NAME["llama"].example()))
    assert error(*results) <= TOLERANCE


def test_a_sparse_weight():
    results = []
    for kernelized in (False, True):
        layer = torch.nn.Sequential(torch.nn.Linear(8, 4))
        torch.manual_seed(0)
        torch.nn.init.normal_(layer[0].weight)
        torch.nn.init.normal_(layer[0].bias)
        if kernelized:
            lz.kernelize(layer)
        with torch.no_grad():
            layer[0].weight = torch.nn.Parameter(layer[0].weight.to_sparse_csr(), requires_grad=False)
            results.append(layer(torch.linspace(-1, 1, 16).reshape(2, 8)))
    assert error(results[1], results[0]) <= TOLERANCE
    assert lz.unkernelize(layer) and "torch.sparse_csr" in lz.kernelize(layer).left["0"]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "vit", "t5", "mixtral", "gpt_oss", "phi3"])
def test_shapes_alone(name):
    """A model that was moved to the meta device."""
    family = BY_NAME[name]
    model = family.build(torch.bfloat16)  # on meta torch multiplies experts of no other dtype
    lz.kernelize(model)
    model.to("meta")
    shape = first_output(family.build(), family.example()).shape
    example = {key: value.to("meta") for key, value in family.example(torch.bfloat16).items()}
    assert first_output(model, example).shape == shape


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "bert", "gpt2", "gpt_oss"])
@pytest.mark.parametrize("padding", [None, "left"])
def test_attention_weights_of_eager_attention(name, padding):
    family = BY_NAME[name]
    model, example = family.build(), family.example(padding=padding)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = model(**example, output_attentions=True)
        lz.kernelize(model)
        actual = model(**example, output_attentions=True)
        again = model(**example)
    assert len(actual.attentions) == len(expected.attentions) == 2
    rows = example.get("attention_mask", torch.ones(2, 12)).bool()
    for mine, own in zip(actual.attentions, expected.attentions, strict=True):
        assert error(mine.transpose(1, 2)[rows], own.transpose(1, 2)[rows]) <= TOLERANCE
    assert error(actual[0][rows], expected[0][rows]) <= TOLERANCE
    assert error(again[0][rows], expected[0][rows]) <= TOLERANCE


def test_a_replica_has_its_own_weights():
    """As torch.nn.DataParallel makes them."""
    model = BY_NAME["mistral"].build()
    lz.kernelize(model)
    norm = model.model.norm
    replica = norm._replicate_for_data_parallel()
    replica._parameters = {"weight": norm.weight.detach() * 2}
    rows = torch.randn(2, 64)
    with torch.inference_mode():
        assert error(replica(rows), norm(rows) * 2) <= TOLERANCE
    lz.unkernelize(model)
    assert "_replicate_for_data_parallel" not in norm.__dict__


def test_rows_by_the_name_of_their_argument():
    model = BY_NAME["gpt_neox"].build()
    norm, linear = model.gpt_neox.final_layer_norm, model.gpt_neox.layers[0].mlp.dense_h_to_4h
    rows = torch.randn(2, 64)
    with torch.inference_mode():
        expected = [part(input=rows) for part in (norm, linear)]
        lz.kernelize(model)
        for part, own in zip((norm, linear), expected, strict=True):
            assert error(part(input=rows), own) <= TOLERANCE


# ---- what is around a call of kernelize


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", FUSED_AND_PARTS)
@pytest.mark.parametrize("around", ["device", "dtype", "autocast"])
def test_surroundings_of_kernelize(name, around):
    family = BY_NAME[name]
    usual = lz.kernelize(family.build())
    model, expected = family.build(), first_output(family.build(), family.example())
    surroundings = {
        "device": lambda: torch.device("meta"),
        "dtype": lambda: default_dtype(torch.float64),
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }
    state = torch.get_rng_state()
    with surroundings[around]():
        report = lz.kernelize(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(report.replaced) == set(usual.replaced) and report.left == usual.left
    assert error(first_output(model, family.example()), expected) <= TOLERANCE


# ---- threads


def together(count, work):
    """Runs `work` in so many threads at once; what they gave."""
    barrier, results = threading.Barrier(count), []

    def run():
        barrier.wait()
        try:
            results.append(work())
        except Exception as problem:
            results.append(problem)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_that_kernelize_one_model():
    for _ in range(3):
        model = tiny()
        reports = together(4, lambda model=model: lz.kernelize(model))
        assert all(report is reports[0] for report in reports), reports
        assert error(logits_of(model), logits_of(tiny())) <= TOLERANCE
        assert sorted(together(4, lambda model=model: lz.unkernelize(model))) == [False, False, False, True]


def test_threads_that_call_a_copy_first():
    """What the fused forward knows of a model is made at the first call of a copy."""
    expected, ids = logits_of(tiny()), ids_of()
    original = tiny()
    lz.kernelize(original)
    for _ in range(5):
        model = copy.deepcopy(original)
        for logits in together(6, lambda model=model: logits_of(model, ids)):
            assert error(logits, expected) <= TOLERANCE
