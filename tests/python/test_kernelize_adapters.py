"""kernelize and LoRA adapters by PEFT: added before or after it, disabled, merged, unmerged, unloaded."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

import layerzero as lz  # noqa: E402
from small_llama import TOLERANCE, error, ids_of, logits_of, plan_of, tiny  # noqa: E402


def with_adapter(model):
    torch.manual_seed(1)
    targets = ["q_proj", "v_proj", "gate_proj"]
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).eval()


def assert_alike(model, reference):
    assert error(logits_of(model), logits_of(reference)) <= TOLERANCE


@pytest.mark.parametrize("order", ["adapter first", "kernelize first"])
def test_every_state_of_an_adapter(order):
    plain, base, reference = tiny(), tiny(), with_adapter(tiny())
    if order == "adapter first":
        model = with_adapter(base)
        report = lz.kernelize(model)
        assert "peft.tuners.lora.layer.Linear is not exactly" in report.left["base_model.model.model.layers.0.mlp"]
    else:
        report = lz.kernelize(base)
        model = with_adapter(base)
    assert error(logits_of(model), logits_of(plain)) > 0.01, "the adapter does nothing"
    assert_alike(model, reference)
    with model.disable_adapter():
        assert_alike(model, plain)
    for each in (model, reference):
        each.merge_adapter()
    assert_alike(model, reference)
    for each in (model, reference):
        each.unmerge_adapter()
    assert_alike(model, reference)
    if order == "kernelize first":
        assert set(plan_of(base).why_aside) == {"a module was replaced after kernelize"}
    merged, expected = model.merge_and_unload(), reference.merge_and_unload()
    assert_alike(merged, expected)
    assert all(entry["calls"] for part, entry in report.replaced.items() if part != "MLP"), report
    assert lz.unkernelize(model)
    assert torch.equal(logits_of(merged), logits_of(expected))
    assert merged.config._attn_implementation == "sdpa"


def test_adapter_trains_as_without():
    model, reference = with_adapter(tiny()), with_adapter(tiny())
    lz.kernelize(model)
    for each in (model, reference):
        each.train()
        each(ids_of(), labels=ids_of()).loss.backward()
    trained = [(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True) if b.requires_grad]
    assert trained and all(error(a.grad, b.grad) < 1e-4 for a, b in trained)


def test_kernelize_of_a_wrapper_takes_the_place_of_the_inner_ones():
    base = tiny()
    first = lz.kernelize(base)
    model = with_adapter(base)
    second = lz.kernelize(model)
    assert second is not first and second.replaced["Linear"]["count"] > first.replaced["Linear"]["count"]
    assert_alike(model, with_adapter(tiny()))
    assert lz.unkernelize(base) is False  # the mark is the wrapper's
    assert lz.unkernelize(model)
    assert not any(name.startswith("_layerzero") for module in model.modules() for name in module.__dict__)
    assert base.config._attn_implementation == "sdpa"


def test_a_part_of_a_kernelized_model_is_refused():
    model = tiny()
    lz.kernelize(model)
    with pytest.raises(RuntimeError, match="part of a kernelized model"):
        lz.kernelize(model.model)
