"""What a recorded call of experts tells of the router that chose them, and what a program of it does after changes."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import TOLERANCE, build, error, ids_of, plan_of  # noqa: E402
from layerzero.integrations.transformers import experts as experts_interface  # noqa: E402
from layerzero.integrations.transformers.layers import Unknown  # noqa: E402
from layerzero.integrations.transformers.recorded import Call  # noqa: E402
from layerzero.integrations.transformers.routers import Dispatched, experts_of  # noqa: E402
from torch import nn  # noqa: E402

EXPERTS, CHOSEN = 6, 2
RULES = [(scoring, renormalize) for scoring in ("softmax", "sigmoid", "sqrt_softplus") for renormalize in (False, True)]
SCORES = {
    "softmax": lambda logits: torch.softmax(logits.float(), -1),
    "sigmoid": lambda logits: torch.sigmoid(logits.float()),
    "sqrt_softplus": lambda logits: nn.functional.softplus(logits.float()).sqrt(),
}


class Router(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)


def experts_module():
    model = build("mixtral")
    return next(module for module in model.modules() if experts_interface.looks_like_experts(module))


def recorded(
    scoring="softmax", renormalize=True, chosen=CHOSEN, dtype=torch.float32, weight=None, factor=1.0, size=0.3
):
    """(Dispatched, the call of its router) as a model's own code would make them."""
    module = experts_module().to(dtype)
    width, number = module.gate_up_proj.shape[-1], module.down_proj.shape[0]
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(12, width, generator=generator).to(dtype)
    if weight is None:
        weight = torch.randn(number, width, generator=generator) * size
    router = Router(weight.to(dtype))
    with torch.inference_mode():
        logits = nn.functional.linear(rows, router.weight)
        weights, ids = SCORES[scoring](logits).topk(chosen)
        weights = (factor * (weights / weights.sum(-1, keepdim=True) if renormalize else weights)).to(dtype)
    call = Call("gate", router, rows, logits, (rows, logits))
    return Dispatched("experts", module, rows, ids, weights, rows), call


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_told_from_the_others(rule, dtype):
    dispatched, call = recorded(*rule, dtype=dtype)
    experts, router = experts_of(dispatched, [call])
    assert (experts.scoring, experts.renormalize) == rule and router is call
    assert (experts.name, experts.router, experts.chosen, experts.gate.activation) == (
        "experts",
        "gate",
        CHOSEN,
        "silu",
    )


@pytest.mark.parametrize("rule", RULES)
def test_all_or_one_of_the_experts(rule):
    """A single one that is normalised weighs 1 by any scoring; the softmax of all sums to 1 by itself."""
    for chosen in (1, 5):
        experts, _ = experts_of(recorded(*rule, chosen=chosen)[0], [recorded(*rule, chosen=chosen)[1]])
        sums_to_one = rule[1] or (rule[0] == "softmax" and chosen == 5)
        assert sums_to_one == (experts.renormalize or (experts.scoring == "softmax" and chosen == 5))
        if chosen > 1 or not sums_to_one:
            assert experts.scoring == rule[0]


def test_rows_whose_choice_is_a_tie_do_not_count():
    """Two experts alike: which one torch takes is its own affair."""
    dispatched, call = recorded(chosen=1)
    weight = call.module.weight.detach().clone()
    weight[3] = weight[1]
    dispatched, call = recorded(chosen=1, weight=weight)
    flipped = torch.where(dispatched.ids == 1, 3, torch.where(dispatched.ids == 3, 1, dispatched.ids))
    assert (flipped != dispatched.ids).any()
    for ids in (dispatched.ids, flipped):
        assert experts_of(dispatched._replace(ids=ids), [call])[0].renormalize in (True, False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"factor": 2.5}, "in a way that was not recognised"),
        ({"size": 0.0}, "nothing tells how it chooses"),
        ({"size": 1e-9}, "nothing tells how it chooses"),
        ({"size": 2e-6}, "nothing tells how it makes them of its logits"),
        ({"size": 60.0}, "nothing tells how it makes them of its logits"),  # two that have all of the softmax
        ({"size": 60.0, "renormalize": False}, "nothing tells how it makes them of its logits"),
        ({"size": 60.0, "chosen": 1}, "nothing tells how it makes them of its logits"),
    ],
)
def test_what_no_rule_explains(change, reason):
    dispatched, call = recorded(**change)
    with pytest.raises(Unknown, match=reason):
        experts_of(dispatched, [call])


def test_a_choice_that_depends_on_more():
    dispatched, call = recorded()
    with pytest.raises(Unknown, match="no weight of 5 rows"):
        experts_of(dispatched, [call._replace(module=Router(torch.ones(4, 64)))])
    call.module.register_buffer("e_score_correction_bias", torch.zeros(5))
    with pytest.raises(Unknown, match="depends on e_score_correction_bias too"):
        experts_of(dispatched, [call])
    dispatched, call = recorded(dtype=torch.bfloat16)
    with pytest.raises(Unknown, match="it gives torch.float32 for rows of torch.bfloat16"):
        experts_of(dispatched, [call._replace(result=call.result.float())])


@pytest.mark.parametrize("part", ["mlp", "mlp.gate"])
@pytest.mark.parametrize("register", ["register_buffer", "register_parameter"])
def test_a_correction_that_is_held_around_the_experts(part, register):
    """DeepSeek's routers and their like: zeros, say, which training has not changed yet."""
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
    assert "its code calls clamp_" in lz.kernelize(model).left["decoder"]
    alike(model, own)


def test_logits_of_the_router_that_are_asked_for():
    model, own = build("qwen2_moe"), build("qwen2_moe")
    lz.kernelize(model)
    with torch.inference_mode():
        actual, expected = (each(input_ids=ids_of(), output_router_logits=True).router_logits for each in (model, own))
    assert len(actual) == len(expected) == 3
    assert all(error(mine, theirs) <= TOLERANCE for mine, theirs in zip(actual, expected, strict=True))
