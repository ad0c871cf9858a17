"""Torch reference of tokenize.encode: tokenizer 0, whose ids are bytes."""

import torch

from ..common import tokens as _common


def reference(
    text, starts, tokenizer, capacity, *, add_special_tokens=True, bpe=False, tokenizers=False, tiktoken=False,
    sentencepiece=False, return_offsets=False, bpe_offsets=False,
):  # fmt: skip
    ids, ends = _common.copy_pieces(text, starts, tokenizer, capacity, torch.int32)
    if not return_offsets:
        return ids, ends
    place = torch.arange(capacity, device=text.device)
    row = torch.searchsorted(ends, place, right=True)
    first = torch.nn.functional.pad(ends, (1, 0))
    offset = place - first[row.clamp(max=ends.shape[0])]
    inside = row < ends.shape[0]
    spans = torch.stack([torch.where(inside, offset, 0), torch.where(inside, offset + 1, 0)], -1)
    return ids, ends, spans.to(torch.int32)
