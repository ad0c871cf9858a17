"""Digests of everything that determines a tokenizer's ids: equal digests of all parts mean equal ids and texts.

Libraries: `tokenizers` (and Transformers tokenizers over it), tiktoken (ranks, pattern, special tokens) and
SentencePiece (the model file). Any other tokenizer is identified by its __getstate__().
"""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from layerzero.errors import WrongTypeError
from layerzero.inspection.report import Reason

# The parts of a tokenizer.json that determine ids, and the text decoded from ids.
_IDENTITY = ("added_tokens", "normalizer", "pre_tokenizer", "model", "post_processor", "decoder")


def digest(value: Any) -> str:
    """Returns 64 hexadecimal digits of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class TokenizerDigests:
    """SHA-256 of a whole tokenizer and of its parts; a part that a library does not have is the digest of null."""

    tokenizer_id: str
    vocab_hash: str
    merges_hash: str
    normalizer_id: str
    pretokenizer_id: str
    added_tokens_hash: str
    special_tokens_hash: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


def tokenizer_digests(tokenizer: Any) -> TokenizerDigests:
    backend = getattr(tokenizer, "backend_tokenizer", None) or getattr(tokenizer, "_tokenizer", None) or tokenizer
    library = type(backend).__module__.partition(".")[0]
    if library == "tokenizers":
        return _of_json(json.loads(backend.to_str()))
    if library == "tiktoken":
        return _of_tiktoken(backend)
    if hasattr(backend, "serialized_model_proto"):
        return _of_sentencepiece(backend)
    try:
        state = backend.__getstate__() if hasattr(backend, "__getstate__") else None
        if state:
            return _of_parts([type(backend).__qualname__, state], model=digest(state))
    except TypeError:  # its state is not JSON
        pass
    raise WrongTypeError(
        "tokenizer",
        "one of tokenizers, Transformers (fast), tiktoken or SentencePiece, one whose __getstate__() is JSON, or a path "
        "to tokenizer.json",
        type(tokenizer).__name__,
        "convert it with its own library first",
    )


def _of_parts(whole: Any, model: Any = None, merges: Any = None, normalizer: Any = None, pretokenizer: Any = None,
              added: Any = None, special: Any = None) -> TokenizerDigests:  # fmt: skip
    return TokenizerDigests(
        digest(whole), *(digest(part) for part in (model, merges, normalizer, pretokenizer, added, special))
    )


def _of_json(parts: dict[str, Any]) -> TokenizerDigests:
    model = dict(parts["model"])
    merges = model.pop("merges", None)
    added = parts.get("added_tokens") or []
    return _of_parts(
        {name: parts.get(name) for name in _IDENTITY},
        model=model,
        merges=merges,
        normalizer=parts.get("normalizer"),
        pretokenizer=parts.get("pre_tokenizer"),
        added=added,
        special=[[token for token in added if token.get("special")], parts.get("post_processor")],
    )


# Options that a SentencePieceProcessor gets at creation and applies to every call, with their neutral values.
_SENTENCEPIECE_DEFAULTS = {
    "add_bos": False,
    "add_eos": False,
    "reverse": False,
    "emit_unk_piece": False,
    "enable_sampling": False,
    "nbest_size": -1,
    "alpha": 0.1,
}


def _of_sentencepiece(processor: Any) -> TokenizerDigests:
    model = hashlib.sha256(processor.serialized_model_proto()).hexdigest()
    options = {name: getattr(processor, f"_{name}", default) for name, default in _SENTENCEPIECE_DEFAULTS.items()}
    if not options["enable_sampling"]:
        options |= {name: _SENTENCEPIECE_DEFAULTS[name] for name in ("nbest_size", "alpha")}  # only sampling reads them
    changed = {name: value for name, value in options.items() if value != _SENTENCEPIECE_DEFAULTS[name]}
    return _of_parts(["sentencepiece", model, *([changed] if changed else [])], model=model, special=changed or None)


def _of_tiktoken(encoding: Any) -> TokenizerDigests:
    ranks = [[base64.b64encode(token).decode(), rank] for token, rank in encoding._mergeable_ranks.items()]
    ranks.sort(key=lambda pair: pair[1])
    special, pattern = sorted(encoding._special_tokens.items()), encoding._pat_str
    return _of_parts(
        ["tiktoken", ranks, pattern, special], model=ranks, merges=ranks, pretokenizer=pattern, special=special
    )


_CODES = {
    "tokenizer_id": "TOKENIZER_ID_MISMATCH",
    "vocab_hash": "VOCAB_HASH_MISMATCH",
    "merges_hash": "MERGES_HASH_MISMATCH",
    "normalizer_id": "NORMALIZER_MISMATCH",
    "pretokenizer_id": "PRETOKENIZER_MISMATCH",
    "added_tokens_hash": "ADDED_TOKENS_MISMATCH",
    "special_tokens_hash": "SPECIAL_TOKENS_MISMATCH",
}


def tokenizer_mismatches(wanted: TokenizerDigests | dict[str, str], tokenizer: Any) -> list[Reason]:
    """Returns a reason for each part of a tokenizer that differs from these digests (all of them or some)."""
    expected = wanted if isinstance(wanted, dict) else wanted.to_dict()
    unknown = sorted(set(expected) - set(_CODES))
    if unknown:
        raise WrongTypeError("digests", ", ".join(_CODES), ", ".join(unknown))
    got = tokenizer_digests(tokenizer).to_dict()
    return [
        Reason(_CODES[name], name, value, got[name], f"{name}: wanted {value[:12]}..., got {got[name][:12]}...")
        for name, value in expected.items()
        if got[name] != value
    ]
