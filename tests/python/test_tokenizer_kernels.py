"""tokenize.encode and tokenize.decode as operations: selection, reasons, locks, metrics, what the own tokenizer refuses."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.errors import InvalidRequestError, NoKernelFoundError  # noqa: E402
from small_tokenizer import TEXTS, build  # noqa: E402
from vocabularies import R50K, sentencepiece_model, tiktoken_encoding, vocabulary  # noqa: E402


def test_they_are_operations():
    kernels = {kernel.kernel_id for kernel in lz.list_kernels("tokenize.encode")}
    assert {"bpe.tokenize.encode", "tokenizers.encode", "tiktoken.encode", "sentencepiece.encode"} <= kernels
    assert "bpe.tokenize.decode" in {kernel.kernel_id for kernel in lz.list_kernels("tokenize.decode")}


def test_selection_and_reasons():
    identity = lz.register_tokenizer(build())
    arguments = lz.tokenizer_arguments(TEXTS, identity)
    assert lz.which("tokenize.encode", **arguments).kernel_id == "bpe.tokenize.encode"
    report = str(lz.explain("tokenize.encode", **arguments))
    assert "tiktoken.encode" in report
    assert "TOKENIZER_ID_MISMATCH" in report
    ids, ends = lz.run("tokenize.encode", **arguments)
    wanted = [build().encode(text).ids for text in TEXTS]
    assert ids[: ends[-1]].tolist() == [number for row in wanted for number in row]
    with lz.policy(locks={"tokenize.encode": "tokenizers.encode"}):
        ids, ends, spans = lz.run("tokenize.encode", **lz.tokenizer_arguments(TEXTS, identity, return_offsets=True))
    assert ids[: ends[-1]].tolist() == [number for row in wanted for number in row]
    assert spans[0].tolist() == list(build().encode(TEXTS[0]).offsets[0])


def test_a_policy_decides_about_lz_tokenize():
    identity = lz.register_tokenizer(build())
    wanted = lz.tokenize(TEXTS, identity, return_offsets=True)
    for locks in ({"tokenize.encode": "tokenizers.encode"}, {"tokenize.encode": "bpe.tokenize.encode"}):
        with lz.policy(locks=locks):
            assert lz.tokenize(TEXTS, identity, return_offsets=True) == wanted
    with lz.policy(allow_sources=["bpe"]):
        assert lz.tokenize(TEXTS, identity, return_offsets=True) == wanted
    with lz.policy(allow_sources=["tiktoken"], fallback_enabled=False), pytest.raises(NoKernelFoundError):
        lz.tokenize(TEXTS, identity)


def test_every_library_is_a_kernel():
    for tokenizer, encode in (
        (tiktoken_encoding(R50K), lambda texts, t: t.encode_batch(texts, allowed_special="all")),
        (sentencepiece_model(), lambda texts, t: t.encode(texts, out_type=int)),
    ):
        identity = lz.register_tokenizer(tokenizer)
        assert "ids" not in lz.tokenizer_kernels(identity)
        assert lz.tokenize(TEXTS, identity)["input_ids"] == encode(TEXTS, tokenizer)
        with lz.policy(allow_sources=["tiktoken", "sentencepiece"]):
            assert lz.tokenize(TEXTS, identity)["input_ids"] == encode(TEXTS, tokenizer)
        if "offsets" in lz.tokenizer_kernels(identity):
            with pytest.raises(lz.LayerZeroError, match="OFFSETS_UNSUPPORTED"):
                lz.tokenize(TEXTS, identity, return_offsets=True)


def test_a_text_that_the_own_tokenizer_refuses_is_the_librarys():
    tokenizer = vocabulary("qwen2")
    identity = lz.register_tokenizer(tokenizer)
    texts = ["plain", "cafe\u0301", "\u1100\u1161"]
    assert lz.tokenize(texts, identity)["input_ids"] == [tokenizer.encode(text).ids for text in texts]
    with pytest.raises(InvalidRequestError, match="surrogate|texts"):
        lz.tokenize(["\ud800"], identity)


def test_a_tokenizer_of_another_model_has_reasons():
    parts = json.loads(build().to_str())
    parts["model"] = {"type": "WordLevel", "vocab": {"hello": 0, "<unk>": 1}, "unk_token": "<unk>"}
    parts["added_tokens"], parts["post_processor"] = [], None
    identity = lz.register_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(parts)))
    assert "wanted BPE, got WordLevel" in lz.tokenizer_kernels(identity)["ids"]
    assert lz.tokenize("hello", identity)["input_ids"] == [0]
