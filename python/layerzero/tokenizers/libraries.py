"""One interface to the tokenizers of three libraries: ids of texts, texts of ids, offsets if the library has them."""

import contextlib
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from layerzero.errors import InvalidRequestError, NotInstalledError, WrongTypeError

Offsets = list[list[tuple[int, int]]]


def tokenizers_library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise NotInstalledError("tokenize", "the package tokenizers", "none", "pip install tokenizers") from error
    return tokenizers


@contextlib.contextmanager
def typed_errors(what: str, wanted: str, fix: str) -> Iterator[None]:
    """Converts all exceptions of a library to InvalidRequestError. Rust panics derive from BaseException."""
    try:
        yield
    except InvalidRequestError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        got = f"{type(error).__name__}: {error}"[:300]
        raise InvalidRequestError(what, wanted, f"an error of its library: {got}", fix) from error


class HfTokenizer:
    """A private tokenizers.Tokenizer: padding or truncation that the caller enables later does not change its ids."""

    name = "tokenizers"

    def __init__(self, tokenizer: Any) -> None:
        self._own = tokenizers_library().Tokenizer.from_str(tokenizer.to_str())
        self._own.no_padding()
        self._own.no_truncation()
        self.identified, self.vocab_size = self._own, self._own.get_vocab_size()

    def encode(self, texts: list[str], offsets: bool, specials: bool) -> tuple[list[list[int]], Offsets]:
        # encode_batch counts characters for offsets; the fast variant omits that and returns the same ids.
        encode = self._own.encode_batch
        if not offsets and hasattr(self._own, "encode_batch_fast"):
            encode = self._own.encode_batch_fast
        encoded = encode(texts, add_special_tokens=specials)
        return [e.ids for e in encoded], [e.offsets for e in encoded] if offsets else []

    def decode(self, rows: list[list[int]], skip: bool) -> list[str]:
        return self._own.decode_batch(rows, skip_special_tokens=skip)


class _WithoutOffsets:
    library = ""

    def refuse_offsets(self) -> None:
        raise InvalidRequestError(
            "return_offsets: OFFSETS_UNSUPPORTED",
            "a tokenizer with offsets",
            f"one of {self.library}",
            "leave it out, or register the model's tokenizer.json",
        )


class TiktokenTokenizer(_WithoutOffsets):
    """A tiktoken.Encoding. The text of a special token encodes to that token, as in the other libraries."""

    name = library = "tiktoken"

    def __init__(self, encoding: Any) -> None:
        self.identified, self.vocab_size = encoding, encoding.n_vocab
        self._special = frozenset(encoding._special_tokens.values())

    def encode(self, texts: list[str], offsets: bool, specials: bool) -> tuple[list[list[int]], Offsets]:
        if offsets:
            self.refuse_offsets()
        return self.identified.encode_batch(texts, allowed_special="all"), []

    def decode(self, rows: list[list[int]], skip: bool) -> list[str]:
        return [self.identified.decode([i for i in row if not (skip and i in self._special)]) for row in rows]


class SentencePieceTokenizer(_WithoutOffsets):
    """A sentencepiece.SentencePieceProcessor."""

    name, library = "sentencepiece", "SentencePiece"

    def __init__(self, processor: Any) -> None:
        self.identified, self.vocab_size = processor, processor.get_piece_size()

    def encode(self, texts: list[str], offsets: bool, specials: bool) -> tuple[list[list[int]], Offsets]:
        if offsets:
            self.refuse_offsets()
        return self.identified.encode(texts, out_type=int), []

    def decode(self, rows: list[list[int]], skip: bool) -> list[str]:
        control = self.identified.is_control
        return [self.identified.decode([i for i in row if not (skip and control(i))]) for row in rows]


Tokenizer = HfTokenizer | TiktokenTokenizer | SentencePieceTokenizer


def wrap(tokenizer: Any) -> Tokenizer:
    """Wraps a library's tokenizer, or a Transformers tokenizer over it, in one of the three classes."""
    backend = getattr(tokenizer, "backend_tokenizer", None) or getattr(tokenizer, "_tokenizer", None) or tokenizer
    library = type(backend).__module__.partition(".")[0]
    if library == "tokenizers" and hasattr(backend, "to_str"):
        return HfTokenizer(backend)
    if library == "tiktoken" and hasattr(backend, "encode_batch"):
        return TiktokenTokenizer(backend)
    if hasattr(backend, "serialized_model_proto"):
        return SentencePieceTokenizer(backend)
    raise WrongTypeError(
        "tokenizer",
        "a tokenizers.Tokenizer, a Transformers tokenizer over one, a tiktoken.Encoding, a SentencePieceProcessor, or a "
        "path to tokenizer.json",
        type(tokenizer).__name__,
        "convert it with its own library first",
    )


def checked_ids(row: Any, size: int, field: str) -> list[int]:
    """Returns the ids of a list or an array as Python integers; NumPy integers are accepted, booleans are not."""
    tokens = row.tolist() if hasattr(row, "tolist") else row
    if not isinstance(tokens, Iterable):
        raise InvalidRequestError(field, "a list of ids", type(row).__name__, "pass a list for each text")
    ids = []
    for token in tokens:
        try:
            number = -1 if type(token).__name__ in ("bool", "bool_") else operator.index(token)
        except TypeError:
            number = -1
        if not 0 <= number < size:
            raise InvalidRequestError(field, f"ids from 0 to {size - 1}", repr(token), "pass ids of this tokenizer")
        ids.append(number)
    return ids
