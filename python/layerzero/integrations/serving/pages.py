"""Page lists in CSR form, made on the device from tables of pages."""

from typing import NamedTuple

import torch
from torch.nn import functional as F


class Pages(NamedTuple):
    """A page list as the operations over paged caches take it; all int32 on the device."""

    indptr: torch.Tensor  # (n + 1)
    indices: torch.Tensor  # (at least indptr[-1])
    last_len: torch.Tensor  # (n) entries in use in each last page


def pages_of(table: torch.Tensor, lengths: torch.Tensor, page_size: int, most: int) -> Pages:
    """table (n, width) int32, lengths (n) int32 in keys; most: an upper bound of the pages of all. Reads nothing."""
    count = (lengths + (page_size - 1)) // page_size
    indptr = F.pad(count.cumsum(0, dtype=torch.int32), (1, 0))
    order = torch.arange(most, dtype=torch.int32, device=table.device)
    row = torch.searchsorted(indptr[1:], order, right=True).clamp_(max=table.shape[0] - 1)
    column = (order - indptr[row]).clamp_(0, table.shape[1] - 1).long()
    return Pages(indptr, table[row, column], lengths - (count - 1).clamp_(min=0) * page_size)
