"""What the graph of the code around experts tells of how they are chosen, and what a program of it does after changes."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import TOLERANCE, build, error, ids_of, plan_of  # noqa: E402
from layerzero.integrations.transformers.layers import Unknown  # noqa: E402
from layerzero.integrations.transformers.recognise.patterns.experts import experts_part  # noqa: E402
from layerzero.integrations.transformers.recognise.patterns.linear import Linears  # noqa: E402
from layerzero.integrations.transformers.recognise.trace import Recorder  # noqa: E402
from layerzero.integrations.transformers.run import experts as experts_interface  # noqa: E402
from torch import nn  # noqa: E402

EXPERTS = 12
RULES = [(scoring, renormalize) for scoring in ("softmax", "sigmoid", "sqrt_softplus") for renormalize in (False, True)]
SCORES = {
    "softmax": lambda logits: torch.softmax(logits.float(), -1),
    "sigmoid": lambda logits: torch.sigmoid(logits.float()),
    "sqrt_softplus": lambda logits: nn.functional.softplus(logits.float()).sqrt(),
}


class Router(nn.Module):
    """As models write it; `further` is added to the sum of the weights, `grouped` (groups, top, what a group counts)."""

    def __init__(self, width, rule=("softmax", True), chosen=2, factor=1.0, further=0.0, grouped=None, wide=False):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(EXPERTS, width))  # as of a new model: nothing is told by it
        self.rule, self.chosen, self.factor, self.further, self.wide = rule, chosen, factor, further, wide
        self.groups, self.top, self.best = grouped or (1, 1, 1)

    def forward(self, rows, correction=None):
        kind = torch.float32 if self.wide else self.weight.dtype
        logits = nn.functional.linear(rows.to(kind), self.weight.to(kind))
        scores = SCORES[self.rule[0]](logits)
        choice = scores if correction is None else scores + correction
        grouped = choice.unflatten(-1, (self.groups, -1))
        stay = grouped.topk(self.best, -1)[0].sum(-1).topk(self.top, -1)[1]
        left_out = torch.ones(len(rows), self.groups).scatter_(1, stay, 0).bool()
        ids = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(-2).topk(self.chosen, -1)[1]
        weights = scores.gather(1, ids)
        if self.rule[1]:
            weights = weights / (weights.sum(-1, keepdim=True) + self.further)
        return (weights * self.factor).to(logits.dtype), ids


class Moe(nn.Module):
    def __init__(self, correction=False, **router):
        super().__init__()
        model = build("mixtral")
        found = next(module for module in model.modules() if experts_interface.looks_like_experts(module))
        with torch.no_grad():
            for name in ("gate_up_proj", "down_proj"):
                held = getattr(found, name)
                setattr(found, name, nn.Parameter(torch.randn(EXPERTS, *held.shape[1:]) * 0.1))
        found.num_experts = EXPERTS
        self.experts = found
        self.gate = Router(found.gate_up_proj.shape[-1], **router)
        self.register_buffer("correction", torch.zeros(EXPERTS) if correction else None)

    def forward(self, rows):
        flat = rows.flatten(0, 1)
        weights, ids = self.gate(flat, self.correction)
        return self.experts(flat, ids, weights).view_as(rows)


class Layer(nn.Module):
    def __init__(self, **moe):
        super().__init__()
        self.moe = Moe(**moe)

    def forward(self, rows):
        return self.moe(rows)


def found_in(layer):
    width = layer.moe.gate.weight.shape[1]
    rows = torch.randn(2, 6, width, generator=torch.Generator().manual_seed(0)).to(layer.moe.gate.weight.dtype)
    with torch.inference_mode(), Recorder([layer]) as recorder:
        layer(rows)
    (graph,) = recorder.graphs
    (node,) = [node for node in graph.nodes if node.op == "experts"]
    linears = Linears(graph)
    return experts_part(graph, linears, node).part, linears.used[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_told_from_the_others(rule, wide, dtype):
    experts, router = found_in(Layer(rule=rule, wide=wide).to(dtype))
    assert (experts.route.scoring, experts.route.renormalize) == rule
    assert experts.route.wide == wide or dtype == torch.float32  # where both are the same
    assert (experts.name, experts.router, experts.chosen) == ("moe.experts", router, 2)
    assert experts.route.correction is None and experts.route.scale == experts.route.num_groups == 1


@pytest.mark.parametrize("grouped", [(4, 1, 1), (4, 2, 2), (3, 1, 2), (2, 1, 1)])
@pytest.mark.parametrize("rule", RULES)
def test_corrections_groups_and_a_factor(rule, grouped):
    experts, _ = found_in(Layer(correction=True, rule=rule, grouped=grouped, factor=2.5))
    route = experts.route
    assert (route.scoring, route.renormalize, route.scale) == (*rule, 2.5)
    assert (route.num_groups, route.top_groups, route.group_score) == (
        *grouped[:2],
        ("max", "top2_sum")[grouped[2] - 1],
    )
    assert route.correction == ("moe", "correction")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chosen", [1, EXPERTS])
def test_all_or_one_of_the_experts(rule, chosen):
    """A single one that is normalised weighs 1 by any scoring; the softmax of all sums to 1 by itself."""
    route = found_in(Layer(rule=rule, chosen=chosen))[0].route
    sums_to_one = rule[1] or (rule[0] == "softmax" and chosen > 1)
    assert sums_to_one == (route.renormalize or (route.scoring == "softmax" and chosen > 1))
    assert route.scoring == rule[0] or (chosen == 1 and sums_to_one)


def test_the_model_stays_as_it_is():
    layer = Layer(correction=True)
    before = copy.deepcopy(layer.state_dict())
    found_in(layer)
    assert all(torch.equal(before[name], held) for name, held in layer.state_dict().items())


@pytest.mark.parametrize(
    "change", [{"further": 1e-6, "rule": ("sigmoid", True)}, {"factor": torch.tensor(2.5)}, {"grouped": (4, 2, 3)}]
)
def test_what_no_rule_explains(change):
    """Scores that are added to, a factor that no attribute is, and groups by three of their scores."""
    with pytest.raises(Unknown, match="in a way that was not recognised"):
        found_in(Layer(**change))


def test_routers_with_hooks():
    layer = Layer()
    layer.moe.gate.register_forward_hook(print)
    with pytest.raises(Unknown, match="has forward or backward hooks"):
        found_in(layer)


@pytest.mark.parametrize("part", ["mlp", "mlp.gate"])
@pytest.mark.parametrize("register", ["register_buffer", "register_parameter"])
def test_a_tensor_that_nothing_reads(part, register):
    """What is held around experts and has no part in their choice may get one later."""
    model = build("mixtral")
    held = torch.zeros(5) if register == "register_buffer" else nn.Parameter(torch.zeros(5))
    getattr(model.model.layers[1].get_submodule(part), register)("expert_bias", held)
    assert "expert_bias" in lz.kernelize(model).left["decoder"]


# ---- what is done to the model later


def alike(model, own):
    with torch.inference_mode():
        actual, expected = (each(input_ids=ids_of()).logits for each in (model, own))
    assert error(actual, expected) <= TOLERANCE
    return expected


def test_another_implementation_of_experts():
    model, own = build("mixtral"), build("mixtral")
    lz.kernelize(model)
    for each in (model, own):
        each.set_experts_implementation("eager")
    alike(model, own)
    assert plan_of(model).why_aside == {"another implementation of experts was chosen": 1}


@pytest.mark.parametrize("where", ["the module", "its class"])
def test_a_gate_that_is_replaced(where, monkeypatch):
    model, own = build("mixtral"), build("mixtral")
    lz.kernelize(model)
    before = alike(model, own)
    for each in (model, own):
        for module in each.modules():
            if experts_interface.looks_like_experts(module):
                if where == "the module":
                    module._apply_gate = lambda rows: rows.chunk(2, -1)[0]
                else:
                    monkeypatch.setattr(type(module), "_apply_gate", lambda self, rows: rows.chunk(2, -1)[0])
    with torch.inference_mode():
        actual, expected = (each(input_ids=ids_of()).logits for each in (model, own))
    assert error(expected, before) > 10 * TOLERANCE and plan_of(model).why_aside
    assert error(actual, expected) <= TOLERANCE


def test_an_option_that_is_set_later():
    """OLMoE bounds its queries, keys and values where the configuration asks for it."""
    model, own = build("olmoe, every expert"), build("olmoe, every expert")
    lz.kernelize(model)
    before = alike(model, own)
    assert not plan_of(model).why_aside
    for each in (model, own):
        each.config.clip_qkv = 0.1
    assert error(alike(model, own), before) > 10 * TOLERANCE
    assert plan_of(model).why_aside == {"an attribute of a module was changed after kernelize": 1}


def test_an_option_that_is_set_from_the_start():
    model = build("olmoe, every expert")
    model.config.clip_qkv = 0.1
    own = copy.deepcopy(model)
    assert lz.kernelize(model).replaced["decoder"]
    alike(model, own)
    assert not plan_of(model).why_aside


def test_logits_of_the_router_that_are_asked_for():
    model, own = build("qwen2_moe"), build("qwen2_moe")
    lz.kernelize(model)
    with torch.inference_mode():
        actual, expected = (each(input_ids=ids_of(), output_router_logits=True).router_logits for each in (model, own))
    assert len(actual) == len(expected) == 3
    assert all(error(mine, theirs) <= TOLERANCE for mine, theirs in zip(actual, expected, strict=True))


CORRECTED = ["glm4_moe", "minimax_m2"]


@pytest.mark.parametrize("name", CORRECTED)
def test_a_correction_that_changes(name):
    """Written, replaced by another buffer, or its memory by other memory: the choice follows, by a program."""
    model, own = build(name), build(name)
    lz.kernelize(model)
    before = alike(model, own)

    def corrections():
        for each in (model, own):
            for module in each.modules():
                held = module._buffers.get("e_score_correction_bias")
                if held is not None:
                    yield module, held

    numbers = torch.linspace(1, -1, 8)
    changes = [
        lambda module, held: held.copy_(numbers[: len(held)]),
        lambda module, held: setattr(module, "e_score_correction_bias", held.flip(0)),
        lambda module, held: held.set_(held * numbers[: len(held)].flip(0)),
    ]
    for change in changes:
        for module, held in list(corrections()):
            change(module, held)
        after = alike(model, own)
        assert error(after, before) > 10 * TOLERANCE
        before = after
    assert not plan_of(model).why_aside
    for module, _ in list(corrections()):
        module.routed_scaling_factor = module.top_k = 1
    alike(model, own)
    assert plan_of(model).why_aside == {"an attribute of a module was changed after kernelize": 1}
