"""The own tokenizer has the ids of the libraries: vocabularies of many kinds, random texts; what it refuses."""

import json
import random

import pytest

tokenizers = pytest.importorskip("tokenizers")

import layerzero as lz  # noqa: E402
from layerzero.errors import InvalidRequestError, LayerZeroError  # noqa: E402
from layerzero.tokenizers.libraries import wrap  # noqa: E402
from layerzero.tokenizers.own import OwnTokenizer, json_of, json_of_sentencepiece, proven  # noqa: E402
from small_tokenizer import build  # noqa: E402
from vocabularies import (  # noqa: E402
    BUILDERS,
    CL100K,
    LLAMA3,
    O200K,
    R50K,
    TEKKEN,
    added_tokens,
    corpus,
    is_text,
    outcome,
    random_text,
    sentencepiece_model,
    tiktoken_encoding,
    vocabulary,
)

COUNT = 800  # random texts of a vocabulary; bench/tokenization.py compares a million
# Kinds whose normalizer the own tokenizer leaves to the library where a text could change.
NORMALIZED = {"qwen2", "lowercase"}


def texts_for(added, count=COUNT, seed=1):
    source = random.Random(seed)
    fixed = ["", " ", "  ", " a", "a ", "\n", "a\n  ", "<s>", "<s> a</s>", " zebra zeb zebr", "x" * 3000, " " * 500]
    return [random_text(source, added) for _ in range(count)] + fixed


@pytest.mark.parametrize("name", BUILDERS)
def test_ids_offsets_and_texts_are_the_librarys(name):
    tokenizer = vocabulary(name)
    own = OwnTokenizer(tokenizer.to_str())
    texts = texts_for(added_tokens(tokenizer)) + [page[:5000] for page in corpus()[:4]]
    served = 0
    for specials in (True, False):
        wanted = tokenizer.encode_batch(texts, add_special_tokens=specials)
        ids, spans = own.encode(texts, own.has_offsets, specials)
        for index, one in enumerate(wanted):
            if ids[index] is None:
                continue
            served += 1
            assert ids[index] == one.ids, texts[index]
            if own.has_offsets:
                assert spans[index] == one.offsets, texts[index]
        rows = [one.ids for one in wanted]
        for skip in (True, False):
            assert own.decode(rows, skip) == tokenizer.decode_batch(rows, skip_special_tokens=skip)
    assert served == 2 * len(texts) if name not in NORMALIZED else served > 20


@pytest.mark.parametrize("pattern", [R50K, CL100K, LLAMA3, O200K, TEKKEN])
def test_tiktokens_ids(pattern):
    pytest.importorskip("tiktoken")
    encoding = tiktoken_encoding(pattern)
    own = OwnTokenizer(json_of(encoding))
    texts = texts_for(["<|end|>"])
    assert own.encode(texts, False, True)[0] == encoding.encode_batch(texts, allowed_special="all")


@pytest.mark.parametrize("options", [{}, {"byte_fallback": False}, {"add_dummy_prefix": False}], ids=str)
def test_sentencepieces_ids(options):
    pytest.importorskip("sentencepiece")
    processor = sentencepiece_model(**options)
    own = OwnTokenizer(json.dumps(json_of_sentencepiece(processor)))
    texts = texts_for(["<unk>", "</s>", "<0x41>"])
    assert own.encode(texts, False, True)[0] == processor.encode(texts, out_type=int)


@pytest.mark.parametrize(
    "make",
    [lambda: vocabulary("llama3"), lambda: vocabulary("gemma"), lambda: tiktoken_encoding(CL100K), sentencepiece_model],
    ids=["llama3", "gemma", "tiktoken", "sentencepiece"],
)
def test_texts_with_lone_surrogates_have_the_librarys_outcome(make):
    tokenizer = make()
    wrapped, source = wrap(tokenizer), random.Random(4)
    own, identity = OwnTokenizer(json_of(wrapped.identified)), lz.register_tokenizer(tokenizer)
    texts = [random_text(source, ["<s>"], 0.5) for _ in range(200)] + ["\ud83d\ude00", "a\udfff"]
    lone = [text for text in texts if not is_text(text)]
    assert 80 < len(lone) < 130
    assert own.encode(texts, False, True)[0] == [
        own.encode([t], False, True)[0][0] if is_text(t) else None for t in texts
    ]
    cache = lz.TokenCache("surrogates", max_bytes=1 << 20)
    for text in lone:
        theirs = outcome(lambda text=text: wrapped.encode([text], False, True)[0][0])
        for kept in (None, cache, cache):
            assert outcome(lambda text=text, kept=kept: lz.tokenize(text, identity, cache=kept)["input_ids"]) == theirs
        assert (type(theirs) is list) == (wrapped.name == "tiktoken")


