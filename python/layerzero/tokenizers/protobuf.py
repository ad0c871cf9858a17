"""The fields of SentencePiece's model file that decide about ids, read without the package protobuf."""

import struct
from collections.abc import Iterator
from typing import Any


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yields (number, value) of a message: integers, floats of 32 bits, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Any
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            value, at = data[at : at + 8], at + 8
        yield number, value


_TYPES = {1: "UNIGRAM", 2: "BPE", 3: "WORD", 4: "CHAR"}


def sentencepiece_model(data: bytes) -> dict[str, Any]:
    """Returns "pieces" as (text, score, type) and the settings of the trainer and the normalizer."""
    model: dict[str, Any] = {
        "pieces": [],
        "model_type": "UNIGRAM",
        "treat_whitespace_as_suffix": False,
        "charsmap": b"",
        "add_dummy_prefix": True,
        "remove_extra_whitespaces": True,
        "escape_whitespaces": True,
    }
    for number, value in _fields(data):
        if number == 1:
            piece: dict[int, Any] = {1: b"", 2: 0.0, 3: 1} | dict(_fields(value))
            model["pieces"].append((piece[1].decode(), piece[2], piece[3]))
        elif number == 2:
            trainer = dict(_fields(value))
            model["model_type"] = _TYPES.get(trainer.get(3, 1), "another")
            model["treat_whitespace_as_suffix"] = bool(trainer.get(24, 0))
        elif number == 3:
            normalizer = dict(_fields(value))
            model["charsmap"] = normalizer.get(2, b"")
            for key, name in ((3, "add_dummy_prefix"), (4, "remove_extra_whitespaces"), (5, "escape_whitespaces")):
                model[name] = bool(normalizer.get(key, 1))
    return model
