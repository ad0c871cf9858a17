"""The own tokenizer (C++, src/tokenize): made of a tokenizers.Tokenizer, a tiktoken.Encoding, a SentencePiece model or a
GGUF file, and used only after its ids have been compared with those of that library."""

import json
import random
from typing import Any

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, LayerZeroError
from layerzero.tokenizers import protobuf
from layerzero.tokenizers.identity import tokenizer_digests

Rows = list[list[int]]
Offsets = list[list[tuple[int, int]]]

_SPACE = "\u2581"
_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
_ALPHABET = {b: chr(b) for b in _BYTES} | {
    b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in _BYTES)
}


def _refuse(wanted: str, got: str) -> InvalidRequestError:
    return InvalidRequestError("tokenizer", wanted, got, "use the tokenizer's own library")


def byte_text(token: bytes) -> str:
    """Returns bytes in the byte-level alphabet, in which a tokenizer.json writes them."""
    return "".join(map(_ALPHABET.__getitem__, token))


def _added(content: str, number: int, special: bool = True) -> dict[str, Any]:
    return {"id": number, "content": content, "special": special, "normalized": False}


def json_of_tiktoken(encoding: Any) -> dict[str, Any]:
    """Returns a tiktoken.Encoding as a tokenizer.json with the rule of ranks in place of merges."""
    special = encoding._special_tokens
    names = sorted(special)
    for first, second in zip(names, names[1:], strict=False):
        if second.startswith(first):
            raise _refuse("special tokens of which none begins another", f"{first!r} and {second!r}")
    if not all(name.isascii() for name in names):
        raise _refuse("special tokens of ASCII", "others")
    split = {"type": "Split", "pattern": {"Tiktoken": encoding._pat_str}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "added_tokens": [_added(name, number) for name, number in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "layerzero_ranks": True,
            "ignore_merges": True,
            "vocab": {byte_text(token): rank for token, rank in encoding._mergeable_ranks.items()},
            "merges": [],
        },
    }


# Types of pieces in SentencePiece's model file.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def json_of_sentencepiece(processor: Any) -> dict[str, Any]:
    """Returns a SentencePiece model of type BPE, whose normalizer is the identity, as a tokenizer.json."""
    model = protobuf.sentencepiece_model(processor.serialized_model_proto())
    if model["model_type"] != "BPE":
        raise _refuse("a model of type BPE", str(model["model_type"]))
    if model["charsmap"] or model["remove_extra_whitespaces"] or not model["escape_whitespaces"]:
        raise _refuse("the identity as normalizer, with extra white space kept", "another normalizer")
    if model["treat_whitespace_as_suffix"] or any(
        getattr(processor, f"_{name}", False)
        for name in ("add_bos", "add_eos", "reverse", "emit_unk_piece", "enable_sampling")
    ):
        raise _refuse("a processor without options", "one with options")
    kinds = {kind for _, _, kind in model["pieces"]}
    if not kinds <= {_NORMAL, _UNKNOWN, _CONTROL, _BYTE}:
        raise _refuse("pieces that are normal, unknown, control or bytes", "user-defined or unused ones")
    return _marked_json(model["pieces"], dummy_prefix=model["add_dummy_prefix"])


def _marked_json(pieces: list[tuple[str, float, int]], dummy_prefix: bool) -> dict[str, Any]:
    order = {score: rank for rank, score in enumerate(sorted({score for _, score, _ in pieces}, reverse=True))}
    unknown = [text for text, _, kind in pieces if kind == _UNKNOWN]
    steps: list[dict[str, Any]] = [{"type": "Prepend", "prepend": _SPACE}] if dummy_prefix else []
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    return {
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "layerzero_ranks": True,
            "fuse_unk": True,
            "byte_fallback": any(kind == _BYTE for _, _, kind in pieces),
            "unk_token": unknown[0] if unknown else None,
            "vocab": {text: number for number, (text, _, _) in enumerate(pieces)},
            "ranks": [order[score] if kind == _NORMAL else -1 for _, score, kind in pieces],
            "merges": [],
        },
    }


def json_of(identified: Any) -> str:
    """Returns a library's tokenizer as the text of a tokenizer.json, or raises why it has none."""
    library = type(identified).__module__.partition(".")[0]
    if library == "tokenizers":
        return str(identified.to_str())
    if library == "tiktoken":
        return json.dumps(json_of_tiktoken(identified))
    return json.dumps(json_of_sentencepiece(identified))


