"""Registered tokenizers: which kernels serve each, and its calls of tokenize.encode and tokenize.decode."""

import threading
from typing import Any

from layerzero import _layerzero, backends
from layerzero.errors import KernelRefusedError
from layerzero.host.policy import is_enabled
from layerzero.tokenizers.libraries import HfTokenizer, typed_errors
from layerzero.tokenizers.own import OwnTokenizer, proven

LIBRARIES = ("bpe", "tokenizers", "tiktoken", "sentencepiece")  # in the order of the operations' parameters
_OWN = 1 | 1 << len(LIBRARIES)  # bits of bpe and bpe_offsets
_REFERENCES = ("ref", "torch.ref")
_by_number: dict[int, "Registered"] = {}


class Registered:
    """One tokenizer: its library's object, and the own tokenizer once its ids have been compared."""

    def __init__(self, identity: str, wrapped: Any) -> None:
        self.identity, self.wrapped, self.vocab_size = identity, wrapped, wrapped.vocab_size
        self._lock = threading.Lock()
        self._number: int | None = None
        self._own: OwnTokenizer | None = None
        self._reasons: dict[str, str] = {}
        self._bits: tuple[int, int] = (0, 0)  # of `served` for ids and for texts

    @property
    def number(self) -> int:
        """The number by which calls of operations name it; the first use makes and tests the own tokenizer."""
        return self._number if self._number is not None else self._proven()

    def _proven(self) -> int:
        with self._lock:
            if self._number is None:
                backends.register_files()  # the libraries' kernels are candidates, also where torch is not imported
                self._own, self._reasons = proven(self.wrapped, self.identity)
                number = _layerzero.tokenizer_number(self._own.held if self._own else None)
                _by_number[number] = self
                self._bits = _bits(self.served("ids")), _bits(self.served("decode"))
                self._number = number
            return self._number

    def reasons(self) -> dict[str, str]:
        """Returns why the own tokenizer does not serve "ids", "offsets" or "decode", for those that it does not."""
        return dict(self._reasons) if self.number else {}

    def served(self, part: str) -> dict[str, bool]:
        """Returns the operations' parameters that say who has its ids, once it has a number; `part`: "ids", "decode"."""
        served = {name: name == self.wrapped.name for name in LIBRARIES}
        served["bpe"] = "ids" not in self._reasons and part not in self._reasons
        return served if part == "decode" else served | {"bpe_offsets": "offsets" not in self._reasons}

    @property
    def encode_site(self) -> tuple[Any, int, int, Any]:
        """What the binding's calls of tokenize.encode begin with: the operation, number, bits of who has its ids, and
        the library as a function."""
        return _layerzero.ops["tokenize_encode"], self.number, self._bits[0], self._encode_by_library

    def encode(self, texts: list[str], offsets: bool, specials: bool) -> Any:
        """Returns ids, or (ids, offsets). Texts whose ids the own tokenizer does not have are a call of their own."""
        operation, number, bits, host = self.encode_site
        if offsets and bits & _OWN != _OWN and not isinstance(self.wrapped, HfTokenizer):
            self.wrapped.refuse_offsets()
        return _layerzero.tokenizer_encode_call(operation, number, bits, texts, specials, offsets, host)

    def _encode_by_library(self, source: str, texts: list[str], specials: int, offsets: int) -> Any:
        self._check_source(source)
        with typed_errors("texts", "text that the tokenizer can encode", "replace lone surrogates and the like"):
            ids, places = self.wrapped.encode(texts, bool(offsets), bool(specials))
        return (ids, places) if offsets else ids

    def _check_source(self, source: str) -> None:
        if source == self.wrapped.name:
            return
        if source in _REFERENCES and not is_enabled():
            return  # while LayerZero is disabled, the reference is the tokenizer's own call
        raise KernelRefusedError(f"{source} does not have tokenizer {self.number}, which is one of {self.wrapped.name}")

    def decode(self, rows: list[list[int]], skip: bool) -> list[str]:
        """Returns the text of each row of ids."""
        operation, number, bits = _layerzero.ops["tokenize_decode"], self.number, self._bits[1]
        return _layerzero.tokenizer_decode_call(operation, number, bits, rows, skip, self._decode_by_library)

    def _decode_by_library(self, source: str, rows: list[list[int]], skip: int, _: int) -> Any:
        self._check_source(source)
        with typed_errors("tokens", "ids of this tokenizer's vocabulary", "pass ids that tokenize returned"):
            return self.wrapped.decode(rows, bool(skip))


def _bits(served: dict[str, bool]) -> int:
    return sum(1 << bit for bit, is_served in enumerate(served.values()) if is_served)


def numbered(number: int) -> Registered | None:
    """Returns the tokenizer of a number of this process, or None."""
    return _by_number.get(number)
