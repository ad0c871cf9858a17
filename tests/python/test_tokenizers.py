"""tokenize and detokenize: ids of the library, identity by what decides about ids."""

import json

import pytest

tokenizers = pytest.importorskip("tokenizers")

import layerzero as lz  # noqa: E402
from layerzero.errors import InvalidRequestError, UnknownNameError, WrongTypeError  # noqa: E402
from small_tokenizer import TEXTS, build  # noqa: E402


def test_ids_and_offsets_are_the_librarys():
    tokenizer = build()
    identity = lz.register_tokenizer(tokenizer)
    for special in (True, False):
        got = lz.tokenize(TEXTS, identity, return_offsets=True, add_special_tokens=special)
        expected = [tokenizer.encode(text, add_special_tokens=special) for text in TEXTS]
        assert got["input_ids"] == [e.ids for e in expected]
        assert got["offsets"] == [e.offsets for e in expected]
    assert list(lz.tokenize(TEXTS, identity)) == ["input_ids"]


def test_str_in_list_out():
    identity = lz.register_tokenizer(build())
    single = lz.tokenize("Hello world", identity)["input_ids"]
    assert lz.tokenize(["Hello world"], identity)["input_ids"] == [single]
    assert lz.detokenize(single, identity) == "Hello world"
    assert lz.detokenize([single, single], identity) == ["Hello world", "Hello world"]


@pytest.mark.parametrize("text", TEXTS[:4])
def test_round_trip(text):
    identity = lz.register_tokenizer(build())
    assert lz.detokenize(lz.tokenize(text, identity)["input_ids"], identity) == text


def test_identity_is_stable_and_ignores_padding():
    tokenizer = build()
    identity = lz.tokenizer_identity(tokenizer)
    assert len(identity) == 64
    assert set(identity) <= set("0123456789abcdef")
    assert lz.tokenizer_identity(tokenizers.Tokenizer.from_str(tokenizer.to_str())) == identity
    before = lz.tokenize(TEXTS, lz.register_tokenizer(tokenizer))
    tokenizer.enable_padding(length=40)
    tokenizer.enable_truncation(2)
    assert lz.register_tokenizer(tokenizer) == identity
    assert lz.tokenize(TEXTS, identity) == before


@pytest.mark.parametrize(
    "changes",
    [{"vocab_size": 262}, {"add_prefix_space": True}, {"lowercase": True}, {"special": ("<bos>", "</s>")}],
    ids=str,
)
def test_identity_tells_apart(changes):
    assert lz.tokenizer_identity(build(**changes)) != lz.tokenizer_identity(build())


def test_identity_sees_merges_order_added_tokens_and_template():
    base = json.loads(build().to_str())
    identity = lz.tokenizer_identity(tokenizers.Tokenizer.from_str(json.dumps(base)))
    merges = json.loads(json.dumps(base))
    merges["model"]["merges"][0], merges["model"]["merges"][1] = base["model"]["merges"][1], base["model"]["merges"][0]
    added = build()
    added.add_tokens(["zebra"])
    special = build()
    special.add_special_tokens(["zebra"])
    template = json.loads(json.dumps(base))
    template["post_processor"] = None
    others = [tokenizers.Tokenizer.from_str(json.dumps(changed)) for changed in (merges, template)]
    identities = {lz.tokenizer_identity(other) for other in (*others, added, special)}
    assert len(identities) == 4
    assert identity not in identities


def test_path_as_id(tmp_path):
    tokenizer = build()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert lz.register_tokenizer(tmp_path) == lz.tokenizer_identity(tokenizer)
    assert lz.tokenize("hello", str(tmp_path))["input_ids"] == tokenizer.encode("hello").ids


def test_refusals(tmp_path):
    identity = lz.register_tokenizer(build())
    with pytest.raises(UnknownNameError, match="TOKENIZER_ID_MISMATCH"):
        lz.tokenize("a", "0" * 64)
    with pytest.raises(UnknownNameError, match="does not exist"):
        lz.tokenize("a", str(tmp_path / "none.json"))
    with pytest.raises(UnknownNameError, match="does not exist"):  # as long as an identity is
        lz.tokenize("a", str(tmp_path / "none.json").ljust(64, "n")[-64:])
    with pytest.raises(WrongTypeError, match=r"texts\[1\]"):
        lz.tokenize(["a", b"b"], identity)
    with pytest.raises(WrongTypeError, match="tokenizer_id"):
        lz.tokenize("a", 7)
    with pytest.raises(WrongTypeError, match="tokenizer: wanted"):
        lz.register_tokenizer(object())
    with pytest.raises(InvalidRequestError, match=r"tokens\[1\]: wanted ids from 0"):
        lz.detokenize([[1], [-1]], identity)
    with pytest.raises(InvalidRequestError, match="100000"):
        lz.detokenize([100000], identity)
