"""A model is changed by findings about its structure as it would be by a search, and wrong findings are found out."""

import copy
import dataclasses
import io
import json
import logging
import sys
import threading
import time
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import parts, progress, structure  # noqa: E402
from layerzero.integrations.transformers.recognise import findings, observe, structure_key  # noqa: E402
from layerzero.integrations.transformers.run.plan import plans_of  # noqa: E402
from layerzero.models import disk_cache  # noqa: E402
from layerzero.models.families import FAMILIES, as_trained, first_output  # noqa: E402

_FAMILIES = {family.name: family for family in FAMILIES}
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
_SIZES |= {"num_key_value_heads": 2, "vocab_size": 131}


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Findings of small models are kept too, in a folder of the test."""
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(findings, "LEAST_MODULES", 0)
    return lambda: sorted(tmp_path.glob("models/*/findings-v*/findings.json"))


@pytest.fixture
def used(caplog):
    """How many models were changed by findings so far, and why others were not."""
    caplog.set_level(logging.INFO, "layerzero.kernelize")
    return lambda: (
        sum("changed by the findings" in r.message for r in caplog.records),
        [r.getMessage() for r in caplog.records if "not used" in r.message],
    )


def llama(seed=0, dtype=torch.float32, **further):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**_SIZES | further)
    return as_trained(transformers.LlamaForCausalLM(config).eval()).to(dtype)


def logits_of(model):
    with torch.inference_mode():
        return model(input_ids=torch.arange(2, 26).reshape(2, 12)).logits


def state_of(report):
    return {part: (entry["count"], entry["operation"]) for part, entry in report.replaced.items()}, report.left


def stacks_of(model):
    return [plan.stack for _, plan in plans_of(model)]


@pytest.mark.parametrize("name", _FAMILIES)
def test_a_family_by_findings_is_as_by_a_search(name, kept, used, monkeypatch):
    family = _FAMILIES[name]
    searched, by_findings = family.build(), family.build()
    expected = lz.kernelize(searched)
    if not kept():
        pytest.skip("no short input shows what it computes")
    actual = lz.kernelize(by_findings)
    assert used() == (1, [])
    assert state_of(actual) == state_of(expected) and stacks_of(by_findings) == stacks_of(searched)
    assert not any(entry["calls"] for entry in actual.replaced.values())
    example = family.example()
    assert torch.equal(first_output(by_findings, example), first_output(searched, example))
    assert lz.unkernelize(by_findings)
    assert torch.equal(first_output(by_findings, example), first_output(family.build(), example))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nothing_is_searched_again(dtype, kept, used, monkeypatch):
    """Of other weights neither."""
    lz.kernelize(llama(0, dtype))

    def searches(*_):
        raise AssertionError("searched")

    monkeypatch.setattr(observe, "_layers_of", searches)
    other = llama(1, dtype)
    own = logits_of(other)
    assert lz.kernelize(other).left == {} and used() == (1, [])
    assert (logits_of(other).float() - own.float()).norm() <= 0.05 * own.float().norm()
    assert len(kept()) == 1


# ---- wrong findings


def changed_stack(change):
    def changed(answers):
        stack, whole = answers["layers decoder"]
        layers = [dataclasses.replace(layer, **change(layer)) for layer in stack.layers]
        return answers | {"layers decoder": (dataclasses.replace(stack, layers=tuple(layers)), whole)}

    return changed


def attention(layer, **further):
    return {"attention": dataclasses.replace(layer.attention, **further)}


def other_norms(answers):
    return {
        name: ((answer[0][0], {"weight_offset": 1.0}), None, None) if name.startswith("norm") else answer
        for name, answer in answers.items()
    }


def other_mlps(answers):
    gelu = {"operation": "geglu", "further": {"approximate": "none"}}
    return {
        name: (answer[0]._replace(**gelu), None) if name.startswith("mlp") else answer
        for name, answer in answers.items()
    }


WRONG = {
    "norms": other_norms,
    "MLPs": other_mlps,
    "no rotation": changed_stack(lambda layer: attention(layer, rope=None)),
    "another rotation": changed_stack(
        lambda layer: attention(layer, rope=dataclasses.replace(layer.attention.rope, interleaved=True))
    ),
    "a scale": changed_stack(lambda layer: attention(layer, scale=1.2 * layer.attention.scale)),
    "a window": changed_stack(lambda layer: attention(layer, window=2)),
    "sees later tokens": changed_stack(lambda layer: attention(layer, causal=False)),
    "columns that are not there": changed_stack(
        lambda layer: attention(layer, query=dataclasses.replace(layer.attention.query, column=1 << 20))
    ),
    "a module that is not there": changed_stack(lambda layer: attention(layer, out="self_attn.nothing")),
    "a layer less": lambda answers: (
        answers
        | {
            "layers decoder": (
                dataclasses.replace(answers["layers decoder"][0], layers=answers["layers decoder"][0].layers[:-1]),
                True,
            )
        }
    ),  # fmt: skip
    "no answers": lambda answers: {},
    "answers of other kinds": lambda answers: dict.fromkeys(answers, 3),
    "texts": lambda answers: dict.fromkeys(answers, "nothing") | {"attention": None},
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_findings_are_found_out(fault, kept, used):
    expected = llama()
    right = state_of(lz.kernelize(expected))
    (path,) = kept()
    key = json.loads(path.read_text())["key"]
    answers = findings.kept_for(key)
    findings._write(path, key, findings.encoded(WRONG[fault](answers)))
    model = llama()
    report = lz.kernelize(model)
    assert torch.equal(logits_of(model), logits_of(expected))
    if fault == "texts":  # reasons to leave parts alone: nothing is wrong by them
        return
    assert state_of(report) == right and stacks_of(model) == stacks_of(expected)
    assert used()[0] == 0 and len(used()[1]) == 1
    assert findings.kept_for(key) == answers  # written again


BROKEN = {
    "nothing": b"",
    "half": lambda text: text[: len(text) // 2],
    "bytes": bytes(range(256)),
    "a list": b"[]",
    "a number": b"7",
    "other keys": b'{"answers": {}}',
    "one digit": lambda text: text.replace(b"rms_norm", b"rms_nors", 1),
    "of another structure": lambda text: text.replace(b'"key": "', b'"key": "0', 1),
    "of another version": lambda text: text.replace(b'"format": 1', b'"format": 0', 1),
    "unknown record": b'{"format": 1, "key": "%s", "sha256": "%s", "answers": {"System": []}}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("fault", BROKEN)
def test_files_that_are_not_findings_are_written_again(fault, kept, used):
    lz.kernelize(llama())
    (path,) = kept()
    text, broken = path.read_bytes(), BROKEN[fault]
    if fault == "unknown record":
        broken = broken % (json.loads(text)["key"].encode(), findings._digest({"System": []}).encode())
    path.write_bytes(broken(text) if callable(broken) else broken)
    assert lz.kernelize(llama()).left == {} and used()[0] == 0
    assert path.read_bytes() == text
    assert lz.kernelize(llama()).left == {} and used()[0] == 1


def test_a_disk_that_takes_nothing(kept, used, tmp_path):
    (tmp_path / "models").write_text("a file in the place of the folder")
    assert lz.kernelize(llama()).left == {} and lz.kernelize(llama()).left == {}
    assert used()[0] == 0 and kept() == []


# ---- what belongs together


def other_eps(model):
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-3


def tied(model):
    model.model.layers[1].self_attn.k_proj.weight = model.model.layers[1].self_attn.v_proj.weight


def test_the_key_is_of_the_structure(monkeypatch):
    key = structure_key.key_of(llama())
    assert key and key == structure_key.key_of(llama(1)) == structure_key.key_of(copy.deepcopy(llama()))
    others = [
        llama(num_hidden_layers=2), llama(rms_norm_eps=1e-3), llama(dtype=torch.bfloat16), llama(attention_bias=True),
        llama(attn_implementation="eager"), llama(rope_theta=5e5), llama(tie_word_embeddings=True),
    ]  # fmt: skip
    for change in (other_eps, tied):
        others.append(llama())
        change(others[-1])
    keys = [structure_key.key_of(model) for model in others]
    assert None not in keys and len({key, *keys}) == 1 + len(keys)
    for change in (
        lambda: monkeypatch.setattr(type(llama().model.layers[0]), "forward", lambda self, rows, **_: rows),
        lambda: monkeypatch.setattr(structure_key.transformers, "__version__", "5.99"),
    ):
        change()
        assert structure_key.key_of(llama()) != key
        monkeypatch.undo()


def test_models_that_a_search_has_to_see_have_no_key():
    hooked, replaced = llama(), llama()
    hooked.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    replaced.model.norm.forward = lambda rows: rows
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES))
    assert [structure_key.key_of(model) for model in (hooked, replaced, empty)] == [None] * 3


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_weights_that_tell_nothing_leave_no_findings(value, kept):
    """Those that are loaded later have the same structure."""
    model = llama()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    assert lz.kernelize(model).left and kept() == []
    assert lz.kernelize(llama()).left == {}


def test_small_models_leave_no_files(kept, monkeypatch):
    monkeypatch.setattr(findings, "LEAST_MODULES", 100)
    lz.kernelize(llama())
    assert kept() == []


def test_records_as_json():
    model = llama()
    lz.kernelize(model)
    (stack,) = stacks_of(model)
    assert findings.decoded(json.loads(json.dumps(findings.encoded(stack)))) == stack
    with pytest.raises(TypeError, match="Tensor"):
        findings.encoded((torch.zeros(1),))


def test_they_are_listed_and_removed(kept, used):
    lz.kernelize(llama())
    (entry,) = disk_cache.entries()
    assert entry["kind"].startswith("findings-v") and entry["bytes"] == kept()[0].stat().st_size
    disk_cache.cap(0)
    assert kept() == [] and disk_cache.entries() == []
    assert lz.kernelize(llama()).left == {} and used()[0] == 0


@pytest.mark.parametrize("failure", [torch.OutOfMemoryError, MemoryError, ValueError])
def test_an_answer_that_a_failure_gave_is_not_kept(failure, kept, monkeypatch):
    """Of memory that ran out while a part's code ran, or of anything else that went wrong in the search."""

    def fail(*_):
        raise failure("no more memory")

    if failure is ValueError:
        monkeypatch.setattr(structure, "norm", fail)
    else:
        monkeypatch.setattr(type(llama().model.norm), "forward", fail)
    report = types.SimpleNamespace(left={}, add=lambda *_: None)
    model, found = llama(), findings.Findings("0" * 64)
    parts.replace_norms(model, types.SimpleNamespace(report=report), found)
    assert report.left["model.norm"] == "it could not be read: no more memory"
    found.write()
    assert not kept() and found.depend_on_values


