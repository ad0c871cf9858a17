"""Torch reference of kv.page_table: any device; nothing is read from it."""

import torch
from torch.nn import functional as F


def reference(kv_indptr, kv_indices, kv_last_page_len, num_pages, page_size, *, qo_indptr=None, total_q=0):
    listed = kv_indices.shape[0]
    first = F.pad(kv_indptr.long().clamp(0, listed), (0, 1))  # of one more sequence, without pages
    count = first.diff().clamp_(min=0)
    last = F.pad(kv_last_page_len.long(), (0, 1))
    lens = torch.where(count > 0, ((count - 1) * page_size + last.clamp(max=page_size)).clamp(min=0), 0)
    place = torch.arange(listed, device=kv_indices.device)
    entry = (first[:-1, None] + place).clamp_(max=max(listed - 1, 0))
    table = torch.where(place < count[:, None], kv_indices[entry].clamp(0, max(num_pages - 1, 0)), 0)
    outputs = (table.to(torch.int32), lens.to(torch.int32))
    if qo_indptr is None:
        return outputs
    offsets = qo_indptr.long().clamp(0, total_q).cummax(0).values
    return (*outputs, F.pad(offsets, (0, 1), value=total_q).to(torch.int32))
