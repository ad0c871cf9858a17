"""tokenize.encode and tokenize.decode as operations: selection, reasons, locks, metrics, what the own tokenizer refuses."""

import json
import os
import random
import subprocess
import sys

import pytest

tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.errors import InvalidRequestError, NoKernelFoundError  # noqa: E402
from layerzero.tokenizers import _find  # noqa: E402
from small_tokenizer import TEXTS, build  # noqa: E402
from vocabularies import BUILDERS, R50K, sentencepiece_model, tiktoken_encoding, vocabulary  # noqa: E402


def test_they_are_operations():
    kernels = {kernel.kernel_id for kernel in lz.list_kernels("tokenize.encode")}
    assert {"bpe.tokenize.encode", "tokenizers.encode", "tiktoken.encode", "sentencepiece.encode"} <= kernels
    assert "bpe.tokenize.decode" in {kernel.kernel_id for kernel in lz.list_kernels("tokenize.decode")}


def test_selection_and_reasons():
    identity = lz.register_tokenizer(build())
    arguments = lz.tokenizer_arguments(TEXTS, identity)
    assert lz.which("tokenize.encode", **arguments)["kernel_id"] == "bpe.tokenize.encode"
    report = lz.explain("tokenize.encode", **arguments)
    reasons = {c.kernel_id: [r.code for r in c.reasons] for c in report.candidates}
    assert reasons["tiktoken.encode"] == reasons["sentencepiece.encode"] == ["TOKENIZER_ID_MISMATCH"]
    assert reasons["tokenizers.encode"] == []
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


def test_offsets_that_a_kernel_lacks_are_a_reason():
    identity = lz.register_tokenizer(tiktoken_encoding(R50K))
    arguments = lz.tokenizer_arguments(TEXTS, identity, return_offsets=True) | {"bpe_offsets": False}
    report = lz.explain("tokenize.encode", **arguments)
    reasons = {c.kernel_id: [r.code for r in c.reasons] for c in report.candidates}
    assert reasons["bpe.tokenize.encode"] == reasons["tiktoken.encode"] == ["OFFSETS_UNSUPPORTED"]


LOCKED = """
import layerzero as lz
from small_tokenizer import build
tokenizer = build()
identity = lz.register_tokenizer(tokenizer)
assert lz.tokenize("hello there", identity)["input_ids"] == tokenizer.encode("hello there").ids
print([(row["kernel_id"], row["count"]) for row in lz.metrics().selections if row["operation"] == "tokenize.encode"])
"""


def test_the_environment_locks_and_metrics_count():
    support = os.path.dirname(os.path.abspath(sys.modules["small_tokenizer"].__file__))
    path = os.pathsep.join([support, *filter(None, sys.path)])
    environment = os.environ | {"LAYERZERO_LOCK_TOKENIZE_ENCODE": "tokenizers.encode", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", LOCKED], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[('tokenizers.encode', 1)]", done.stderr


def test_a_library_that_a_policy_denies_is_not_asked():
    parts = json.loads(build().to_str())
    parts["model"]["dropout"] = 0.0001  # the own tokenizer refuses it
    identity = lz.register_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(parts)))
    assert "ids" in lz.tokenizer_kernels(identity)
    with lz.policy(allow_sources=["bpe"]), pytest.raises(lz.LayerZeroError):
        lz.tokenize(TEXTS, identity)


def test_decoded_texts_follow_locks_too():
    identity = lz.register_tokenizer(build())
    rows = lz.tokenize(TEXTS, identity)["input_ids"]
    wanted = build().decode_batch(rows)
    for kernel in ("bpe.tokenize.decode", "tokenizers.decode"):
        with lz.policy(locks={"tokenize.decode": kernel}):
            assert lz.detokenize(rows, identity) == wanted


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
    with lz.policy(locks={"tokenize.encode": "bpe.tokenize.encode"}):  # the plain text alone
        assert lz.tokenize("plain", identity)["input_ids"] == tokenizer.encode("plain").ids
    with pytest.raises(InvalidRequestError, match="surrogate|texts"):
        lz.tokenize(["\ud800"], identity)