# ---- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "patience", "quiet", "shown"),
    [
        (Terminal, 0.0, False, True),
        (Terminal, 0.0, True, False),
        (io.StringIO, 0.0, False, False),
        (Terminal, 99, False, False),
    ],
)
def test_a_line_of_progress(stream, patience, quiet, shown, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", stream())
    with progress.shown("kernelize", quiet), progress.shown("inner", quiet):
        time.sleep(0.15)  # lines are not written more often
        progress.step("layer 3 of 30")
    text = sys.stderr.getvalue()
    assert ("kernelize: layer 3 of 30" in text) == shown and text.rpartition("\r")[2].strip() == ""
    assert "inner" not in text


def test_a_long_step_is_shown(monkeypatch):
    """Without another step, which tqdm waits for."""
    monkeypatch.setattr(progress, "PATIENCE", 0.25)
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = threading.active_count()
    with progress.shown("kernelize", quiet=False):
        progress.step("layer 3 of 30")
        assert sys.stderr.getvalue() == ""
        deadline = time.monotonic() + 20
        while "layer 3 of 30" not in sys.stderr.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "kernelize: layer 3 of 30" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().rpartition("\r")[2].strip() == "" and threading.active_count() == before


def test_kernelize_is_quiet_on_request(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    lz.kernelize(llama(), quiet=True)
    assert sys.stderr.getvalue() == ""


def test_what_is_tried_is_logged(caplog):
    caplog.set_level(logging.DEBUG, "layerzero.kernelize")
    lz.kernelize(llama())
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "layer 3 of 3: what it computes" in text and "norm model.norm" in text and "layers decoder" in text
