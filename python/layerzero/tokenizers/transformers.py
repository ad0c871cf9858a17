"""Transformers tokenizers whose texts are encoded by tokenize.encode: a subclass of the tokenizer's own class."""

import copy
from typing import Any

from layerzero.errors import WrongTypeError
from layerzero.tokenizers.cache import TokenCache

# The options of a call that are answered here; a call with another one that is not at its default goes to the tokenizer.
_ANSWERED = {
    "add_special_tokens", "padding_strategy", "truncation_strategy", "max_length", "stride", "pad_to_multiple_of",
    "padding_side", "return_tensors", "return_token_type_ids", "return_attention_mask", "return_offsets_mapping",
    "verbose",
}  # fmt: skip


def _value(strategy: Any, absent: str) -> str:
    return str(getattr(strategy, "value", strategy) or absent)


class _Wrapped:
    """The methods that differ; `wrapped` puts it before the tokenizer's own class."""

    tokenizer_id: str
    _layerzero_cache: TokenCache | None
    _layerzero_size: int

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
        ids, spans = self._ids(list(batch), offsets, options.get("add_special_tokens", True))
        longest = max(map(len, ids))
        truncates = _value(options.get("truncation_strategy"), "do_not_truncate") != "do_not_truncate"
        if truncates and options.get("max_length") is not None and longest > options["max_length"]:
            return None  # which ids are cut depends on the template
        if offsets and _value(options.get("padding_strategy"), "do_not_pad") != "do_not_pad":
            return None
        data: dict[str, Any] = {"input_ids": ids}
        if self._wants("return_token_type_ids", "token_type_ids", options):
            data["token_type_ids"] = [[0] * len(row) for row in ids]
        if offsets:
            data["offset_mapping"] = spans
        return self._padded(data, options, isinstance(text, str))

    def _wants(self, option: str, name: str, options: dict[str, Any]) -> bool:
        asked = options.get(option)
        return bool(asked) if asked is not None else name in self.model_input_names  # type: ignore[attr-defined]

    def _ids(self, batch: list[str], offsets: bool, specials: bool) -> tuple[list[list[int]], Any]:
        from layerzero import tokenizers

        cache = None if offsets else self._layerzero_cache
        answer = tokenizers.tokenize(batch, self.tokenizer_id, offsets, add_special_tokens=specials, cache=cache)
        return answer["input_ids"], answer.get("offsets")

    def _padded(self, data: dict[str, Any], options: dict[str, Any], single: bool) -> Any:
        from transformers import BatchEncoding

        strategy = _value(options.get("padding_strategy"), "do_not_pad")
        wants_mask = self._wants("return_attention_mask", "attention_mask", options)
        if strategy != "do_not_pad":
            names = ("max_length", "pad_to_multiple_of", "padding_side")
            settings = {name: options.get(name) for name in names}
            data = dict(self.pad(data, padding=strategy, return_attention_mask=wants_mask, **settings))  # type: ignore[attr-defined]
        elif wants_mask:
            data["attention_mask"] = [[1] * len(row) for row in data["input_ids"]]
        tensors = options.get("return_tensors")
        if single and tensors is None:
            data = {name: rows[0] for name, rows in data.items()}
        return BatchEncoding(data, tensor_type=tensors)

    def _is_unchanged(self) -> bool:
        """Whether the tokenizer is still the one that was registered: tokens may be added to it at any time."""
        split: bool = getattr(self, "split_special_tokens", False)
        return not split and len(self) == self._layerzero_size  # type: ignore[arg-type]


def wrapped(tokenizer: Any, tokenizer_id: str, cache: TokenCache | None) -> Any:
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise WrongTypeError(
            "tokenizer", "a fast tokenizer of Transformers", type(tokenizer).__name__, "load it with AutoTokenizer"
        )
    base = type(tokenizer)
    made = copy.deepcopy(tokenizer)
    made.__class__ = type(base.__name__, (_Wrapped, base), {"__module__": base.__module__})
    made.tokenizer_id, made._layerzero_cache, made._layerzero_size = tokenizer_id, cache, len(made)
    return made
