"""Transformers tokenizers whose texts are encoded by tokenize.encode: a subclass of the tokenizer's own class."""

import copy
from collections.abc import Sequence
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerFast

from layerzero import tokenizers
from layerzero._layerzero import token_cache_encode
from layerzero.errors import InvalidRequestError, WrongTypeError
from layerzero.tokenizers.cache import TokenCache

# The options of a call that are answered here; a call with another one that is not at its default goes to the tokenizer.
_ANSWERED = {
    "add_special_tokens", "padding_strategy", "truncation_strategy", "max_length", "stride", "pad_to_multiple_of",
    "padding_side", "return_tensors", "return_token_type_ids", "return_attention_mask", "return_offsets_mapping",
    "verbose",
}  # fmt: skip
_MOST_COMPARED = 20_000  # characters of the parts that a call compares, once they may have been changed
# What BatchEncoding's constructor sets, if it is that of the releases that were read: then it need not run.
_IS_PLAIN = vars(BatchEncoding({"input_ids": [0]}, n_sequences=1)) == {
    "data": {"input_ids": [0]},
    "_encodings": None,
    "_n_sequences": 1,
}


def _value(strategy: Any, absent: str) -> str:
    return str(getattr(strategy, "value", strategy) or absent)


class _Encodings(Sequence):
    """What BatchEncoding has of each text besides ids (words, characters, tokens): the tokenizer's own answer to the same
    call, which is computed when it is first read."""

    __slots__ = ("_call", "_items")

    def __init__(self, tokenizer: Any, text: Any, options: dict[str, Any]) -> None:
        self._call: Any = (tokenizer, text, options)
        self._items: list[Any] | None = None

    def _read(self) -> list[Any]:
        if self._items is None:
            tokenizer, text, options = self._call
            self._items = tokenizer._layerzero_base._encode_plus(tokenizer, text, **options).encodings
        return self._items

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __len__(self) -> int:
        return len(self._read())

    def __bool__(self) -> bool:
        return True  # a call has at least one text

    def __reduce__(self) -> Any:
        return list, (self._read(),)


def _answer(data: dict[str, Any], encodings: _Encodings) -> Any:
    if not _IS_PLAIN:
        return BatchEncoding(data, encodings, n_sequences=1)
    answer = object.__new__(BatchEncoding)
    answer.data, answer._encodings, answer._n_sequences = data, encodings, 1
    return answer


class _Named:
    """What every wrapped tokenizer has; `wrapped` puts a class of these before the tokenizer's own one."""

    tokenizer_id: str
    _layerzero_base: type
    _layerzero_cache: TokenCache | None
    _layerzero_size: int
    _layerzero_has_types: bool  # some token of a text alone has another type than 0
    _layerzero_parts: tuple[str, ...] | None  # None: nobody could change a part; (): they are too large to compare

    @property
    def backend_tokenizer(self) -> Any:
        self._watch_parts()
        return super().backend_tokenizer  # type: ignore[misc]

    def update_post_processor(self) -> None:
        self._watch_parts()
        super().update_post_processor()  # type: ignore[misc]

    def _watch_parts(self) -> None:
        if self._layerzero_parts is None:
            parts = _parts(self._tokenizer)  # type: ignore[attr-defined]
            self._layerzero_parts = parts if sum(map(len, parts)) <= _MOST_COMPARED else ()

    def __reduce__(self) -> Any:
        return _wrapped_again, (_native(self), self._layerzero_cache)


def _parts(backend: Any) -> tuple[str, ...]:
    return repr(backend.normalizer), repr(backend.pre_tokenizer), repr(backend.post_processor)


def _wrapped_again(native: Any, cache: TokenCache | None) -> Any:
    return tokenizers.wrap_tokenizer(native, cache=cache)


