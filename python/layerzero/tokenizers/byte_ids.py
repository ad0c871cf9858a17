"""Tokenizer 0, whose ids are bytes, as an object of each library: what their kernels are compared by."""

import functools
from typing import Any

from layerzero.tokenizers.libraries import Tokenizer, wrap

_CHARACTERS = [chr(byte) for byte in range(256)]  # of Latin-1: character i is byte i


def _of_tokenizers() -> Any:
    import tokenizers

    model = tokenizers.models.BPE({character: byte for byte, character in enumerate(_CHARACTERS)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.Fuse()
    return tokenizer


def _of_tiktoken() -> Any:
    import tiktoken

    ranks = {character.encode(): byte for byte, character in enumerate(_CHARACTERS)}
    return tiktoken.Encoding("bytes", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={})


def _message(number: int, data: bytes) -> bytes:
    """Returns field `number` of fewer than 128 bytes, as protobuf writes it."""
    return bytes((number << 3 | 2, len(data))) + data


def _piece(text: str, kind: int) -> bytes:
    return _message(1, _message(1, text.encode()) + bytes((0x18, kind)))


def _of_sentencepiece() -> Any:
    """A text of SentencePiece has no NUL: it is the id of the byte that serves what the vocabulary lacks."""
    import sentencepiece

    normal, unknown, byte = 1, 2, 6  # types of pieces
    texts = ["\u2581" if character == " " else character for character in _CHARACTERS[1:]]  # its mark of a space
    lacking = [_piece(f"<0x{number:02X}>", byte) for number in range(256)]
    pieces = [lacking[0], *(_piece(text, normal) for text in texts), _piece("<unk>", unknown), *lacking[1:]]
    trainer = _message(2, b"\x18\x04\x98\x02\x01")  # type CHAR, byte fallback
    normalizer = _message(3, b"\x18\x00\x20\x00\x28\x01")  # no prefix, all white space stays
    return sentencepiece.SentencePieceProcessor(model_proto=b"".join([*pieces, trainer, normalizer]))


_MAKERS = {"tokenizers": _of_tokenizers, "tiktoken": _of_tiktoken, "sentencepiece": _of_sentencepiece}


@functools.cache
def byte_tokenizer(library: str) -> Tokenizer:
    """Returns the library's tokenizer of texts in Latin-1."""
    return wrap(_MAKERS[library]())
