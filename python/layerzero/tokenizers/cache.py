"""TokenCache: the ids of texts that were tokenized before, some hits compared with the tokenizer again."""

import sys
import threading
import warnings
from collections import OrderedDict
from typing import Any

from layerzero.errors import InvalidRequestError
from layerzero.host.policy import token_cache_rules
from layerzero.host.typed import typed

_FIRST, _NEXT = 100, 1000  # hits of an entry that are compared at the initial and at the warm-up rate


class TokenCacheWarning(UserWarning):
    """An entry of a token cache differed from its tokenizer and was dropped."""


class _Entry:
    __slots__ = ("ids", "size", "hits")

    def __init__(self, ids: tuple[int, ...], size: int) -> None:
        self.ids, self.size, self.hits = ids, size, 0


def _every(rate: float) -> int:
    """Returns the number of hits of which one is compared; 0: none is."""
    return round(1 / rate) if rate > 0 else 0


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
        self.model_id, self.max_bytes = model_id, max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, bool, str], _Entry] = OrderedDict()
        self._settings: tuple[Any, str, str, str, tuple[int, int, int]] = (
            None,
            "",
            "",
            "",
            (0, 0, 0),
        )  # see _settings_of
        self._stats = {"hits": 0, "misses": 0, "validated": 0, "mismatches": 0, "evicted": 0, "bytes": 0}

    def __reduce__(self) -> Any:
        return TokenCache, (self.model_id, self.max_bytes)

    def stats(self) -> dict[str, int]:
        """Returns hits, misses, validated hits, mismatches, evicted entries, bytes and entries."""
        with self._lock:
            return self._stats | {"entries": len(self._entries)}

    def clear(self) -> None:
        """Drops all entries; the counts stay."""
        with self._lock:
            self._entries.clear()
            self._stats["bytes"] = 0

    def namespace(self, tokenizer_id: str) -> str:
        """Returns what separates entries of models: `model_id:hash`, or the hash alone."""
        isolated = token_cache_rules().enable_namespace_isolation
        return f"{self.model_id}:{tokenizer_id}" if isolated else tokenizer_id

    def encode(self, tokenizer: Any, texts: list[str], specials: bool) -> list[list[int]]:
        """Returns the ids of texts; `tokenizer` has `identity` and `encode(texts, offsets, specials)`."""
        space, rates = self._settings_of(tokenizer.identity)
        entries, stats = self._entries, self._stats
        found: list[list[int] | None] = []
        asked: dict[int, tuple[int, ...] | None] = {}  # index -> the ids that a checked hit had
        with self._lock:
            for index, text in enumerate(texts):
                key = (space, specials, text)
                entry = entries.get(key)
                if entry is None:
                    stats["misses"] += 1
                    asked[index] = None
                    found.append(None)
                    continue
                found.append(list(entry.ids))
                entries.move_to_end(key)
                stats["hits"] += 1
                hits = entry.hits = entry.hits + 1
                every = rates[0 if hits <= _FIRST else 1 if hits <= _FIRST + _NEXT else 2]
                if every > 0 and hits % every == 0:
                    asked[index] = entry.ids
        if asked:
            answers = tokenizer.encode([texts[index] for index in asked], False, specials)
            for (index, kept), ids in zip(asked.items(), answers, strict=True):
                found[index] = ids
                self._answered((space, specials, texts[index]), kept, ids)
        return found  # type: ignore[return-value]  # no text is without ids

    def _settings_of(self, identity: str) -> tuple[str, tuple[int, int, int]]:
        """Returns the namespace of a tokenizer and of how many hits one is compared, as the rules in force say."""
        rules = token_cache_rules()
        known = self._settings  # of the last call: a hit costs as much as what is below
        if known[0] is not rules or known[1] != identity or known[2] != self.model_id:
            rates = (rules.validation_rate_initial, rules.validation_rate_warmup, rules.validation_rate_stable)
            first, second, third = map(_every, rates)
            known = self._settings = (rules, identity, self.model_id, self.namespace(identity), (first, second, third))
        return known[3], known[4]

    def _answered(self, key: tuple[str, bool, str], kept: tuple[int, ...] | None, ids: list[int]) -> None:
        right = tuple(ids)
        with self._lock:
            if kept is not None:
                self._stats["validated"] += 1
                if kept == right:
                    return
                self._stats["mismatches"] += 1
                self._drop(key)
        if kept is not None:
            text = f"token cache {key[0]!r}: an entry of {len(key[2])} characters had other ids than its tokenizer; dropped"
            warnings.warn(text, TokenCacheWarning, stacklevel=4)
            return
        size = sys.getsizeof(key[2]) + 8 * len(right) + sum(28 for number in right if number > 256) + 200
        with self._lock:
            self._drop(key)
            if size > self.max_bytes:
                return
            self._entries[key] = _Entry(right, size)
            self._stats["bytes"] += size
            while self._stats["bytes"] > self.max_bytes:
                _, old = self._entries.popitem(last=False)
                self._stats["bytes"] -= old.size
                self._stats["evicted"] += 1

    def _drop(self, key: tuple[str, bool, str]) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._stats["bytes"] -= old.size