def test_a_wrapped_tokenizer_has_the_tokenizers_own_error():
    transformers = pytest.importorskip("transformers")
    native = transformers.PreTrainedTokenizerFast(tokenizer_object=vocabulary("llama3"))
    wrapped = lz.wrap_tokenizer(native, cache=lz.TokenCache("surrogates", max_bytes=1 << 20))
    for one in (native, wrapped):
        for call in (one, one.encode):
            with pytest.raises(TypeError, match="TextEncodeInput must be"):
                call("a\ud800b")
        with pytest.raises(TypeError, match="TextEncodeInput must be"):
            one(["plain", "a\ud800b"])
    assert wrapped("plain")["input_ids"] == native("plain")["input_ids"]


def test_what_is_not_served_is_refused_with_a_reason():
    base = json.loads(build().to_str())

    def reason(**changes):
        with pytest.raises(LayerZeroError) as refused:
            OwnTokenizer(json.dumps(base | changes))
        return str(refused.value)

    assert "known regular expressions" in reason(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}
    )
    assert "NFC, NFKC" in reason(normalizer={"type": "StripAccents"})
    assert "model.type: wanted BPE, got WordPiece" in reason(model={"type": "WordPiece", "vocab": {}})
    assert "dropout" in reason(model=base["model"] | {"dropout": 0.1})
    assert "end_of_word_suffix" in reason(model=base["model"] | {"end_of_word_suffix": "</w>"})
    assert "single_word" in reason(added_tokens=[{"id": 0, "content": "<s>", "single_word": True}])
    assert "post_processor" in reason(post_processor={"type": "Another"})
    assert "decoder" in reason(decoder={"type": "WordPiece"})
    assert "no such key" in reason(model=base["model"] | {"new_key": 1})
    assert "tokens of the vocabulary" in reason(model=base["model"] | {"merges": [["a", "nothing"]]})


def test_texts_that_a_normalizer_could_change_are_left_to_the_library():
    own = OwnTokenizer(vocabulary("qwen2").to_str())
    ids, _ = own.encode(["caf\u00e9", "cafe\u0301", "\u1100\u1161", "\ud55c", "\ud800"], False, True)
    assert [row is None for row in ids] == [False, True, True, False, True]


def test_the_proof_finds_other_ids():
    tokenizer = build()
    wrapped = wrap(tokenizer)
    identity_of_another = "0" * 64
    own, reasons = proven(wrapped, identity_of_another)
    assert own is None
    assert "TOKENIZER_ID_MISMATCH" in reasons["ids"]

    class Wrong:
        name, identified = wrapped.name, wrapped.identified
        decode = staticmethod(wrapped.decode)

        @staticmethod
        def encode(texts, offsets, specials):
            ids, places = wrapped.encode(texts, offsets, specials)
            ids[2] = ids[2][::-1]
            return ids, places

    from layerzero.tokenizers import tokenizer_identity

    _, reasons = proven(Wrong, tokenizer_identity(tokenizer))
    assert "TOKENIZER_ID_MISMATCH" in reasons["ids"]


def test_unicode_tables_are_the_librarys():
    """A letter, a number or white space for the regular expressions of tokenizers is one for the own splitters."""
    source = random.Random(3)
    codes = [code for code in range(0x3100) if not 0xD800 <= code < 0xE000]
    codes += [source.randrange(0x3100, 0xD800) for _ in range(2000)] + [
        source.randrange(0xE000, 0x110000) for _ in range(4000)
    ]
    tokenizer = vocabulary("o200k")
    own = OwnTokenizer(tokenizer.to_str())
    texts = [f"a{chr(code)}A{chr(code)} {chr(code)}'s{chr(code)}1{chr(code)}{chr(code)}\n" for code in codes]
    assert own.encode(texts, False, True)[0] == [one.ids for one in tokenizer.encode_batch(texts)]


def test_tiktoken_specials_that_begin_others_are_refused():
    tiktoken = pytest.importorskip("tiktoken")
    encoding = tiktoken.Encoding(
        "x", pat_str=R50K, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={"<a": 256, "<ab": 257}
    )
    with pytest.raises(InvalidRequestError, match="none begins another"):
        json_of(encoding)
