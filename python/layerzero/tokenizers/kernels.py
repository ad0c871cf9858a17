"""Kernels of tokenize.encode and tokenize.decode over a library, for calls with tensors. Calls of lz.tokenize give the
library its strings and do not come here."""

from typing import Any

from layerzero.errors import InvalidRequestError, KernelRefusedError
from layerzero.tokenizers.byte_ids import byte_tokenizer
from layerzero.tokenizers.libraries import Tokenizer, typed_errors
from layerzero.tokenizers.registered import numbered


def _of(library: str, number: int) -> tuple[Tokenizer, str]:
    """Returns a library's tokenizer and how its texts are bytes."""
    if number == 0:
        return byte_tokenizer(library), "latin-1"
    found = numbered(number)
    if found is None or found.wrapped.name != library:
        raise KernelRefusedError(f"tokenizer {number} is none of {library}")
    return found.wrapped, "utf-8"


def _bounds(starts: Any, size: int) -> list[int]:
    bounds: list[int] = []
    for start in starts.tolist():
        bounds.append(max(min(max(start, 0), size), bounds[-1] if bounds else 0))
    return bounds


def encode(
    library: str,
    text: Any,
    starts: Any,
    tokenizer: int,
    capacity: int,
    add_special_tokens: bool,
    bpe: bool,
    tokenizers: bool,
    tiktoken: bool,
    sentencepiece: bool,
    return_offsets: bool,
    bpe_offsets: bool,
) -> Any:
    """The library's name, then the arguments of the contract."""
    import torch

    (wrapped, encoding), data = _of(library, tokenizer), bytes(text.tolist())
    bounds = _bounds(starts, len(data))
    try:
        texts = [data[a:b].decode(encoding) for a, b in zip(bounds, bounds[1:], strict=False)]
    except UnicodeDecodeError as error:
        raise InvalidRequestError("text", "UTF-8", str(error), "encode the text as UTF-8") from error
    rows, places = wrapped.encode(texts, return_offsets, add_special_tokens)
    ids = torch.zeros(capacity, dtype=torch.int32)
    flat = [number for row in rows for number in row][:capacity]
    ids[: len(flat)] = torch.tensor(flat, dtype=torch.int32)
    ends = torch.tensor([len(row) for row in rows], dtype=torch.int64).cumsum(0)
    if not return_offsets:
        return ids, ends
    spans = torch.zeros(capacity, 2, dtype=torch.int32)
    pairs = [place for row in places for place in row][:capacity]
    spans[: len(pairs)] = torch.tensor(pairs, dtype=torch.int32).reshape(-1, 2)
    return ids, ends, spans


def decode(
    library: str, ids: Any, starts: Any, tokenizer: int, capacity: int, skip_special_tokens: bool, *_: Any
) -> Any:
    import torch

    wrapped, encoding = _of(library, tokenizer)
    numbers = [number & 255 for number in ids.tolist()] if tokenizer == 0 else ids.tolist()
    bounds = _bounds(starts, len(numbers))
    rows = [numbers[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    with typed_errors("ids", "ids of this tokenizer's vocabulary", "pass ids that tokenize.encode returned"):
        texts = [text.encode(encoding) for text in wrapped.decode(rows, skip_special_tokens)]
    out = torch.zeros(capacity, dtype=torch.uint8)
    data = b"".join(texts)[:capacity]
    out[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    return out, torch.tensor([len(text) for text in texts], dtype=torch.int64).cumsum(0)
