"""TokenCache: the ids of texts that were tokenized before, some hits compared with the tokenizer again. Look-ups are the
binding's (bindings/python/token_cache.cpp)."""

import sys
import warnings
from typing import Any

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError
from layerzero.host.log import caller
from layerzero.host.policy import token_cache_rules, token_cache_rules_now
from layerzero.host.typed import typed


class TokenCacheWarning(UserWarning):
    """An entry of a token cache differed from its tokenizer and was dropped."""


def _warn(namespace: str, characters: int) -> None:
    text = f"token cache {namespace!r}: an entry of {characters} characters had other ids than its tokenizer; dropped"
    warnings.warn(text, TokenCacheWarning, stacklevel=caller()[1])


def _every(rate: float) -> int:
    """Returns the number of hits of which one is compared; 0: none is."""
    return round(min(1 / rate, 1e18)) if rate > 0 else 0


class TokenCache:
    """Ids by text for `lz.tokenize(..., cache=)`: at most `max_bytes`, the texts not used for the longest time dropped
    first. `model_id`: the model whose texts they are; with the policy's `tokenizer_cache.enable_namespace_isolation`
    (the default) models that share a cache and a tokenizer do not share entries.

    Of an entry's first 100 hits a tenth is compared with the tokenizer, of the next 1000 a hundredth, then a thousandth
    (`tokenizer_cache.validation_rate_*`). An entry that differs is dropped, counted and reported by a warning. Threads
    may share a cache. A copy, and what a pickle makes of it, has the same settings and no entries.
    """

    @typed
    def __init__(self, model_id: str = "", max_bytes: int = 64 << 20) -> None:
        if max_bytes < 1:
            raise InvalidRequestError("max_bytes", "at least 1", str(max_bytes), "pass a number of bytes")
        self.model_id, self._max_bytes = model_id, max_bytes
        self.held = _layerzero.token_cache_make(min(max_bytes, sys.maxsize), _warn)

    @property
    def max_bytes(self) -> int:
        """The most bytes that texts and ids may take; fixed."""
        return self._max_bytes

    def __reduce__(self) -> Any:
        return TokenCache, (self.model_id, self.max_bytes)

    def stats(self) -> dict[str, int]:
        """Returns hits, misses, validated hits, mismatches, evicted entries, bytes and entries."""
        return _layerzero.token_cache_stats(self.held)

    def clear(self) -> None:
        """Drops all entries; the counts stay."""
        _layerzero.token_cache_clear(self.held)

    def namespace(self, tokenizer_id: str) -> str:
        """Returns what separates entries of models: `model_id:hash`, or the hash alone."""
        return self._namespace(tokenizer_id, token_cache_rules().enable_namespace_isolation)

    def _namespace(self, tokenizer_id: str, isolated: bool) -> str:
        return f"{self.model_id}:{tokenizer_id}" if isolated else tokenizer_id

    def encode(self, tokenizer: Any, texts: list[str], specials: bool) -> Any:
        """Returns the ids of each str of a list; `tokenizer`: a Registered one."""
        encode_site = tokenizer.encode_site  # the first use proves it
        while True:
            ids = _layerzero.token_cache_encode(self.held, tokenizer.identity, self.model_id, specials, texts)
            if ids is not None:
                return ids
            self._use_rules(tokenizer.identity, encode_site)

    def _use_rules(self, identity: str, encode_site: tuple[Any, int, int, Any]) -> None:
        """Sets the rules in force, which the binding follows until any rules may have changed."""
        rules = token_cache_rules_now()
        rates = (rules.validation_rate_initial, rules.validation_rate_warmup, rules.validation_rate_stable)
        first, following, later = map(_every, rates)
        every, space = (first, following, later), self._namespace(identity, rules.enable_namespace_isolation)
        _layerzero.token_cache_rules(self.held, identity, self.model_id, space, every, *encode_site)
        if token_cache_rules_now() != rules:  # another thread has changed them meanwhile
            self._use_rules(identity, encode_site)