class OwnTokenizer:
    """The ids of one tokenizer, computed by src/tokenize."""

    def __init__(self, text: str) -> None:
        self.held = _layerzero.tokenizer_make(text)
        self.vocab_size, self.has_offsets, self.has_decoder = _layerzero.tokenizer_facts(self.held)

    def encode(self, texts: list[str], offsets: bool, specials: bool) -> tuple[list[Any], list[Any]]:
        """Returns ids and offsets of each text; None for a text that the library has to serve."""
        return _layerzero.tokenizer_encode(self.held, texts, specials, offsets)

    def decode(self, rows: Rows, skip: bool) -> list[str | None]:
        """Returns the text of each row; None for ids with which the library fails."""
        return _layerzero.tokenizer_decode(self.held, rows, skip)


def _random_text(source: random.Random) -> str:
    planes = ((0x20, 0x7F), (0x20, 0x7F), (0, 0x250), (0x300, 0x3000), (0x3000, 0xD800), (0xE000, 0x110000))
    letters = []
    for _ in range(source.randrange(40)):
        if source.random() < 0.2:
            letters.append(source.choice([" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "0", "12345", "\u00a0", "\0"]))
        else:
            low, high = source.choice(planes)
            letters.append(chr(source.randrange(low, high)))
    return "".join(letters)


_SENTENCES = (
    "",
    " ",
    "Hello world, it's 1234567 o'clock; they'LL see.",
    "  two  spaces\n\n\n\ttab \r\n end   ",
    "na\u00efve caf\u00e9 \u2615 \u65e5\u672c\u8a9e\u306e\u6587 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0e20\u0e32\u0e29\u0e32 \U0001f469\u200d\U0001f680",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}  # comment\n",
    "\u2581\u2581 a\u2581b <0x41> <s></s> <unk>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
)


def samples(identified: Any) -> list[str]:
    """Returns the texts that ids are compared on: sentences, special tokens in texts, random code points."""
    texts = list(_SENTENCES)
    if hasattr(identified, "get_added_tokens_decoder"):
        names = [str(token.content) for token in identified.get_added_tokens_decoder().values()]
    else:
        names = list(getattr(identified, "_special_tokens", ()))
    for name in names[:64]:
        texts += [name, f"a {name} b", f"a{name}{name}\n"]
    source = random.Random(7)
    return texts + [_random_text(source) for _ in range(400)]


def proven(wrapped: Any, identity: str) -> tuple[OwnTokenizer | None, dict[str, str]]:
    """Returns the own tokenizer for a library's one, and why it does not serve what it does not serve: keys "ids",
    "offsets" and "decode"."""
    try:
        text = json_of(wrapped.identified)
        own = OwnTokenizer(text)
    except LayerZeroError as error:
        return None, dict.fromkeys(("ids", "offsets", "decode"), str(error))
    if tokenizer_digests(wrapped.identified).tokenizer_id != identity:
        return None, dict.fromkeys(("ids", "offsets", "decode"), "TOKENIZER_ID_MISMATCH: the tokenizer has changed")
    return own, _differences(own, wrapped)


def _differences(own: OwnTokenizer, wrapped: Any) -> dict[str, str]:
    reasons: dict[str, str] = {}
    if not own.has_offsets:
        reasons["offsets"] = "OFFSETS_UNSUPPORTED: its normalizer or pre-tokenizer changes lengths"
    if not own.has_decoder:
        reasons["decode"] = "it has no decoder"
    texts, rows = samples(wrapped.identified), []
    for specials in (False, True):
        with_offsets = wrapped.name == "tokenizers" and "offsets" not in reasons
        wanted, places = wrapped.encode(texts, with_offsets, specials)
        got, spans = own.encode(texts, with_offsets, specials)
        for index, row in enumerate(got):
            if row is None:
                continue
            if row != wanted[index]:
                reasons["ids"] = (
                    f"TOKENIZER_ID_MISMATCH: {texts[index]!r:.80} has the ids {row[:12]}, not {wanted[index][:12]}"
                )
            elif with_offsets and spans[index] != [tuple(place) for place in places[index]]:
                reasons["offsets"] = f"TOKENIZER_ID_MISMATCH: other offsets of {texts[index]!r:.80}"
        rows += wanted
    rows += [row[: len(row) // 2] for row in rows] + [row[len(row) // 2 :] for row in rows]  # cut inside characters
    for skip in (True, False):
        if "decode" not in reasons and own.decode(rows, skip) != wrapped.decode(rows, skip):
            reasons["decode"] = "TOKENIZER_ID_MISMATCH: other texts of the same ids"
    return reasons
