"""Models with experts in 16 bits: a router's near tie is no fault, and hides none."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import structure  # noqa: E402
from layerzero.integrations.transformers.caches import rows_cache, states_cache  # noqa: E402
from layerzero.integrations.transformers.recognise import layerwise, observe  # noqa: E402
from layerzero.integrations.transformers.recognise.findings import Findings  # noqa: E402
from layerzero.integrations.transformers.run import attention as attention_interface  # noqa: E402
from layerzero.integrations.transformers.run import deferred  # noqa: E402

_SIZES = {
    "vocab_size": 131,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 4,
    "initializer_range": 0.1,
    "pad_token_id": 0,
}
MODELS = {
    "gpt_oss": ("GptOss", {"num_local_experts": 32, "head_dim": 32, "sliding_window": 64}),
    "qwen3_next": (
        "Qwen3Next",
        {
            "num_experts": 32,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"] * 3,
        },
    ),
}


def build(name, seed):
    kind, arguments = MODELS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**_SIZES | arguments)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval().bfloat16()


@pytest.fixture
def looked(monkeypatch):
    """Whether layers agreed, one by one, so far."""
    found, own = [], layerwise._agree
    monkeypatch.setattr(layerwise, "_agree", lambda *given: (found.append(own(*given)), found[-1])[1])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_near_ties_are_no_fault(name, looked):
    for seed in range(2):
        model = build(name, seed)
        report = lz.kernelize(model)
        assert not report.left, report.left
        assert not any(part["calls"] for part in report.replaced.values())
        assert not any(layer._forward_pre_hooks for layer in model.model.layers)
        assert all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    assert looked and all(looked)  # of at least one the plain comparison says no


def attention(layer, **further):
    return {"attention": dataclasses.replace(layer.attention, **further)}


FAULTS = {
    "one expert less": lambda layer: {"mlp": dataclasses.replace(layer.mlp, chosen=layer.mlp.chosen - 1)},
    "weights of another sum": lambda layer: {
        "mlp": dataclasses.replace(layer.mlp, route=layer.mlp.route._replace(scale=1.02))
    },
    "no rotation": lambda layer: attention(layer, rope=None) if layer.attention.rope else {},
    "another scale": lambda layer: (
        attention(layer, scale=1.05 * layer.attention.scale) if hasattr(layer.attention, "scale") else {}
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_fault_of_one_layer_is_seen(name, fault, looked, monkeypatch):
    """Far within the noise of the model's result, most of them."""
    found = observe.ModelLayers.search

    def faulty(self, name):
        found(self, name)
        layers = list(self.stack.layers)
        layers[3] = dataclasses.replace(layers[3], **FAULTS[fault](layers[3]))
        assert layers[3] != self.stack.layers[3]
        self.stack = dataclasses.replace(self.stack, layers=tuple(layers))

    monkeypatch.setattr(observe.ModelLayers, "search", faulty)
    agrees = structure.agrees  # of the model's whole result, which has slack, the answer is no

    def other(actual, expected, slack=1.0):
        return slack <= 1 and agrees(actual, expected, slack)

    monkeypatch.setattr(structure, "agrees", other)
    report = lz.kernelize(build(name, 0))
    assert report.left["decoder"] == "its layers compute something else than the fused forward"
    assert looked[-1] is False


def another_place(own):
    """Of a token alone: the tables of the place behind its own."""

    def group(call, *given):
        mask, cos, sin = own(call, *given)
        if call.past and cos is not None:
            cos, sin = cos.roll(1, -1), sin.roll(1, -1)
        return mask, cos, sin

    return group


def other_keys(own):
    """Of a token alone: keys that were moved by one place."""

    def adopt(cache, like, sizes, past, length):
        rows = own(cache, like, sizes, past, length)
        for keys in rows[::2] if past else ():
            keys[:, :past] = keys[:, :past].roll(1, 1)
        return rows

    return adopt


def other_states(own):
    """Of a token alone: a state that was transposed."""

    def of_cache(cache, like, states):
        held = own(cache, like, states)
        if cache.get_seq_length():
            for state in held[1::2]:
                state.copy_(state.transpose(-1, -2).clone())
        return held

    return of_cache


STEPS = {
    "another place": (deferred._Call, "_group", another_place),
    "other keys": (rows_cache, "adopt", other_keys),
    "other states": (states_cache, "of_cache", other_states),
}


@pytest.mark.parametrize(
    "name,fault", [(name, fault) for name in MODELS for fault in STEPS if "states" not in fault or name == "qwen3_next"]
)
def test_a_fault_in_the_step_that_reads_a_cache_is_seen(name, fault, looked, monkeypatch):
    agrees = structure.agrees
    monkeypatch.setattr(
        structure, "agrees", lambda actual, expected, slack=1.0: slack <= 1 and agrees(actual, expected, slack)
    )
    place, attribute, make = STEPS[fault]
    assert not lz.kernelize(build(name, 0)).left and looked and all(looked)
    monkeypatch.setattr(place, attribute, make(getattr(place, attribute)))
    report = lz.kernelize(build(name, 0))
    assert report.left["decoder"] == "its layers compute something else than the fused forward"
    assert looked[-1] is False


def test_another_attention_is_seen(monkeypatch):
    """Of a model that says it does not support sdpa."""
    own = attention_interface.layerzero_attention

    def other(module, query, *given, scaling, **further):
        return own(module, query, *given, scaling=1.05 * scaling, **further)

    monkeypatch.setattr(attention_interface, "layerzero_attention", other)
    report = lz.kernelize(build("gpt_oss", 0))
    assert "another result" in report.left["attention"] and "another result" in report.left["decoder"]


def test_what_no_layer_was_called_with_is_no_proof():
    model = build("gpt_oss", 0)
    stack = observe.layers_of(model, Findings())["decoder"].stack
    assert not layerwise.agree(stack, model.model.layers, lambda: None)
