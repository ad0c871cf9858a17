"""The report of `kernelize`: what ran inside a program, and why one stepped aside; a plan promises what would run."""

import copy
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import probe  # noqa: E402
from layerzero.models.families import FAMILIES, first_output  # noqa: E402
from small_llama import ids_of, logits_of, tiny  # noqa: E402

BY_NAME = {family.name: family for family in FAMILIES}
IN_PROGRAM = ["llama", "qwen3_moe", "gpt2", "bert", "t5", "whisper", "deepseek_v3"]


def in_program(report):
    return {part: entry["in_program"] for part, entry in report.replaced.items() if "in_program" in entry}


@pytest.mark.parametrize("name", IN_PROGRAM)
def test_parts_that_ran_in_a_program_are_counted(name):
    family = BY_NAME[name]
    model = family.build()
    report = lz.kernelize(model)
    assert not any(in_program(report).values()) and "not called yet" in str(report)
    first_output(model, family.example())
    assert all(entry["calls"] or entry["in_program"] for entry in report.replaced.values() if "in_program" in entry)
    assert "not called yet" not in str(report)


def test_how_many_of_each():
    model = tiny()
    report = lz.kernelize(model)
    for _ in range(2):
        logits_of(model)
    assert in_program(report) == {"RMSNorm": 2 * 7, "attention": 2 * 3, "MLP": 2 * 3, "Linear": 2 * 3 * 7}
    assert report.replaced["Linear"]["calls"] == 2 and report.replaced["decoder"]["aside"] == {}


REASONS = {
    "gradients": (lambda model: model(ids_of()), "gradients are recorded"),
    "hidden states": (lambda model: logits_with(model, output_hidden_states=True), "output_hidden_states is given"),
    "a hook": (lambda model: hooked(model), "a module has hooks"),
}


def logits_with(model, **further):
    with torch.inference_mode():
        return model(ids_of(), **further).logits


def hooked(model):
    handle = model.model.layers[1].register_forward_hook(lambda *_: None)
    logits_of(model)
    handle.remove()


@pytest.mark.parametrize("kind", sorted(REASONS))
@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_why_a_program_stepped_aside(name, kind):
    model = tiny() if name == "llama" else neox()
    report = lz.kernelize(model)
    call, reason = REASONS[kind]
    if name == "gpt_neox" and kind != "gradients":
        model.base_model.layers[1].register_forward_hook(lambda *_: None)
        reason = "a module has hooks"
        logits_with(model)
    else:
        call(model)
    (why,) = report.replaced["decoder"]["aside"]
    assert reason in why and f"stepped aside 1 times: {why}" in str(report)
    assert report.replaced["decoder"]["calls"] == 0


def neox():
    settings = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**settings, vocab_size=131)).eval()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_counts_for_itself(copied):
    model = tiny()
    report = lz.kernelize(model)
    other = copied(model)
    its_report = lz.kernelize(other)
    logits_of(other)
    with torch.enable_grad():
        other(ids_of())
    assert its_report.replaced["decoder"]["calls"] == 1 and len(its_report.replaced["decoder"]["aside"]) == 1
    assert in_program(its_report)["attention"] == 3 and not any(in_program(report).values())
    assert report.replaced["decoder"] == {**report.replaced["decoder"], "calls": 0, "aside": {}}


@pytest.mark.parametrize("weights", ["int8", "bf16"])
def test_trials_of_weights_are_not_counted(weights):
    report = lz.kernelize(tiny(), weights, max_perplexity_ratio=100.0)
    assert not any(entry["calls"] for entry in report.replaced.values()) and not any(in_program(report).values())


def test_unkernelize_leaves_nothing():
    model = tiny()
    before = [set(module.__dict__) for module in model.modules()]
    lz.kernelize(model)
    lz.unkernelize(model)
    assert [set(module.__dict__) for module in model.modules()] == before


# ---- what a call of the model would not run


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_a_program_that_no_call_of_the_model_reaches_is_left(name, monkeypatch):
    """As where a release calls an argument by a name that the binding does not know."""
    model = tiny() if name == "llama" else neox()
    if name == "llama":
        monkeypatch.setattr(type(model), "forward", _passing_on(type(model).forward))
    else:
        monkeypatch.setattr(type(model.base_model.layers[0]), "__call__", _layer_call)
    plan = lz.dry_run(model)
    assert plan.block is None and not plan.phases
    assert "of_a_later_release" in plan.report.left["decoder"] and "decoder" not in plan.report.replaced
    logits_of(model)


def _passing_on(own):
    def forward(self, *args, **kwargs):
        inner, self.model.__class__.__call__ = self.model.__class__.__call__, _with_more
        try:
            return own(self, *args, **kwargs)
        finally:
            self.model.__class__.__call__ = inner

    return forward


def _with_more(self, *args, **kwargs):
    return torch.nn.Module.__call__(self, *args, **kwargs, of_a_later_release=1)


def _layer_call(self, *args, **kwargs):
    return torch.nn.Module.__call__(self, *args, **kwargs, of_a_later_release=1)


def test_a_plan_of_a_model_in_training_mode_promises_no_program():
    model = tiny()
    assert lz.dry_run(model).block == "block.decoder"
    plan = lz.dry_run(model.train())
    assert plan.block is None and "training mode" in plan.why_not and "training mode" in str(plan)
    with pytest.raises(lz.errors.InvalidRequestError, match="training mode"):
        plan.steps()


def test_a_plan_of_a_changed_model_promises_no_program():
    model = tiny()
    lz.kernelize(model)
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert "hooks" in lz.dry_run(model).why_not
    handle.remove()
    assert lz.dry_run(model).block == "block.decoder" and lz.dry_run(model).why_not is None


# ---- versions


def test_an_untested_version_warns_once(monkeypatch):
    monkeypatch.setattr(probe.transformers, "__version__", "9.1.0")
    monkeypatch.setattr(probe, "_warned", set())
    with pytest.warns(UserWarning, match=r"tested with Transformers 5\.17, .*this is 9\.1\.0") as seen:
        lz.kernelize(tiny())
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lz.kernelize(tiny())


def test_a_tested_version_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lz.kernelize(tiny())
