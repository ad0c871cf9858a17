"""One call of an operation and the torch expression that a user would write instead, with their tensors."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

H_Q, H_KV, D = 32, 8, 128
PAGE = 16
DTYPE_NAME = os.environ.get("NO_HARM_DTYPE", "bfloat16")  # set by --dtype, before this module is imported
DTYPE = getattr(torch, DTYPE_NAME)


@dataclass(frozen=True)
class Case:
    """`ours` and `theirs` are functions without parameters over the same tensors; `checked` is False for random draws."""

    operation: str
    label: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    checked: bool = True


def r(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    """Returns N(0, 1) values on the device."""
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def qkv(b: int, s_q: int, s_kv: int, d: int = D, h_q: int = H_Q, h_kv: int = H_KV) -> tuple[torch.Tensor, ...]:
    """Returns query, key and value, BHSD."""
    return r(b, h_q, s_q, d), r(b, h_kv, s_kv, d), r(b, h_kv, s_kv, d)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options)


def pages(b: int, s: int, d: int = D, h: int = H_KV) -> tuple[torch.Tensor, ...]:
    """Returns key and value pages, page table (b, pages), and the CSR index tensors; each sequence has s keys."""
    each = s // PAGE
    k, v = r(b * each, PAGE, h, d), r(b * each, PAGE, h, d)
    table = torch.randperm(b * each, device="cuda").to(torch.int32).view(b, each)
    indptr = torch.arange(0, b * each + 1, each, device="cuda", dtype=torch.int32)
    return k, v, table, indptr, table.flatten(), torch.full((b,), PAGE, device="cuda", dtype=torch.int32)


def gathered(cache: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Returns the pages of each sequence in order, BHSD."""
    return cache[table].flatten(1, 2).transpose(1, 2)
