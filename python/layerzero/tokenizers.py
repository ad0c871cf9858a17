"""Text to token ids and back, over the library `tokenizers`; a tokenizer is named by the digest of what it computes.

tokenizer_id = register_tokenizer("path/to/tokenizer.json")
tokenize("Hello", tokenizer_id)  ->  {"input_ids": [...]}
"""

import hashlib
import json
import pathlib
import re
import threading

from layerzero.errors import InvalidRequestError, NotInstalledError, UnknownNameError, WrongTypeError

# The parts of a tokenizer.json that decide about ids, and about the text made from ids.
_IDENTITY = ("added_tokens", "normalizer", "pre_tokenizer", "model", "post_processor", "decoder")
_lock = threading.Lock()
_by_id: dict = {}
_id_of_file: dict = {}  # (path, mtime, size) -> id


_IS_IDENTITY = re.compile("[0-9a-f]{64}").fullmatch


def _library():
    try:
        import tokenizers
    except ImportError as error:
        raise NotInstalledError("tokenize needs the package tokenizers: pip install tokenizers") from error
    return tokenizers


def tokenizer_identity(tokenizer):
    """64 hexadecimal digits, equal exactly for tokenizers that give equal ids and texts.

    SHA-256 over vocabulary and merges with the model's parameters, normaliser, pre-tokeniser, post-processor, decoder,
    added and special tokens. Padding and truncation are settings of a call, not part of it.
    """
    parts = json.loads(_fast(tokenizer).to_str())
    text = json.dumps({name: parts.get(name) for name in _IDENTITY}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _fast(tokenizer):
    library = _library()
    backend = getattr(tokenizer, "backend_tokenizer", getattr(tokenizer, "_tokenizer", tokenizer))
    if not isinstance(backend, library.Tokenizer):
        raise WrongTypeError(
            "tokenizer: wanted a tokenizers.Tokenizer, a Transformers tokenizer over one, or a path to tokenizer.json, "
            f"got {type(tokenizer).__name__}; convert it with its own library first"
        )
    return backend


def register_tokenizer(tokenizer):
    """Makes a tokenizer known and returns its id; accepts a path to a tokenizer.json or to its folder."""
    key = None
    if isinstance(tokenizer, (str, pathlib.Path)):
        path = pathlib.Path(tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise UnknownNameError(
                f"tokenizer: wanted a tokenizer.json or its folder, got {path}, which does not exist"
            )
        stat = path.stat()
        key = (str(path.resolve()), stat.st_mtime_ns, stat.st_size)
        if key in _id_of_file:
            return _id_of_file[key]
        tokenizer = _library().Tokenizer.from_file(str(path))
    # A copy of its own: padding or truncation that the caller switches on later must not change ids here.
    backend = _library().Tokenizer.from_str(_fast(tokenizer).to_str())
    backend.no_padding()
    backend.no_truncation()
    identity = tokenizer_identity(backend)
    with _lock:
        _by_id.setdefault(identity, backend)
        if key:
            _id_of_file[key] = identity
    return identity


def _find(tokenizer_id):
    if not isinstance(tokenizer_id, str):
        raise WrongTypeError(f"tokenizer_id: wanted a str, got {type(tokenizer_id).__name__}; use register_tokenizer")
    found = _by_id.get(tokenizer_id)
    if found is None and not _IS_IDENTITY(tokenizer_id):
        found = _by_id[register_tokenizer(tokenizer_id)]
    if found is None:
        raise UnknownNameError(
            f"tokenizer_id: wanted one that register_tokenizer gave in this process, got {tokenizer_id!r} "
            "(TOKENIZER_ID_MISMATCH); register the tokenizer first"
        )
    return found


def tokenize(texts, tokenizer_id, return_offsets=False, *, add_special_tokens=True):
    """{"input_ids"} of a str, or of each str of a list; with return_offsets also (start, end) character offsets."""
    backend = _find(tokenizer_id)
    single = isinstance(texts, str)
    batch = [texts] if single else list(texts)
    for index, text in enumerate(batch):
        if not isinstance(text, str):
            raise WrongTypeError(f"texts[{index}]: wanted a str, got {type(text).__name__}; decode bytes first")
    # encode_batch counts characters for offsets; the fast variant leaves that out and gives the same ids.
    encode = backend.encode_batch
    if not return_offsets and hasattr(backend, "encode_batch_fast"):
        encode = backend.encode_batch_fast
    encoded = encode(batch, add_special_tokens=add_special_tokens)
    result = {"input_ids": [e.ids for e in encoded]}
    if return_offsets:
        result["offsets"] = [e.offsets for e in encoded]
    return {name: rows[0] for name, rows in result.items()} if single else result


def detokenize(tokens, tokenizer_id, *, skip_special_tokens=True):
    """The text of a list of ids, or the texts of a list of such lists."""
    backend = _find(tokenizer_id)
    rows = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
    if not rows or isinstance(rows[0], int):
        _check_ids(rows, backend, "tokens")
        return backend.decode(rows, skip_special_tokens=skip_special_tokens)
    rows = [row.tolist() if hasattr(row, "tolist") else list(row) for row in rows]
    for index, row in enumerate(rows):
        _check_ids(row, backend, f"tokens[{index}]")
    return backend.decode_batch(rows, skip_special_tokens=skip_special_tokens)


def _check_ids(row, backend, field):
    size = backend.get_vocab_size()
    for token in row:
        if type(token) is not int or not 0 <= token < size:
            raise InvalidRequestError(
                f"{field}: wanted ids from 0 to {size - 1}, got {token!r}; pass ids of this tokenizer"
            )
