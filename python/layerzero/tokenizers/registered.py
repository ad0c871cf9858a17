"""Registered tokenizers: the library's object, and the own tokenizer where it has the same ids."""

import threading
from typing import Any

from layerzero.tokenizers.libraries import typed_errors
from layerzero.tokenizers.own import OwnTokenizer, proven


class Registered:
    """One tokenizer: its library's object, and the own tokenizer once its ids have been compared."""

    def __init__(self, identity: str, wrapped: Any) -> None:
        self.identity, self.wrapped, self.vocab_size = identity, wrapped, wrapped.vocab_size
        self._lock = threading.Lock()
        self._proof: tuple[OwnTokenizer | None, dict[str, str]] | None = None

    def _proven(self) -> tuple[OwnTokenizer | None, dict[str, str]]:
        """Makes and tests the own tokenizer at the first use."""
        if self._proof is None:
            with self._lock:
                if self._proof is None:
                    self._proof = proven(self.wrapped, self.identity)
        return self._proof

    def reasons(self) -> dict[str, str]:
        """Returns why the own tokenizer does not serve "ids", "offsets" or "decode", for those that it does not."""
        return dict(self._proven()[1])

    def encode(self, texts: list[str], offsets: bool, specials: bool) -> tuple[list[Any], list[Any]]:
        """Returns ids and, if wanted, offsets of each text; the library answers for what the own tokenizer refuses."""
        own, reasons = self._proven()
        if own is None or "ids" in reasons or (offsets and "offsets" in reasons):
            return self._by_library(texts, offsets, specials)
        ids, places = own.encode(texts, offsets, specials)
        left = [index for index, row in enumerate(ids) if row is None]
        if left:
            rows, spans = self._by_library([texts[index] for index in left], offsets, specials)
            for at, index in enumerate(left):
                ids[index] = rows[at]
                if offsets:
                    places[index] = spans[at]
        return ids, places

    def _by_library(self, texts: list[str], offsets: bool, specials: bool) -> tuple[list[Any], list[Any]]:
        with typed_errors("texts", "text that the tokenizer can encode", "replace lone surrogates and the like"):
            answer: tuple[list[Any], list[Any]] = self.wrapped.encode(texts, offsets, specials)
        return answer

    def decode(self, rows: list[list[int]], skip: bool) -> list[str]:
        own, reasons = self._proven()
        if own is not None and "decode" not in reasons and "ids" not in reasons:
            return own.decode(rows, skip)
        with typed_errors("tokens", "ids of this tokenizer's vocabulary", "pass ids that tokenize returned"):
            texts: list[str] = self.wrapped.decode(rows, skip)
        return texts
