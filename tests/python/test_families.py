"""Every family of models: the model's own logits, exact undo, and parts that are really called."""

import collections
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from layerzero.bench import family_bench  # noqa: E402
from layerzero.bench.family_bench import OperationCalls  # noqa: E402
from layerzero.bench.family_generation import WAYS, WITHOUT, Generation, ways_of  # noqa: E402
from layerzero.integrations.transformers import kernelize  # noqa: E402
from layerzero.models.families import FAMILIES, first_output, paddings_of  # noqa: E402
from layerzero.models.family_sites import OPERATIONS, SITES  # noqa: E402

BY_NAME = {family.name: family for family in FAMILIES}
# Families whose attention cannot be chosen by name in Transformers; two more before 5.24.
OWN_ATTENTION = {"falcon", "falcon_new", "bloom"}
if transformers.__version__.startswith(("5.17.", "5.23.")):
    OWN_ATTENTION |= {"gptj", "codegen"}


@pytest.fixture(params=sorted(BY_NAME))
def family(request):
    return BY_NAME[request.param]


def test_logits_in_f32_and_undo(family):
    assert family_bench.wrong_in_f32(family) == []


def test_logits_in_bf16(family):
    assert family_bench.wrong_in_bf16(family) == []


@pytest.mark.filterwarnings("ignore:The attention mask")
@pytest.mark.parametrize(("name", "way"), [(family.name, way) for family in FAMILIES for way in ways_of(family)])
def test_greedy_generation(name, way):
    assert family_bench.wrong_in_generation(BY_NAME[name], [way]) == []


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in WITHOUT.items() for way in ways])
def test_ways_that_are_left_out_are_refused(name, way):
    with pytest.raises(ValueError, match="stateful|states"):
        Generation(BY_NAME[name], way).run(BY_NAME[name].build(), ours=True)


def test_replaced_parts_are_called(family):
    model = family.build()
    examples = [family.example(padding=padding) for padding in paddings_of(family)]
    report = kernelize(model)
    for example in examples:
        first_output(model, example)
    parts = {name: entry["calls"] for name, entry in report.replaced.items()}
    block = parts.get("decoder") or parts.get("encoder")
    if block:
        assert block == len(examples)  # it answers for the parts
    else:
        assert all(parts.values()), f"installed, never called: {report}"
    assert ("attention" in parts) == (family.name not in OWN_ATTENTION)


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


# ---- the list of sites that `layerzero bench models` measures by


def calls_of(model, example):
    """How often a forward of the model's own code passes a site of each kind."""
    counts = collections.Counter()

    def count(kind):
        return lambda *_: counts.update([kind])

    modules = list(model.modules())
    attentions = [m for m in modules if type(m).__name__.endswith("Attention")]
    outer = {id(a) for a in attentions if any(part in attentions for part in list(a.modules())[1:])}
    for module in modules:
        if "Norm" in type(module).__name__:
            module.register_forward_hook(count("norm"))
        elif module in attentions and id(module) not in outer:
            module.register_forward_hook(count("attention"))
        elif any(hasattr(module, name) for name in ("gate_proj", "gate_up_proj", "Wi")):
            module.register_forward_hook(count("mlp"))
    modeling = sys.modules[type(model).__module__]
    rotations = [name for name in vars(modeling) if name.startswith("apply_rotary_pos_emb")]

    def rotates(own):
        def rotate(*args, **kwargs):
            turned = own(*args, **kwargs)
            counts.update(["rope"] * (len(turned) if isinstance(turned, tuple) else 1))  # query and key, or one of them
            return turned

        return rotate

    with pytest.MonkeyPatch.context() as patch:
        for name in rotations:
            patch.setattr(modeling, name, rotates(getattr(modeling, name)))
        first_output(model, example)
    return counts


def test_the_list_of_sites_is_what_a_forward_passes(family):
    counts = calls_of(family.build(), family.example())
    sites = SITES[family.name]
    assert {kind: counts[kind] for kind in OPERATIONS} == {kind: sites.listed(kind) for kind in OPERATIONS}
    for one in sites.excluded:
        assert 0 < one.sites <= sites.listed(one.kind) and one.reason


def test_no_family_calls_more_than_its_sites(family):
    model = family.build()
    kernelize(model)
    with torch.inference_mode(), OperationCalls() as calls:
        model(**family.example())
    for kind, operations in OPERATIONS.items():
        called = sum(calls.counts[operation] for operation in operations)
        assert called <= SITES[family.name].replaceable(kind), "what kernelize reaches is to be listed as replaceable"


def test_every_operation_of_a_site_is_one():
    import layerzero as lz

    assert {operation for operations in OPERATIONS.values() for operation in operations} <= set(lz._operations)
    assert set(SITES) == set(BY_NAME)


# ---- layerzero bench models


def test_bench_models_sees_what_is_wrong(monkeypatch):
    real = family_bench.kernelize

    def broken(model):
        report = real(model)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.1)
        return report

    assert family_bench.examine(BY_NAME["llama"], rounds=1)["wrong"] == []
    monkeypatch.setattr(family_bench, "kernelize", broken)
    wrong = "\n".join(family_bench.examine(BY_NAME["llama"], rounds=1)["wrong"])
    assert "f32, no padding" in wrong and "bf16, left padding" in wrong and "unkernelize" in wrong


def test_bench_models_sees_other_tokens(monkeypatch):
    def broken(model):
        with torch.no_grad():
            model.lm_head.weight.neg_()

    monkeypatch.setattr(family_bench, "kernelize", broken)
    wrong = family_bench.wrong_in_generation(BY_NAME["llama"])
    assert len(wrong) == len(WAYS) and all("other tokens" in text for text in wrong)


def test_bench_models_goes_on_after_a_crash(monkeypatch):
    def crash(model):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(family_bench, "kernelize", crash)
    report = family_bench.run([BY_NAME["llama"], BY_NAME["gpt2"]], rounds=1)
    assert report["totals"]["crashes"] == 2 and not report["ok"]
    assert report["families"]["gpt2"]["crash"] == "RuntimeError: no such thing"
    assert report["totals"]["replaced"] == 0 and report["totals"]["share_replaced"] == 0
