"""Models of several models (images or sound beside text): each list of layers is a program of its own."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import TOLERANCE, error  # noqa: E402
from block_parts import MODELS, build, given, programs_of, run  # noqa: E402
from layerzero.program import Program  # noqa: E402

GENERATE = ("llava", "idefics3", "gemma3", "paligemma", "internvl", "qwen2_vl")


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def test_each_list_of_layers_is_a_program(name):
    model, own = build(name), build(name)
    _, _, counts, asides = MODELS[name]
    report = lz.kernelize(model)
    found = tuple(report.replaced.get(kind, {"count": 0})["count"] for kind in ("encoder", "decoder"))
    assert found == counts and len(programs_of(model)) == sum(counts), report.left
    assert error(run(model, name), run(own, name)) <= TOLERANCE
    assert {reason for plan in programs_of(model) for reason in plan.why_aside} == set(asides)
    calls = sum(report.replaced.get(kind, {"calls": 0})["calls"] for kind in ("encoder", "decoder"))
    assert calls == sum(counts) - len(asides)
    assert lz.unkernelize(model) and torch.equal(run(model, name), run(own, name))


def test_errors_in_bf16(name):
    """Over several models: those of one alone scatter by half of their size."""
    sums = [0.0, 0.0]
    for seed in range(4):
        model = build(name, torch.bfloat16, seed)
        exact = run(copy.deepcopy(model).float(), name)
        sums[1] += error(run(model, name), exact)
        lz.kernelize(model)
        sums[0] += error(run(model, name), exact)
    assert sums[0] <= 1.25 * sums[1]


@pytest.mark.parametrize("name", GENERATE)
def test_generation(name, monkeypatch):
    """The plan that `compile` gives is that of the layers which write the text."""
    model, own = build(name), build(name)
    plan, ran, counted = lz.compile(model), [], Program.run
    monkeypatch.setattr(Program, "run", lambda self, *args: (ran.append(self), counted(self, *args))[1])
    assert plan.block == "block.decoder"
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "disable_compile": True, "pad_token_id": 0}
    with torch.inference_mode():
        ids = [each.generate(**given(name), **options) for each in (model, own)]
    assert torch.equal(*ids) and ran


def test_weights_of_every_part_that_change(name):
    model, own = build(name), build(name)
    lz.kernelize(model)
    before = run(model, name)
    with torch.no_grad():
        for each in (model, own):
            for parameter in each.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(1.2)
    assert error(run(model, name), run(own, name)) <= TOLERANCE
    assert error(run(model, name), before) > 10 * TOLERANCE
