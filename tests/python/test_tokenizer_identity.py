"""Identity of tokenizers: each part that decides about ids has its digest, its reason, and a test that provokes it."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers")

import layerzero as lz  # noqa: E402
from layerzero.tokenizers import tokenizer_digests, tokenizer_mismatches  # noqa: E402
from small_tokenizer import TEXTS, build  # noqa: E402


def changed(change):
    parts = json.loads(build().to_str())
    change(parts)
    return tokenizers.Tokenizer.from_str(json.dumps(parts))


def add_token(parts):
    token = parts["added_tokens"][0] | {"id": 999, "content": "<new>", "special": False}
    parts["added_tokens"].append(token)


# What is changed, and the parts whose digests say so besides the whole.
CHANGES = {
    "VOCAB_HASH_MISMATCH": lambda p: p["model"].update(dropout=0.5),
    "MERGES_HASH_MISMATCH": lambda p: p["model"]["merges"].reverse(),
    "NORMALIZER_MISMATCH": lambda p: p.update(normalizer={"type": "Lowercase"}),
    "PRETOKENIZER_MISMATCH": lambda p: p["pre_tokenizer"].update(add_prefix_space=True),
    "ADDED_TOKENS_MISMATCH": add_token,
    "SPECIAL_TOKENS_MISMATCH": lambda p: p.update(post_processor=None),
    "TOKENIZER_ID_MISMATCH": lambda p: p.update(decoder=None),
}


@pytest.mark.parametrize("code", sorted(CHANGES))
def test_a_changed_part_is_the_reason(code):
    digests = tokenizer_digests(build())
    reasons = tokenizer_mismatches(digests, changed(CHANGES[code]))
    assert {r.code for r in reasons} == {code, "TOKENIZER_ID_MISMATCH"}
    named = next(r for r in reasons if r.code == code)
    assert named.wanted == digests.to_dict()[named.field] != named.got
    assert all(len(value) == 64 for value in digests.to_dict().values())


def test_equal_tokenizers_have_no_reason():
    digests = tokenizer_digests(build())
    assert tokenizer_mismatches(digests, build()) == []
    assert tokenizer_mismatches({"vocab_hash": digests.vocab_hash}, build(lowercase=True)) == []
    assert lz.tokenizer_identity(build()) == digests.tokenizer_id
    with pytest.raises(lz.WrongTypeError, match="speed"):
        tokenizer_mismatches({"speed": ""}, build())


def test_an_unknown_identity_is_a_mismatch():
    with pytest.raises(lz.UnknownNameError, match="TOKENIZER_ID_MISMATCH"):
        lz.tokenize("x", "0" * 64)


def encoding(**changes):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)} | {b"he": 256, b"ll": 257, b"hell": 258}
    given = {"pat_str": r"\S+|\s+", "mergeable_ranks": ranks, "special_tokens": {"<end>": 300}} | changes
    return tiktoken.Encoding("test", **given)


def test_tiktoken_is_known_by_its_vocabulary():
    identity = lz.register_tokenizer(encoding())
    ids = lz.tokenize(["hello <end>", "naïve ☕"], identity)["input_ids"]
    assert ids[0] == [258, ord("o"), ord(" "), 300]
    assert lz.detokenize(ids, identity) == ["hello ", "naïve ☕"]
    assert lz.detokenize(ids[0], identity, skip_special_tokens=False) == "hello <end>"
    assert lz.register_tokenizer(encoding()) == identity
    others = [
        {"pat_str": r"\S|\s"},
        {"special_tokens": {"<end>": 301}},
        {"mergeable_ranks": {bytes([i]): i for i in range(256)}},
    ]
    assert len({identity, *(lz.tokenizer_identity(encoding(**other)) for other in others)}) == 4
    codes = {r.code for r in tokenizer_mismatches(tokenizer_digests(encoding()), encoding(**others[0]))}
    assert codes == {"TOKENIZER_ID_MISMATCH", "PRETOKENIZER_MISMATCH"}


def test_sentencepiece_is_known_by_its_model_file(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    text = tmp_path / "text"
    text.write_text("hello world\nhello there\nnaïve café\n" * 20)
    models = []
    for size in (40, 42):
        prefix = str(tmp_path / f"m{size}")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=prefix, vocab_size=size, model_type="bpe", minloglevel=2
        )
        models.append(f"{prefix}.model")
    identity = lz.register_tokenizer(models[0])
    processor = sentencepiece.SentencePieceProcessor(model_file=models[0])
    assert lz.tokenizer_identity(processor) == identity != lz.register_tokenizer(models[1])
    assert lz.tokenize("hello world", identity)["input_ids"] == processor.encode("hello world")
    assert lz.detokenize(lz.tokenize(["hello", "café"], identity)["input_ids"], identity) == ["hello", "café"]
    with pytest.raises(lz.InvalidRequestError, match="OFFSETS_UNSUPPORTED"):
        lz.tokenize("hello", identity, return_offsets=True)


def test_offsets_only_where_the_library_gives_them():
    with pytest.raises(lz.InvalidRequestError, match="OFFSETS_UNSUPPORTED.*tiktoken"):
        lz.tokenize("hello", lz.register_tokenizer(encoding()), return_offsets=True)
    assert "offsets" in lz.tokenize(TEXTS, lz.register_tokenizer(build()), return_offsets=True)


def test_other_tokenizers_are_known_by_their_state():
    class Own:
        def __init__(self, words):
            self.words = words

        def __getstate__(self):
            return {"words": self.words}

    assert tokenizer_digests(Own(["a"])) == tokenizer_digests(Own(["a"])) != tokenizer_digests(Own(["b"]))
    with pytest.raises(lz.WrongTypeError, match="got object"):
        tokenizer_digests(object())
