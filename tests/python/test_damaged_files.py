"""Damaged files, broken templates and odd ids: one typed error that names the fault, no traceback, nothing left behind."""

import json
import random
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

import layerzero as lz  # noqa: E402
import numpy as np  # noqa: E402
import small_gguf  # noqa: E402
import small_model  # noqa: E402
from layerzero import models  # noqa: E402
from layerzero.cli import run  # noqa: E402
from layerzero.models import generation, time_limit  # noqa: E402


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_model.save(tmp_path_factory.mktemp("model"))


def left_in(cache):
    return [p for p in cache.rglob("*") if p.is_file()] + list((cache / "models").glob("*"))


def test_a_whole_file_loads(cache, tmp_path):
    model, _ = models.load(small_gguf.write(tmp_path / "m.gguf"), dtype="f32")
    want = torch.from_numpy(small_gguf.tensors()["output_norm.weight"])
    assert torch.equal(model.model.norm.weight, want)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("blk.1.attn_q", "layers.1.self_attn.q_proj"),
        ("blk.0.ffn_down", "layers.0.mlp.down_proj"),
        ("token_embd", "embed_tokens"),
        ("output_norm", "model.norm"),
        ("blk.1.attn_norm", "layers.1.input_layernorm"),
        ("blk.1", "layers.1."),
        ("", "model."),
    ],
)
def test_missing_tensors_are_named_and_nothing_is_kept(cache, tmp_path, missing, named):
    path = small_gguf.write(tmp_path / "m.gguf", without=lambda name: name.startswith(missing))
    for _ in range(2):  # the second load may not find a first one's result
        with pytest.raises(lz.InvalidRequestError) as raised:
            models.load(path, dtype="f32")
        assert named in str(raised.value) and str(path) in str(raised.value)
    assert left_in(cache) == []


def test_a_file_cut_or_changed_anywhere_is_a_typed_error_or_loads(cache, tmp_path):
    """Bytes of the header and of the metadata; those of weights alone are numbers like others."""
    whole = small_gguf.write(tmp_path / "m.gguf").read_bytes()
    drawn, refused = random.Random(0), 0
    for number in range(24):
        data = bytearray(whole)
        if number % 2:
            del data[drawn.randrange(8, len(data)) :]
        else:
            for _ in range(8):
                data[drawn.randrange(4, 1500)] = drawn.randrange(256)
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        try:
            models.load(path, dtype="f32")
        except lz.LayerZeroError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 12
    assert not list((cache / "models").glob("*/.*"))


def test_a_stored_folder_that_was_damaged(folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(lz.InvalidRequestError, match="whole"):
        models.load(broken, dtype="f32")


@pytest.mark.parametrize("name", ["tokenizer.json", "m.model"])
@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff" * 50, b'{"version": "1.0"}'])
def test_damaged_tokenizers(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(lz.InvalidRequestError, match="the library reads"):
        lz.register_tokenizer(path)


def tokenizers_of_each_library(tmp_path, folder):
    sentencepiece, tiktoken = pytest.importorskip("sentencepiece"), pytest.importorskip("tiktoken")
    text = tmp_path / "text"
    text.write_text("hello world\nhello there\n" * 20)
    prefix = str(tmp_path / "m")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=prefix, vocab_size=30, model_type="bpe", minloglevel=2
    )
    ranks = {bytes([i]): i for i in range(256)}
    yield lz.register_tokenizer(folder)
    yield lz.register_tokenizer(f"{prefix}.model")
    # Ids 257 to 299 belong to nothing.
    yield lz.register_tokenizer(
        tiktoken.Encoding("gap", pat_str=".", mergeable_ranks=ranks, special_tokens={"<end>": 300})
    )


def test_texts_and_ids_that_no_library_takes(tmp_path, folder):
    for identity in tokenizers_of_each_library(tmp_path, folder):
        ids = lz.tokenize("hello", identity)["input_ids"]
        text = lz.detokenize(ids, identity)
        assert lz.detokenize(np.array(ids), identity) == text
        assert lz.detokenize([np.int64(i) for i in ids], identity) == text
        assert lz.detokenize([np.array(ids), [np.int32(i) for i in ids]], identity) == [text, text]
        for odd in ([-1], [10**9], [2**70], [1.5], [True], ["1"], [None], [[1], 2], [[[1]]]):
            with pytest.raises(lz.InvalidRequestError, match="tokens"):
                lz.detokenize(odd, identity)
        for lone in ("\ud800", "a\udfffb"):
            try:
                lz.tokenize([lone], identity)
            except lz.InvalidRequestError as error:
                assert "surrogates" in str(error)
    with pytest.raises(lz.InvalidRequestError, match="tokens"):
        lz.detokenize([270], identity)  # the last one is tiktoken's


def test_sentencepiece_options_are_part_of_the_identity(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "text"
    text.write_text("hello world\nhello there\n" * 20)
    prefix = str(tmp_path / "m")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=prefix, vocab_size=30, model_type="bpe", minloglevel=2
    )
    identities, rows = set(), set()
    for options in ({}, {"add_bos": True}, {"add_eos": True}, {"reverse": True}, {"add_bos": True, "add_eos": True}):
        processor = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model", **options)
        identity = lz.register_tokenizer(processor)
        assert lz.tokenize("hello world", identity)["input_ids"] == processor.encode("hello world")
        identities.add(identity)
        rows.add(tuple(processor.encode("hello world")))
    assert len(identities) == len(rows) == 5


# ---- the command


def refused(capsys, *arguments):
    """The error of `layerzero generate --json`, which must be JSON of the published form."""
    code = run(["generate", *arguments, "--json"])
    printed = capsys.readouterr().out
    assert code in (1, 2), printed
    return json.loads(printed)["error"]


def test_generate_reports_damaged_files_as_json(cache, folder, tmp_path, capsys):
    path = small_gguf.write(tmp_path / "m.gguf", without=lambda name: "attn_q" in name)
    assert "q_proj" in str(refused(capsys, "--model", str(path), "--prompt", "w1"))
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:200])
    assert "cut.gguf" in str(refused(capsys, "--model", str(tmp_path / "cut.gguf"), "--prompt", "w1"))
    prompts = tmp_path / "prompts"
    prompts.write_bytes(b"caf\xe9\n")
    assert "UTF-8" in str(refused(capsys, "--model", str(folder), "--prompts-file", str(prompts)))


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['none']['deeper'] }}",
        "{% for m in messages %}{{ m.role }}",
        "{{ 1 / 0 }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    ],
)
def test_broken_chat_templates(folder, tmp_path, capsys, monkeypatch, template):
    monkeypatch.setattr(generation, "TEMPLATE_SECONDS", 0.5)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "chat_template.jinja").write_text(template)
    assert "chat template" in str(refused(capsys, "--model", str(broken), "--dtype", "f32", "--prompt", "hi"))


def test_a_time_limit_returns_results_raises_errors_and_stops_loops():
    assert time_limit.within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        time_limit.within(5, lambda: {}["none"])
    steps = [0]

    def loop():
        while True:
            steps[0] += 1

    with pytest.raises(TimeoutError):
        time_limit.within(0.2, loop)
    stopped = steps[0]
    assert steps[0] == stopped


def test_no_progress_bar_where_no_terminal_is(cache, tmp_path, capfd):
    models.load(small_gguf.write(tmp_path / "m.gguf"), dtype="f32")
    out, err = capfd.readouterr()
    assert "%|" not in out + err and "it/s" not in out + err
