"""Kernels of tokenize.encode and tokenize.decode over a library, for calls with tensors. Calls of lz.tokenize give the
library its strings and do not come here."""

from typing import Any

from layerzero.errors import InvalidRequestError, KernelRefusedError
from layerzero.tokenizers.registered import Registered, numbered


def _of(number: int) -> Registered:
    found = numbered(number)
    if found is None:
        raise KernelRefusedError(f"tokenizer {number} belongs to no library")
    return found


def _bounds(starts: Any, size: int) -> list[int]:
    bounds: list[int] = []
    for start in starts.tolist():
        bounds.append(max(min(max(start, 0), size), bounds[-1] if bounds else 0))
    return bounds


def encode(
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
    """The arguments of the contract; which libraries serve the tokenizer was asked by selection."""
    import torch

    wrapped, data = _of(tokenizer).wrapped, bytes(text.tolist())
    bounds = _bounds(starts, len(data))
    try:
        texts = [data[a:b].decode() for a, b in zip(bounds, bounds[1:], strict=False)]
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


def decode(ids: Any, starts: Any, tokenizer: int, capacity: int, skip_special_tokens: bool, *_: Any) -> Any:
    import torch

    numbers = ids.tolist()
    bounds = _bounds(starts, len(numbers))
    rows = [numbers[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    texts = [text.encode() for text in _of(tokenizer).wrapped.decode(rows, skip_special_tokens)]
    out = torch.zeros(capacity, dtype=torch.uint8)
    data = b"".join(texts)[:capacity]
    out[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    return out, torch.tensor([len(text) for text in texts], dtype=torch.int64).cumsum(0)
