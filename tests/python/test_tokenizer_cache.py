"""The token cache and its policy keys, wrapped tokenizers."""

import concurrent.futures
import copy
import gc
import os
import pickle
import sys
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


def test_a_wrong_entry_is_dropped_and_reported(monkeypatch):
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache("model")
    library = lz.tokenizers._find(identity).wrapped
    assert lz.tokenizer_kernels(identity) == {}  # proven with the true library
    with monkeypatch.context() as lying, lz.policy(locks={"tokenize.encode": "tokenizers.encode"}):
        lying.setattr(library, "encode", lambda texts, offsets, specials: ([[1, 2, 3] for _ in texts], []))
        assert lz.tokenize("hello there", identity, cache=cache)["input_ids"] == [1, 2, 3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [lz.tokenize("hello there", identity, cache=cache)["input_ids"] for _ in range(12)]
    assert [type(w.message) for w in caught] == [lz.TokenCacheWarning]
    assert caught[0].filename == __file__
    right = build().encode("hello there").ids
    assert answers == [[1, 2, 3]] * 9 + [right] * 3
    assert cache.stats()["mismatches"] == 1 and cache.stats()["validated"] == 1


def test_lists_take_hits_and_misses_and_answers_belong_to_the_caller():
    tokenizer = build()
    identity, cache = lz.register_tokenizer(tokenizer), lz.TokenCache()
    texts = [f"text {number % 7}" for number in range(20)] + ["", "caf\u00e9"]
    wanted = [tokenizer.encode(text).ids for text in texts]
    for _ in range(25):
        rows = lz.tokenize(texts, identity, cache=cache)["input_ids"]
        assert rows == wanted
        for row in rows:
            row.clear()
    assert cache.stats()["entries"] == 9 and cache.stats()["misses"] == 22
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert lz.tokenize(tuple(texts), identity, add_special_tokens=False, cache=cache)["input_ids"] == plain
    assert cache.stats()["entries"] == 18
    cache.clear()
    assert cache.stats()["entries"] == cache.stats()["bytes"] == 0
    assert lz.tokenize([], identity, cache=cache)["input_ids"] == []


class Text(str):
    """A str with a hash of its own, which a cache must not rely on."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return True


def test_other_texts_than_plain_ones():
    tokenizer = build()
    identity, cache = lz.register_tokenizer(tokenizer), lz.TokenCache()
    for text in ("one", "another"):
        assert lz.tokenize(Text(text), identity, cache=cache)["input_ids"] == tokenizer.encode(text).ids
        assert lz.tokenize([Text(text)], identity, cache=cache)["input_ids"] == [tokenizer.encode(text).ids]
    for wrong in (b"bytes", ["a", b"bytes"], [1], [None]):
        for _ in range(2):
            with pytest.raises((lz.LayerZeroError, TypeError)):
                lz.tokenize(wrong, identity, cache=cache)
    before = cache.stats()["entries"]
    with pytest.raises(lz.LayerZeroError):
        lz.tokenize(["fine", "\ud800"], identity, cache=cache)
    assert cache.stats()["entries"] == before
    with pytest.raises(lz.LayerZeroError, match="tokenizer_id"):
        lz.tokenize("one", "0" * 64, cache=cache)


def test_a_path_names_a_tokenizer_of_a_cache_too(tmp_path):
    build().save(str(tmp_path / "tokenizer.json"))
    cache = lz.TokenCache()
    for _ in range(3):
        assert lz.tokenize("hello", str(tmp_path), cache=cache)["input_ids"] == build().encode("hello").ids
    assert lz.tokenize("hello", lz.tokenizer_identity(build()), cache=cache)["input_ids"]
    assert (cache.stats()["hits"], cache.stats()["misses"]) == (3, 1)


def test_a_file_that_changes_is_another_tokenizer(tmp_path):
    cache, file = lz.TokenCache(), tmp_path / "tokenizer.json"
    for number, tokenizer in enumerate((build(), vocabulary("gpt2"))):
        tokenizer.save(str(file))
        os.utime(file, (number, number))
        for _ in range(2):
            assert (
                lz.tokenize("hello there", str(file), cache=cache)["input_ids"] == tokenizer.encode("hello there").ids
            )
    assert cache.stats()["misses"] == cache.stats()["hits"] == 2


def test_names_of_models_and_rates_are_any():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache("a\0b \ud800", max_bytes=1 << 70)
    for rate in (1e-30, 1.0):
        with lz.policy(tokenizer_cache={"validation_rate_initial": rate}):
            for _ in range(2):
                assert lz.tokenize("hello", identity, cache=cache)["input_ids"] == build().encode("hello").ids
    assert cache.namespace(identity) == f"a\0b \ud800:{identity}"
    assert (cache.stats()["entries"], cache.stats()["hits"], cache.stats()["validated"]) == (1, 3, 2)


def test_a_policy_that_changes_is_followed():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache()
    for rate, validated in ((1.0, 3), (0.0, 3), (0.1, 4)):  # of hits 1 to 3, none of 4 to 7, 10 of 8 to 11
        lz.configure(tokenizer_cache={"validation_rate_initial": rate})
        for _ in range(4):
            lz.tokenize("hello", identity, cache=cache)
        assert cache.stats()["validated"] == validated


def test_a_difference_that_is_an_error_leaves_the_cache_usable(monkeypatch):
    native = small_transformers_tokenizer()
    cache = lz.TokenCache()
    wrapped = lz.wrap_tokenizer(native, cache=cache)
    library = lz.tokenizers._find(wrapped.tokenizer_id).wrapped
    assert lz.tokenizer_kernels(wrapped.tokenizer_id) == {}
    with monkeypatch.context() as lying, lz.policy(locks={"tokenize.encode": "tokenizers.encode"}):
        lying.setattr(library, "encode", lambda texts, offsets, specials: ([[1, 2, 3] for _ in texts], []))
        assert wrapped.encode("hello there") == [1, 2, 3]
    with lz.policy(tokenizer_cache={"validation_rate_initial": 1}), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(lz.TokenCacheWarning, match="11 characters"):
            wrapped.encode("hello there")
        assert cache.stats()["entries"] == 0 and cache.stats()["mismatches"] == 1
        assert wrapped.encode("hello there") == wrapped.encode("hello there") == native.encode("hello there")
    assert cache.stats()["mismatches"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks of processes with threads
def test_a_forked_process_has_the_entries():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache()
    wanted = lz.tokenize("hello", identity, cache=cache)["input_ids"]
    child = os.fork()
    if child == 0:
        try:
            same = lz.tokenize("hello", identity, cache=cache)["input_ids"] == wanted
            os._exit(0 if same and cache.stats()["hits"] == 1 else 1)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0 and cache.stats()["hits"] == 0


def test_threads_clear_what_others_read():
    tokenizer = build()
    identity, cache = lz.register_tokenizer(tokenizer), lz.TokenCache()
    texts = [f"text {number}" for number in range(30)]
    wanted = [tokenizer.encode(text).ids for text in texts]

    class Ring:  # the garbage collector drops it wherever it runs
        def __init__(self):
            self.own = self

        def __del__(self):
            cache.clear()

    def run(number):
        for _ in range(200):
            Ring()
            if lz.tokenize(texts, identity, cache=cache)["input_ids"] != wanted:
                return False
        return True

    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert all(pool.map(run, range(4)))
    finally:
        gc.set_threshold(*before)
    stats = cache.stats()
    assert stats["hits"] + stats["misses"] == 4 * 200 * 30 and stats["mismatches"] == 0
    cache.clear()
    assert cache.stats()["entries"] == cache.stats()["bytes"] == 0


def test_a_cleared_cache_keeps_no_tokenizer():
    identity, cache = lz.register_tokenizer(build()), lz.TokenCache()
    tokenizer = lz.tokenizers._find(identity)
    wanted = lz.tokenize("hello", identity)["input_ids"]
    before = sys.getrefcount(tokenizer)
    for _ in range(2):
        assert lz.tokenize("hello", identity, cache=cache)["input_ids"] == wanted
        assert sys.getrefcount(tokenizer) > before
        cache.clear()
        assert sys.getrefcount(tokenizer) == before


def test_threads_share_a_cache():
    tokenizer = build()
    identity, cache = lz.register_tokenizer(tokenizer), lz.TokenCache(max_bytes=4000)
    texts = [f"text {number}" for number in range(30)]
    wanted = [tokenizer.encode(text).ids for text in texts]

    def run(_):
        return all(lz.tokenize(texts, identity, cache=cache)["input_ids"] == wanted for _ in range(50))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))
    stats = cache.stats()
    assert stats["hits"] + stats["misses"] == 4 * 50 * 30 and stats["bytes"] <= 4000 and stats["mismatches"] == 0


def test_copies_of_a_cache_have_its_settings():
    cache = lz.TokenCache("model", max_bytes=1234)
    for again in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (again.model_id, again.max_bytes, again.stats()["entries"]) == ("model", 1234, 0)


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
            assert type(mine) is type(theirs) and mine.is_fast and mine.n_sequences == theirs.n_sequences
            for index in range(1 if isinstance(asked, str) else len(asked)):
                assert mine.tokens(index) == theirs.tokens(index)
                assert mine.word_ids(index) == theirs.word_ids(index)
            assert mine.char_to_token(0) == theirs.char_to_token(0) and mine[0].offsets == theirs[0].offsets
            assert dict(pickle.loads(pickle.dumps(mine)).items()).keys() == theirs.keys()
    assert wrapped.encode("hello") == native.encode("hello")
    assert wrapped.decode(native.encode("hello")) == native.decode(native.encode("hello"))
    messages = [{"role": "user", "content": "hello"}]
    assert wrapped.apply_chat_template(messages)["input_ids"] == native.apply_chat_template(messages)["input_ids"]


@pytest.mark.parametrize("cached", [False, True])
def test_a_call_with_one_text_is_the_native_ones(cached, caplog):
    native = small_transformers_tokenizer()
    native.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    wrapped = lz.wrap_tokenizer(native, cache=lz.TokenCache("m") if cached else None)
    for options in ({}, {"add_special_tokens": False}):
        for text in ("hello there", "", "caf\u00e9 <s>", "hello there"):
            mine, theirs = wrapped(text, **options), native(text, **options)
            assert dict(mine) == dict(theirs) and list(mine) == list(theirs) and type(mine) is type(theirs)
            assert mine.tokens() == theirs.tokens() and len(mine.encodings) == 1
            assert wrapped.encode(text, **options) == native.encode(text, **options)
            assert dict(copy.deepcopy(mine)) == dict(theirs)
    wrapped.model_max_length = 2
    with caplog.at_level("WARNING"):
        transformers = pytest.importorskip("transformers")
        transformers.utils.logging.enable_propagation()
        try:
            wrapped("a longer text")
        finally:
            transformers.utils.logging.disable_propagation()
    assert "longer than the specified maximum" in caplog.text
    with pytest.raises((TypeError, ValueError)):
        wrapped(None)
    assert wrapped(["a", "b"])["input_ids"] == native(["a", "b"])["input_ids"]
    assert wrapped("a", "b")["input_ids"] == native("a", "b")["input_ids"]


@pytest.mark.parametrize("cached", [False, True])
def test_types_of_a_template_are_the_native_ones(cached):
    native = small_transformers_tokenizer()
    native.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    native.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A:0 <s>:0 </s>:2",
        special_tokens=[(name, native.convert_tokens_to_ids(name)) for name in ("<s>", "</s>")],
    )
    wrapped = lz.wrap_tokenizer(native, cache=lz.TokenCache("m") if cached else None)
    for text in ("hello there", ["hello", "a longer text"]):
        assert dict(wrapped(text)) == dict(native(text))
    assert wrapped("hello")["token_type_ids"][-1] == 2 and wrapped.encode("hello") == native.encode("hello")


@pytest.mark.parametrize("cached", [False, True])
def test_wrapped_tokenizers_follow_replaced_parts(cached):
    def no_template(tokenizer):
        tokenizer.backend_tokenizer.post_processor = tokenizers.processors.ByteLevel()

    def lower(tokenizer):
        tokenizer.backend_tokenizer.normalizer = tokenizers.normalizers.Lowercase()

    def no_bos(tokenizer):
        tokenizer.add_bos_token = False

    for change in (no_template, lower, no_bos):
        native = small_transformers_tokenizer()
        wrapped = lz.wrap_tokenizer(native, cache=lz.TokenCache("m") if cached else None)
        before = wrapped.encode("Hello There")
        for tokenizer in (native, wrapped):
            change(tokenizer)
        for text in ("Hello There", ["Hello There"]):
            assert wrapped(text)["input_ids"] == native(text)["input_ids"]
        assert wrapped.encode("Hello There") == native.encode("Hello There") != before


def test_wrapped_tokenizers_can_be_copied_and_wrapped_again():
    native = small_transformers_tokenizer()
    wrapped = lz.wrap_tokenizer(native, cache=lz.TokenCache("m"))
    for again in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)), lz.wrap_tokenizer(wrapped)):
        assert again("hello there")["input_ids"] == native("hello there")["input_ids"]
        assert again.tokenizer_id == wrapped.tokenizer_id and isinstance(again, type(native))
    assert again._layerzero_base is type(native)


def test_methods_of_a_tokenizers_own_class_stay():
    native = small_transformers_tokenizer()

    class Fills(type(native)):
        def _encode_plus(self, text, *arguments, **options):
            return super()._encode_plus(text.replace("<fill>", "zebra"), *arguments, **options)

    class Calls(type(native)):
        def __call__(self, text, **options):
            return super().__call__(text + " there", **options)

    class Encodes(type(native)):
        def encode(self, text, **options):
            return [7, *super().encode(text, **options)]

    class Modes(type(native)):
        inputs = 0

        def _switch_to_input_mode(self):
            self.inputs += 1

    for base in (Fills, Calls, Encodes, Modes):
        own = copy.deepcopy(native)
        own.__class__ = base
        wrapped = lz.wrap_tokenizer(own)
        assert dict(wrapped("hello <fill>")) == dict(own("hello <fill>"))
        assert wrapped.encode("hello <fill>") == own.encode("hello <fill>")
    assert wrapped.inputs == own.inputs == 1


def test_wrapped_tokenizers_follow_added_tokens_and_can_be_off():
    native = small_transformers_tokenizer()
    assert lz.wrap_tokenizer(native, enabled=False) is native
    wrapped = lz.wrap_tokenizer(native)
    wrapped.add_tokens(["there"])
    native.add_tokens(["there"])
    assert wrapped("hello there")["input_ids"] == native("hello there")["input_ids"]
    with pytest.raises(lz.LayerZeroError, match="fast tokenizer"):
        lz.wrap_tokenizer(vocabulary("gpt2"))
