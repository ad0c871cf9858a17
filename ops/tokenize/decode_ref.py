"""Torch reference of tokenize.decode: tokenizer 0, whose ids are bytes."""

import torch

from ..common import tokens as _common


def reference(
    ids, starts, tokenizer, capacity, *, skip_special_tokens=True, bpe=False, tokenizers=False, tiktoken=False,
    sentencepiece=False,
):  # fmt: skip
    return _common.copy_pieces(ids, starts, tokenizer, capacity, torch.uint8)
