"""Models with experts in 16 bits: a router's near tie is no fault, and does not hide one."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import noise, observe  # noqa: E402

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
    """The answers of `is_within` so far."""
    found, own = [], noise.is_within
    monkeypatch.setattr(noise, "is_within", lambda *given: (found.append(own(*given)), found[-1])[1])
    return found


def test_near_ties_are_no_fault(looked):
    for seed in range(2):
        report = lz.kernelize(build("gpt_oss", seed))
        assert not report.left, report.left
        assert not any(part["calls"] for part in report.replaced.values())
    assert looked and all(looked)  # of at least one the plain comparison says no


FAULTS = {
    "one expert less": lambda layer: {"mlp": dataclasses.replace(layer.mlp, chosen=layer.mlp.chosen - 1)},
    "weights of another sum": lambda layer: {
        "mlp": dataclasses.replace(layer.mlp, route=layer.mlp.route._replace(scale=1.5))
    },
    "no rotation": lambda layer: (
        {"attention": dataclasses.replace(layer.attention, rope=None)} if getattr(layer.attention, "rope", None) else {}
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_none_of_them(fault, looked, monkeypatch):
    found = observe.ModelLayers.__init__

    def faulty(self, *given):
        found(self, *given)
        layers = [dataclasses.replace(layer, **FAULTS[fault](layer)) for layer in self.stack.layers]
        self.stack = dataclasses.replace(self.stack, layers=tuple(layers))

    monkeypatch.setattr(observe.ModelLayers, "__init__", faulty)
    for name in MODELS:
        report = lz.kernelize(build(name, 0))
        assert report.left["decoder"] == "its layers compute something else than the fused forward", name
        assert looked[-1] is False


def test_rows_that_are_moved_by_rounding():
    rows = torch.randn(16, 64).bfloat16()
    layers = [torch.nn.Identity() for _ in range(4)]

    def run():
        result = rows
        for layer in layers:
            result = layer(result)
        return result

    spread = noise.spread_of(run, layers)
    assert 1e-3 < float(spread[0]) <= float(spread[-1]) < 2e-2
    assert not any(layer._forward_pre_hooks for layer in layers)
    assert noise.is_within(rows, rows, spread) and not noise.is_within(rows * 1.1, rows, spread)
    assert not noise.is_within(rows, rows, None) and not noise.is_within(rows, rows, torch.ones(16))  # they hide faults
    assert not noise.is_within(rows * float("nan"), rows, spread) and not noise.is_within(None, rows, spread)


def test_layers_may_be_called_by_keyword(monkeypatch):
    given = []
    layer = torch.nn.Identity()
    layer.forward = lambda *, mask, rows: given.append(rows) or rows
    rows = torch.randn(4, 64).bfloat16()
    noise.spread_of(lambda: layer(mask=None, rows=rows), [layer])
    assert given[0] is rows and not any(torch.equal(rows, moved) for moved in given[1:])
    assert noise.spread_of(lambda: None, [layer]) is None
