"""Text to token ids and back, with the libraries tokenizers, tiktoken and SentencePiece; a tokenizer is identified by a
digest of its behavior.

tokenizer_id = register_tokenizer("path/to/tokenizer.json")
tokenize("Hello", tokenizer_id)  ->  {"input_ids": [...]}
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from layerzero._layerzero import token_cache_encode
from layerzero.errors import NotInstalledError, UnknownNameError, WrongTypeError
from layerzero.host import forks
from layerzero.tokenizers.cache import TokenCache, TokenCacheWarning
from layerzero.tokenizers.identity import TokenizerDigests, tokenizer_digests, tokenizer_mismatches
from layerzero.tokenizers.libraries import checked_ids, tokenizers_library, typed_errors, wrap
from layerzero.tokenizers.registered import Registered

__all__ = [
    "TokenCache",
    "TokenCacheWarning",
    "TokenizerDigests",
    "detokenize",
    "register_tokenizer",
    "tokenize",
    "tokenizer_arguments",
    "tokenizer_digests",
    "tokenizer_identity",
    "tokenizer_kernels",
    "tokenizer_mismatches",
    "wrap_tokenizer",
]

_lock = forks.lock()
_by_id: dict[str, Registered] = {}
_id_of_file: dict[Any, str] = {}  # (path, mtime, size) -> id

_IS_IDENTITY = re.compile("[0-9a-f]{64}").fullmatch


def tokenizer_identity(tokenizer: Any) -> str:
    """Returns 64 hexadecimal digits, equal exactly for tokenizers that produce equal ids and texts.

    SHA-256 over vocabulary and merges with the model's parameters, normalizer, pre-tokenizer, post-processor, decoder,
    added and special tokens. Padding and truncation are settings of a call and not included.
    """
    return tokenizer_digests(wrap(tokenizer).identified).tokenizer_id


def _read(path: pathlib.Path) -> Any:
    if path.suffix != ".model":
        library = tokenizers_library()
        with typed_errors(f"tokenizer: {path}", "a tokenizer.json that the library reads", "fetch the file again"):
            return library.Tokenizer.from_file(str(path))
    try:
        import sentencepiece
    except ImportError as error:
        raise NotInstalledError(
            f"tokenizer: {path}", "the package sentencepiece", "none", "pip install sentencepiece"
        ) from error
    with typed_errors(f"tokenizer: {path}", "a SentencePiece model that the library reads", "fetch the file again"):
        return sentencepiece.SentencePieceProcessor(model_file=str(path))


def register_tokenizer(tokenizer: Any) -> str:
    """Registers a tokenizer and returns its id; accepts a path to a tokenizer.json, to its folder, or to a
    SentencePiece .model file."""
    key = None
    if isinstance(tokenizer, (str, pathlib.Path)):
        path = pathlib.Path(tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise UnknownNameError("tokenizer", "a tokenizer.json or its folder", f"{path}, which does not exist")
        stat = path.stat()
        key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size)
        if key in _id_of_file:
            return _id_of_file[key]
        tokenizer = _read(path)
    library = wrap(tokenizer)
    identity = tokenizer_digests(library.identified).tokenizer_id
    with _lock:
        _by_id.setdefault(identity, Registered(identity, library))
        if key:
            _id_of_file[key] = identity
    return identity


def _find(tokenizer_id: str) -> Registered:
    if not isinstance(tokenizer_id, str):
        raise WrongTypeError("tokenizer_id", "a str", type(tokenizer_id).__name__, "use register_tokenizer")
    found = _by_id.get(tokenizer_id)
    if found is None and not _IS_IDENTITY(tokenizer_id):
        found = _by_id[register_tokenizer(tokenizer_id)]
    if found is None:
        raise UnknownNameError(
            "tokenizer_id",
            "one that register_tokenizer returned in this process",
            f"{tokenizer_id!r} (TOKENIZER_ID_MISMATCH)",
            "register the tokenizer first",
        )
    return found


def tokenize(
    texts: str | Sequence[str],
    tokenizer_id: str,
    return_offsets: bool = False,
    *,
    add_special_tokens: bool = True,
    cache: TokenCache | None = None,
) -> dict[str, list[Any]]:
    """Returns {"input_ids"} of a str or of each str of a list; with return_offsets also (start, end) in characters.

    The call is one of the operation `tokenize.encode`: of the kernels with this tokenizer's ids the best runs. `cache`:
    ids of texts that it has are taken from it; calls with offsets do not use it.
    """
    if cache is not None and not return_offsets:
        ids = token_cache_encode(cache.held, tokenizer_id, cache.model_id, add_special_tokens, texts)
        if ids is not None:
            return {"input_ids": ids}
    tokenizer, single = _find(tokenizer_id), isinstance(texts, str)
    batch: list[str] = [texts] if isinstance(texts, str) else list(texts)
    for index, text in enumerate(batch):
        if not isinstance(text, str):
            raise WrongTypeError(f"texts[{index}]", "a str", type(text).__name__, "decode bytes first")
    if return_offsets:
        ids, offsets = tokenizer.encode(batch, True, add_special_tokens)
        result = {"input_ids": ids, "offsets": offsets}
    elif cache is not None:
        result = {"input_ids": cache.encode(tokenizer, batch, add_special_tokens)}
    else:
        result = {"input_ids": tokenizer.encode(batch, False, add_special_tokens)}
    return {name: rows[0] for name, rows in result.items()} if single else result


def detokenize(tokens: Any, tokenizer_id: str, *, skip_special_tokens: bool = True) -> str | list[str]:
    """Returns the text of a list of ids, or the texts of a list of such lists."""
    tokenizer = _find(tokenizer_id)
    rows = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    nested = bool(rows) and (hasattr(rows[0], "__iter__") or getattr(rows[0], "ndim", 0) > 0)
    named = {f"tokens[{index}]": row for index, row in enumerate(rows)} if nested else {"tokens": rows}
    batch = [checked_ids(row, tokenizer.vocab_size, name) for name, row in named.items()]
    texts = tokenizer.decode(batch, skip_special_tokens)
    return texts if nested else texts[0]


def tokenizer_kernels(tokenizer_id: str) -> dict[str, str]:
    """Returns why LayerZero's own tokenizer does not compute "ids", "offsets" or "decode" of a registered tokenizer, for
    those that it does not; {}: it computes all of them."""
    return _find(tokenizer_id).reasons()


def tokenizer_arguments(
    texts: str | Sequence[str], tokenizer_id: str, return_offsets: bool = False, *, add_special_tokens: bool = True
) -> dict[str, Any]:
    """Returns the arguments of `tokenize.encode` for texts, for explain, which and run:
    `lz.explain("tokenize.encode", **lz.tokenizer_arguments("Hello", tokenizer_id))`. The tensors are torch's: `text` uint8
    [bytes], `starts` int64 [texts + 1]."""
    import torch

    tokenizer = _find(tokenizer_id)
    pieces = [text.encode() for text in ([texts] if isinstance(texts, str) else texts)]
    ends = torch.tensor([0, *(len(piece) for piece in pieces)], dtype=torch.int64).cumsum(0)
    return {
        "text": torch.tensor(list(b"".join(pieces)), dtype=torch.uint8),
        "starts": ends,
        "tokenizer": tokenizer.number,
        "capacity": int(ends[-1]) + 16 * len(pieces),
        "add_special_tokens": add_special_tokens,
        "return_offsets": return_offsets,
        **tokenizer.served("ids"),
    }


def wrap_tokenizer(tokenizer: Any, *, cache: TokenCache | None = None, enabled: bool = True) -> Any:
    """Returns a Transformers tokenizer (fast) whose texts are encoded by `tokenize.encode`, with the same answers: ids,
    offsets, special tokens, padding, truncation, chat template. It has `tokenizer_id`. `enabled=False`: the tokenizer
    itself."""
    if not enabled:
        return tokenizer
    from layerzero.tokenizers.transformers import wrapped

    return wrapped(tokenizer, register_tokenizer(tokenizer), cache)
