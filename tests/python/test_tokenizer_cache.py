"""The token cache and its policy keys, wrapped tokenizers."""

import warnings

import pytest

tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from small_tokenizer import build  # noqa: E402
from vocabularies import vocabulary  # noqa: E402


def test_the_cache_checks_a_share_of_its_hits():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache("model")
    for _ in range(301):
        ids = lz.tokenize("hello there", identity, cache=cache)["input_ids"]
    assert ids == build().encode("hello there").ids
    assert cache.stats() | {"bytes": 0} == {
        "hits": 300, "misses": 1, "validated": 12, "mismatches": 0, "evicted": 0, "bytes": 0, "entries": 1,
    }  # fmt: skip
    with lz.policy(tokenizer_cache={"validation_rate_warmup": 1}):  # proves: tokenizer_cache.validation_rate_warmup
        lz.tokenize("hello there", identity, cache=cache)
    assert cache.stats()["validated"] == 13
    fresh = lz.TokenCache("model")
    with lz.policy(tokenizer_cache={"validation_rate_initial": 0}):  # proves: tokenizer_cache.validation_rate_initial
        for _ in range(101):
            lz.tokenize("hello there", identity, cache=fresh)
    assert fresh.stats()["validated"] == 0
    rates = {"validation_rate_warmup": 0, "validation_rate_stable": 1}
    with lz.policy(tokenizer_cache=rates):  # proves: tokenizer_cache.validation_rate_stable
        for _ in range(1002):
            lz.tokenize("hello there", identity, cache=fresh)
    assert fresh.stats()["validated"] == 2


def test_a_wrong_entry_is_dropped_and_reported():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache("model")
    lz.tokenize("hello there", identity, cache=cache)
    for entry in cache._entries.values():
        entry.ids = (1, 2, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [lz.tokenize("hello there", identity, cache=cache)["input_ids"] for _ in range(12)]
    assert [type(w.message) for w in caught] == [lz.TokenCacheWarning]
    assert answers[-1] == build().encode("hello there").ids
    assert cache.stats()["mismatches"] == 1


def test_entries_belong_to_models_and_are_bounded():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache("model", max_bytes=20_000)
    assert cache.namespace(identity) == f"model:{identity}"
    off = {"enable_namespace_isolation": False}
    with lz.policy(tokenizer_cache=off):  # proves: tokenizer_cache.enable_namespace_isolation
        assert cache.namespace(identity) == identity
    for number in range(500):
        lz.tokenize(f"text {number}", identity, cache=cache)
    assert cache.stats()["bytes"] <= 20_000
    assert cache.stats()["evicted"] > 300
    lz.tokenize("x" * 30_000, identity, cache=cache)
    assert cache.stats()["bytes"] <= 20_000


def test_a_changed_model_has_entries_of_its_own():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache("one")
    for model in ("one", "two", "one"):
        cache.model_id = model
        lz.tokenize("hello there", identity, cache=cache)
    assert (cache.stats()["entries"], cache.stats()["misses"], cache.stats()["hits"]) == (2, 2, 1)


def small_transformers_tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=vocabulary("gpt2"), pad_token="<|pad|>", eos_token="</s>", bos_token="<s>",
        chat_template="{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}",
    )  # fmt: skip


@pytest.mark.parametrize("cached", [False, True])
def test_wrapped_tokenizers_answer_as_the_native_one(cached):
    native = small_transformers_tokenizer()
    wrapped = lz.wrap_tokenizer(native, cache=lz.TokenCache("m") if cached else None)
    assert isinstance(wrapped, type(native))
    assert wrapped.tokenizer_id == lz.tokenizer_identity(native)
    texts = ["hello there", "a longer text, it's 123", "<|im_start|>zebra"]
    for options in (
        {}, {"padding": True}, {"padding": "max_length", "max_length": 40}, {"truncation": True, "max_length": 5},
        {"truncation": True, "max_length": 500}, {"add_special_tokens": False}, {"return_offsets_mapping": True},
        {"padding": True, "return_tensors": "pt"}, {"return_token_type_ids": True}, {"return_attention_mask": False},
        {"return_special_tokens_mask": True}, {"return_length": True}, {"padding": True, "pad_to_multiple_of": 8},
        {"text_pair": ["x", "y", "z"]},
    ):  # fmt: skip
        for asked in (texts, texts[1]):
            if isinstance(asked, str) and "text_pair" in options:
                continue
            if options.get("return_tensors") and isinstance(asked, str):
                continue
            mine, theirs = wrapped(asked, **options), native(asked, **options)
            assert mine.keys() == theirs.keys(), options
            for name in theirs:
                same = mine[name] == theirs[name]
                assert same if isinstance(same, bool) else bool(same.all()), (options, name)
    assert wrapped.encode("hello") == native.encode("hello")
    assert wrapped.decode(native.encode("hello")) == native.decode(native.encode("hello"))
    messages = [{"role": "user", "content": "hello"}]
    assert wrapped.apply_chat_template(messages)["input_ids"] == native.apply_chat_template(messages)["input_ids"]


def test_wrapped_tokenizers_follow_added_tokens_and_can_be_off():
    native = small_transformers_tokenizer()
    assert lz.wrap_tokenizer(native, enabled=False) is native
    wrapped = lz.wrap_tokenizer(native)
    wrapped.add_tokens(["there"])
    native.add_tokens(["there"])
    assert wrapped("hello there")["input_ids"] == native("hello there")["input_ids"]
    with pytest.raises(lz.LayerZeroError, match="fast tokenizer"):
        lz.wrap_tokenizer(vocabulary("gpt2"))