def test_a_tokenizer_of_another_model_has_reasons():
    parts = json.loads(build().to_str())
    parts["model"] = {"type": "WordLevel", "vocab": {"hello": 0, "<unk>": 1}, "unk_token": "<unk>"}
    parts["added_tokens"], parts["post_processor"] = [], None
    identity = lz.register_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(parts)))
    assert "wanted BPE, got WordLevel" in lz.tokenizer_kernels(identity)["ids"]
    assert lz.tokenize("hello", identity)["input_ids"] == [0]


SPLIT = ["\u00e9\u65e5\u672c\U0001f469\u200d\U0001f680 x", "\u20ac\u20ac", "a"]


def rows_of(tokenizer_id, vocab_size):
    """Ids that begin or end inside characters, and ids in no order."""
    source, rows = random.Random(5), []
    for text in SPLIT:
        ids = lz.tokenize(text, tokenizer_id)["input_ids"]
        rows += [ids[a:b] for a in range(len(ids)) for b in range(a, len(ids) + 1)]
    return rows + [[source.randrange(vocab_size) for _ in range(12)] for _ in range(200)]


def tensors_of(rows, dtype):
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return torch.tensor([number for row in rows for number in row], dtype=dtype), ends


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", [*BUILDERS, "tiktoken", "sentencepiece"])
def test_texts_of_any_ids_are_the_librarys_from_every_kernel(name, dtype):
    """Byte for byte, also where ids are parts of characters: U+FFFD is stored for incomplete ones."""
    others = {"tiktoken": lambda: tiktoken_encoding(R50K), "sentencepiece": sentencepiece_model}
    identity = lz.register_tokenizer(others[name]() if name in others else vocabulary(name))
    found = _find(identity)
    rows = rows_of(identity, min(found.vocab_size, 600))
    ids, starts = tensors_of(rows, dtype)
    for skip in (True, False):
        texts = found.wrapped.decode(rows, skip)
        wanted = [text.encode() for text in texts]
        assert lz.detokenize(rows, identity, skip_special_tokens=skip) == texts
        arguments = {"tokenizer": found.number, "capacity": 40000, "skip_special_tokens": skip} | found.served("decode")
        kernels = [
            c.kernel_id for c in lz.explain("tokenize_decode", ids, starts, **arguments).candidates if c.admissible
        ]
        assert kernels
        for kernel in kernels:
            if kernel.startswith(("ref.", "torch.")):
                continue
            text, ends = lz.run("tokenize_decode", ids, starts, **arguments, kernel=kernel)
            bounds = [0, *ends.tolist()]
            got = [bytes(text[a:b].tolist()) for a, b in zip(bounds, bounds[1:], strict=False)]
            assert got == wanted, kernel
    assert any("\ufffd" in text for text in texts) or name.startswith("metaspace")  # which has no tokens of bytes


@pytest.mark.parametrize("number", [-1, 2**32 + 1, 2**40])
def test_an_id_that_no_library_takes_is_an_error_and_never_cut(number):
    found = _find(lz.register_tokenizer(build()))
    arguments = {"tokenizer": found.number, "capacity": 40} | found.served("decode")
    with pytest.raises(lz.LayerZeroError):
        lz.tokenize_decode(torch.tensor([5, number]), torch.tensor([0, 2]), **arguments)
    with pytest.raises(lz.LayerZeroError):
        found.decode([[5, number]], True)


def test_an_id_that_is_no_token_is_what_it_is_to_the_library():
    found = _find(lz.register_tokenizer(build()))
    assert found.decode([[5, found.vocab_size + 7]], True) == found.wrapped.decode(
        [[5]], True
    )  # tokenizers leaves it out
    found = _find(lz.register_tokenizer(tiktoken_encoding(R50K)))
    with pytest.raises(InvalidRequestError, match="ids of this tokenizer's vocabulary"):
        found.decode([[5, found.vocab_size + 7]], True)