class _Wrapped(_Named):
    """Answers what tokenize.encode can answer of a call whose options Transformers has read."""

    def _encode_plus(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        mine = self._own_answer(text, options) if text_pair is None else None
        return mine if mine is not None else super()._encode_plus(text, text_pair, **options)  # type: ignore[misc]

    def _own_answer(self, text: Any, options: dict[str, Any]) -> Any:
        """Returns a BatchEncoding of texts, or None for what the tokenizer itself has to answer."""
        batch = [text] if isinstance(text, str) else text
        if not isinstance(batch, (list, tuple)) or not batch or any(type(one) is not str for one in batch):
            return None
        if any(value for name, value in options.items() if name not in _ANSWERED) or not self._is_unchanged():
            return None
        offsets = bool(options.get("return_offsets_mapping"))
        if offsets and _value(options.get("padding_strategy"), "do_not_pad") != "do_not_pad":
            return None
        wants_types = self._wants("return_token_type_ids", "token_type_ids", options)
        if wants_types and self._layerzero_has_types:
            return None
        try:
            ids, spans = self._ids(list(batch), offsets, options.get("add_special_tokens", True))
        except InvalidRequestError:  # lone surrogates, for instance: the tokenizer's own error is the answer
            return None
        longest = max(ids, key=len)
        limit = options.get("max_length")
        truncates = _value(options.get("truncation_strategy"), "do_not_truncate") != "do_not_truncate"
        if truncates and limit is not None and len(longest) > limit:
            return None  # which ids are cut depends on the template
        self._eventual_warn_about_too_long_sequence(longest, limit, options.get("verbose", True))  # type: ignore[attr-defined]
        data: dict[str, Any] = {"input_ids": ids}
        if wants_types:
            data["token_type_ids"] = [[0] * len(row) for row in ids]
        if offsets:
            data["offset_mapping"] = spans
        return self._padded(data, options, text if isinstance(text, str) else list(text))

    def _wants(self, option: str, name: str, options: dict[str, Any]) -> bool:
        asked = options.get(option)
        return bool(asked) if asked is not None else name in self.model_input_names  # type: ignore[attr-defined]

    def _ids(self, texts: Any, offsets: bool, specials: bool) -> tuple[Any, Any]:
        cache = None if offsets else self._layerzero_cache
        if cache is not None:
            ids = token_cache_encode(cache.held, self.tokenizer_id, cache.model_id, specials, texts)
            if ids is not None:
                return ids, None
        answer = tokenizers.tokenize(texts, self.tokenizer_id, offsets, add_special_tokens=specials, cache=cache)
        return answer["input_ids"], answer.get("offsets")

    def _padded(self, data: dict[str, Any], options: dict[str, Any], text: Any) -> Any:
        strategy = _value(options.get("padding_strategy"), "do_not_pad")
        wants_mask = self._wants("return_attention_mask", "attention_mask", options)
        if strategy != "do_not_pad":
            names = ("max_length", "pad_to_multiple_of", "padding_side")
            settings = {name: options.get(name) for name in names}
            data = self.pad(data, padding=strategy, return_attention_mask=wants_mask, **settings).data  # type: ignore[attr-defined]
        elif wants_mask:
            data["attention_mask"] = [[1] * len(row) for row in data["input_ids"]]
        tensors, encodings = options.get("return_tensors"), _Encodings(self, text, options)
        if tensors is not None:
            return BatchEncoding(data, encodings, tensor_type=tensors, n_sequences=1)
        if isinstance(text, str):
            data = {name: rows[0] for name, rows in data.items()}
        return _answer(data, encodings)

    def _is_unchanged(self) -> bool:
        """Whether the tokenizer is still the one that was registered: tokens may be added to it at any time, and its parts
        be replaced by whoever has its backend."""
        backend, parts = self._tokenizer, self._layerzero_parts  # type: ignore[attr-defined]
        if getattr(self, "split_special_tokens", False) or backend.get_vocab_size() != self._layerzero_size:
            return False
        return parts is None or (bool(parts) and parts == _parts(backend))


class _Direct(_Wrapped):
    """Answers calls with one text and nothing else but add_special_tokens before Transformers reads the other options,
    whose defaults they have."""

    def __call__(self, text: Any = None, *arguments: Any, **options: Any) -> Any:
        names = self.model_input_names  # type: ignore[attr-defined]
        has_types = "token_type_ids" in names
        ids = None if arguments or (has_types and self._layerzero_has_types) else self._one(text, options)
        if ids is None:
            return super().__call__(text, *arguments, **options)  # type: ignore[misc]
        data = {"input_ids": ids}
        if has_types:
            data["token_type_ids"] = [0] * len(ids)
        if "attention_mask" in names:
            data["attention_mask"] = [1] * len(ids)
        return _answer(data, _Encodings(self, text, options))

    def encode(self, text: Any, *arguments: Any, **options: Any) -> Any:
        ids = None if arguments else self._one(text, options)
        return ids if ids is not None else super().encode(text, *arguments, **options)  # type: ignore[misc]

    def _one(self, text: Any, options: dict[str, Any]) -> list[int] | None:
        """Returns the ids of a call with one text, or None for what the tokenizer itself has to answer."""
        known = not options or (len(options) == 1 and "add_special_tokens" in options)
        if type(text) is not str or not known or not self._is_unchanged():
            return None
        specials, cache = options.get("add_special_tokens", True), self._layerzero_cache
        ids: Any = None
        try:
            if cache is not None:  # as _ids, without a call
                ids = token_cache_encode(cache.held, self.tokenizer_id, cache.model_id, specials, text)
            if ids is None:
                ids = self._ids(text, False, specials)[0]
        except InvalidRequestError:
            return None
        if len(ids) > self.model_max_length:  # type: ignore[attr-defined]
            self._eventual_warn_about_too_long_sequence(ids, None, True)  # type: ignore[attr-defined]
        return ids


def _methods(base: Any) -> type:
    """Returns the class to put before a tokenizer's class: one with methods of its own in a place keeps them."""
    fast: Any = PreTrainedTokenizerFast
    if base._encode_plus is not fast._encode_plus or base.__call__ is not fast.__call__:
        return _Named
    return _Direct if base.encode is fast.encode and not hasattr(base, "_switch_to_input_mode") else _Wrapped


def _native(tokenizer: Any) -> Any:
    """Returns a wrapped tokenizer as one of its own class, which shares all that it has."""
    if not isinstance(tokenizer, _Named):
        return tokenizer
    native: Any = object.__new__(tokenizer._layerzero_base)
    native.__dict__ = {name: value for name, value in vars(tokenizer).items() if name not in _Named.__annotations__}
    return native


def wrapped(tokenizer: Any, tokenizer_id: str, cache: TokenCache | None) -> Any:
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise WrongTypeError(
            "tokenizer", "a fast tokenizer of Transformers", type(tokenizer).__name__, "load it with AutoTokenizer"
        )
    made = copy.deepcopy(_native(tokenizer))
    base = type(made)
    members = {"__module__": base.__module__, "_layerzero_base": base}
    made.__class__ = type(base.__name__, (_methods(base), base), members)
    made.tokenizer_id, made._layerzero_cache, made._layerzero_size = tokenizer_id, cache, len(made)
    made._layerzero_parts = None
    types = [made._tokenizer.encode("a", add_special_tokens=specials).type_ids for specials in (True, False)]
    made._layerzero_has_types = any(map(any, types))
    return made
