"""The graph of a layer and the patterns in it: the language, moved columns, refusals at a node, and families as they were described before."""

import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from layerzero.integrations.transformers.layers import Heads, Unknown  # noqa: E402
from layerzero.integrations.transformers.recognise.layout import heads_in, places, source_of  # noqa: E402
from layerzero.integrations.transformers.recognise.match import (  # noqa: E402
    any_node,
    call,
    factor_of,
    match,
    number,
    parameter,
    terms_of,
)
from layerzero.integrations.transformers.recognise.patterns.linear import name_of  # noqa: E402
from layerzero.integrations.transformers.recognise.patterns.mlp import activation_of  # noqa: E402
from layerzero.integrations.transformers.recognise.patterns.norm import norm_of  # noqa: E402
from layerzero.integrations.transformers.recognise.patterns.scores import add_attends  # noqa: E402
from layerzero.integrations.transformers.recognise.trace import Recorder, again, unclear  # noqa: E402
from torch import nn  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import recognise_families  # noqa: E402

ROWS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Layer(nn.Module):
    """A layer that computes what it is given."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.weight = nn.Parameter(torch.randn(8))
        self.linear = nn.Linear(8, 24)

    def forward(self, rows):
        return self.compute(self, rows)


def graph_of(compute):
    layer = Layer(compute).eval()
    with torch.inference_mode(), Recorder([layer]) as recorder:
        layer(ROWS.clone())
    return recorder.graphs[0]


def test_what_does_not_lead_to_the_result_is_not_the_layers():
    def compute(layer, rows):
        nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 1, 8)] * 3)  # a library that is tried meanwhile
        return rows * layer.weight

    graph = graph_of(compute)
    add_attends(graph)
    assert "attend" not in [node.op for node in graph.nodes]


RMS = any_node("x") * call("rsqrt", call("mean", any_node("x") ** 2) + number("eps")) * parameter("weight")
SPELLINGS = {
    "operators": lambda s, x: s.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "methods": lambda s, x: x.mul(torch.add(x.square().mean(dim=-1, keepdim=True), 1e-6).rsqrt()).mul(s.weight),
    "a product with itself": lambda s, x: (x * s.weight) * (1e-6 + (x * x).mean([-1], keepdim=True)).rsqrt_(),
    "casts and copies": lambda s, x: s.weight * (x.double() * torch.rsqrt(x.double().pow(2).mean(-1, True) + 1e-6)).to(x.dtype).clone(),
    "in place": lambda s, x: (x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-6)).mul_(s.weight),
}  # fmt: skip
OTHERS = {
    "a sum in place of a mean": lambda s, x: s.weight * (x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)),
    "another axis": lambda s, x: s.weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)),
    "another power": lambda s, x: s.weight * (x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6)),
    "another source": lambda s, x: s.weight * (x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6)),
    "a factor more": lambda s, x: s.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) * 2,
    "a bound": lambda s, x: s.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).clamp(-1e4, 1e4),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_one_formula_for_all_spellings(name):
    graph = graph_of(SPELLINGS[name])
    found = match(RMS, graph.result)
    assert found is not None and found["x"] is graph.rows
    assert (found["weight"].name, found["eps"]) == ("weight", 1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_another_formula_is_none(name):
    graph = graph_of(OTHERS[name])
    assert match(RMS, graph.result) is None and norm_of(graph.result, graph) is None


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_activations_by_function_and_by_formula(form):
    kind = {"none": "gelu", "tanh": "gelu_tanh"}[form]
    graph = graph_of(lambda s, x: nn.functional.gelu(s.linear(x), approximate=form))
    written = graph_of(lambda s, x: 0.5 * s.linear(x) * (1 + torch.tanh(0.79788456 * (x.repeat(1, 1, 3) + 1))))
    assert activation_of(graph.result)[0] == kind and activation_of(written.result) is None
    made = graph_of(lambda s, x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))))
    assert activation_of(made.result)[0] == "gelu_tanh"


def moved(split):
    """The Heads of what `split` makes of the columns of a linear layer, (batch, heads, positions, size)."""
    graph = graph_of(lambda s, x: split(s.linear(x)))
    root = source_of(graph.result)
    assert name_of(root) == "linear"
    found = places(graph.result, root, {})
    return heads_in(None if found is None else found.transpose(1, 2), root, "linear")


def test_columns_of_heads_by_any_views():
    assert moved(lambda rows: rows.view(2, 5, 6, 4).transpose(1, 2)) == Heads("linear", 0, 6, 4, 4)
    assert moved(lambda rows: rows.chunk(3, -1)[1].unflatten(-1, (2, 4)).transpose(1, 2)) == Heads("linear", 8, 2, 4, 4)
    interleaved = moved(lambda rows: rows.reshape(2, 5, 2, 3, 4)[..., 1, :].permute(0, 2, 1, 3))
    assert interleaved == Heads("linear", 4, 2, 4, 12)
    shared = moved(lambda rows: rows[..., :8].view(2, 5, 2, 4).repeat_interleave(2, dim=2).transpose(1, 2))
    assert shared.starts == [0, 0, 4, 4]


def test_columns_in_another_order_are_no_heads():
    assert moved(lambda rows: rows.view(2, 5, 4, 6).transpose(2, 3).transpose(1, 2)) is None
    assert moved(lambda rows: rows.view(2, 5, 6, 4).transpose(1, 2)[:, [1, 0, 2, 3, 4, 5]]) is None
    assert moved(lambda rows: rows.view(2, 5, 6, 4).transpose(1, 2)[:, [5, 4, 3, 2, 1, 0]]) is None
    assert moved(lambda rows: rows.view(5, 2, 6, 4).transpose(0, 1).transpose(1, 2)) is None


def test_a_write_into_shared_memory_makes_other_views_unknown():
    def compute(s, x):
        rows = s.linear(x)
        part = rows[..., :8]
        part.mul_(2)
        return rows + 1

    graph = graph_of(compute)
    assert graph.result.inputs[0].op == "written"


def test_columns_that_are_written_one_after_the_other_are_one_cat():
    def compute(s, x):
        whole = x.new_empty(2, 5, 12)
        whole[..., 4:] = x
        whole[..., :4].copy_(s.linear(x)[..., :4])
        return whole

    graph = graph_of(compute)
    assert graph.result.op == "cat" and [node.value.shape[-1] for node in graph.result.args[0]] == [4, 8]


@pytest.mark.parametrize(
    "ask", [lambda x: bool(x.max() > 1e4), lambda x: x.sum().item() > 1e4, lambda x: torch.isinf(x).any()]
)
def test_code_that_asks_for_numbers(ask):
    assert "asks" not in str(graph_of(lambda s, x: x + 1).refused)
    assert "its code calls" in graph_of(lambda s, x: x / 2 if ask(x) else x + 1).refused


def test_terms_and_factors():
    graph = graph_of(lambda s, x: x + (s.linear(x)[..., :8] * 0.5 + (x.tanh() + x.sigmoid())))
    assert [node.op for node in terms_of(graph.result)] == ["input", "mul", "tanh", "sigmoid"]
    factor, node = factor_of(terms_of(graph.result)[1])
    assert factor == 0.5 and source_of(node).op == "linear"


def test_a_node_with_other_numbers():
    graph = graph_of(lambda s, x: (2 - torch.cat([-x[..., 4:], x[..., :4]], -1)).mul_(3))
    other = torch.randn(2, 5, 8)
    expected = (2 - torch.cat([-other[..., 4:], other[..., :4]], -1)) * 3
    before = graph.result.value.clone()
    torch.testing.assert_close(again(graph.result, {id(graph.rows): other}), expected)
    assert torch.equal(graph.result.value, before)


def test_a_refusal_names_the_node():
    graph = graph_of(lambda s, x: x + s.linear(x)[..., :8])
    assert str(unclear(source_of(graph.result.inputs[1]), "why")) == "linear: linear: why"
    assert isinstance(unclear(graph.result, ""), Unknown)


# One of each kind: whole decoders, experts, windows, latents, two stacks, ALiBi, and an encoder of images.
FAMILIES = ["llama", "qwen3_moe", "gemma2", "gpt_neox", "falcon_new", "bloom", "deepseek_v3", "t5", "bert", "vit"]


def test_families_are_described_as_before():
    before = json.loads((ROOT / "tests/python/support/recognised.json").read_text())
    found = recognise_families.differences(recognise_families.collected(FAMILIES), before)
    assert {name: each for name, each in found.items() if each != "agree"} == {}
    planted = before | {"llama": {"decoder": before["qwen2"]["decoder"][:1]}}
    assert recognise_families.differences({"llama": before["llama"]}, planted)["llama decoder"] != "agree"
