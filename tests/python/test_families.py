"""Every family of models: the model's own logits, exact undo, and parts that are really called."""

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from layerzero.integrations.transformers import kernelize, unkernelize  # noqa: E402
from layerzero.models.families import FAMILIES  # noqa: E402

# Relative L2 error of logits. In bf16 it is measured against f32, beside the model's own.
F32_ERROR = 2e-5
BF16_RATIO = 1.25
PADDINGS = (None, "left", "right")
BY_NAME = {family.name: family for family in FAMILIES}
# Families whose attention cannot be chosen by name in Transformers.
OWN_ATTENTION = {"falcon", "bloom"}


@pytest.fixture(params=sorted(BY_NAME))
def family(request):
    return BY_NAME[request.param]


def paddings_of(family):
    return PADDINGS if family.inputs in ("ids", "tokens") else PADDINGS[:1]


def first_output(model, example):
    with torch.inference_mode():
        rows = model(**example)[0]
    mask = example.get("attention_mask")
    return rows if mask is None else rows[mask.bool()]


def error(actual, expected):
    difference = actual.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


def test_logits_in_f32_undo_and_calls(family):
    model = family.build()
    examples = [family.example(padding=padding) for padding in paddings_of(family)]
    expected = [first_output(model, example) for example in examples]
    report = kernelize(model)
    for example, want in zip(examples, expected, strict=True):
        assert error(first_output(model, example), want) <= F32_ERROR
    parts = {name: entry["calls"] for name, entry in report.replaced.items()}
    if parts.get("decoder"):
        assert parts["decoder"] == len(examples)  # it answers for the parts
    else:
        assert all(parts.values()), f"installed, never called: {report}"
    assert ("attention" in parts) == (family.name not in OWN_ATTENTION)
    unkernelize(model)
    assert all(torch.equal(first_output(model, e), w) for e, w in zip(examples, expected, strict=True))


def test_logits_in_bf16(family):
    model = family.build(torch.bfloat16)
    for padding in paddings_of(family):
        example = family.example(torch.bfloat16, padding)
        exact = first_output(copy.deepcopy(model).float(), family.example(padding=padding))
        own = error(first_output(model, example), exact)
        kernelize(model)
        assert error(first_output(model, example), exact) <= BF16_RATIO * own
        unkernelize(model)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", [family.name for family in FAMILIES if family.generates])
def test_greedy_generation(name, cache):
    family = BY_NAME[name]
    model = family.build()
    example = family.example()
    example.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "disable_compile": True}
    options["cache_implementation"] = cache

    def generate():
        with torch.inference_mode():
            return model.generate(**example, **options)

    expected = generate()
    kernelize(model)
    assert torch.equal(generate(), expected)


def test_the_table_says_what_is_replaced(family):
    page = (Path(__file__).parents[2] / "docs/guide/families.md").read_text()
    line = next((line for line in page.splitlines() if line.startswith(f"| {family.name} |")), None)
    assert line, "type: python scripts/families_table.py"
    model = family.build()
    report = kernelize(model)
    first_output(model, family.example())
    through = line.split("|")[2]
    called = {f"{part} (`{e['operation']}`)" for part, e in report.replaced.items() if e["calls"]}
    assert {part.strip() for part in through.split(", ")} == called, "type: python scripts/families_table.py"
