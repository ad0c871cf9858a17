"""Attention through a map of blocks of different sizes, expanded to a mask on the tensors' device."""

import torch
from torch.nn import functional as F

from layerzero.backends.torch.expressions import product, products_dtype
from layerzero.backends.torch.paged import exponentials, finished
from layerzero.errors import KernelExecutionError

OPERATION = "variable_block_sparse_attention"
LOGITS = 1 << 26  # in memory at once


def _blocks_of(sizes, items, name):
    """Returns the block of each item, (h_kv, items); on CUDA wrong sizes select other blocks, never one outside."""
    if sizes.device.type == "cpu" and not bool(((sizes >= 0).all(-1) & (sizes.sum(-1) == items)).all()):
        raise KernelExecutionError(f"{OPERATION}: {name}", f"sizes that add up to {items}", str(sizes.tolist()))
    item = torch.arange(items, device=sizes.device, dtype=torch.int32).expand(sizes.shape[0], items).contiguous()
    ends = sizes.cumsum(-1, dtype=torch.int32)
    return torch.searchsorted(ends, item, right=True).clamp_(max=sizes.shape[1] - 1)


def visible(block_mask, row_sizes, col_sizes, m, n):
    """Returns a bool mask (h_kv, m, n)."""
    rows, columns = _blocks_of(row_sizes, m, "row_sizes"), _blocks_of(col_sizes, n, "col_sizes")
    by_row = block_mask.gather(1, rows[..., None].expand(-1, -1, block_mask.shape[2]))
    return by_row.gather(2, columns[:, None].expand(-1, m, -1))


def variable_block_sparse_attention(q, k, v, block_mask, row_sizes, col_sizes, sm_scale, return_lse):
    seen = visible(block_mask, row_sizes, col_sizes, q.shape[0], k.shape[0])
    dtype, h_kv = products_dtype(q), k.shape[1]
    rows = q.unflatten(1, (h_kv, -1)).permute(1, 2, 0, 3).to(dtype)  # (h_kv, group, m, d)
    keys, values = (t.transpose(0, 1).to(dtype) for t in (k, v))
    step = max(1, LOGITS // (q.shape[1] * k.shape[0]))
    outputs, lses = [], []
    for first in range(0, q.shape[0], step):
        some, of_some = rows[:, :, first : first + step], seen[:, None, first : first + step]
        z = product(some.flatten(1, 2), keys.transpose(1, 2)).mul_(sm_scale).unflatten(1, some.shape[1:3])
        z = z.masked_fill_(~of_some, -torch.inf).flatten(1, 2)
        output, lse = finished(exponentials(z, values, of_some.expand(-1, rows.shape[1], -1, -1).flatten(1, 2)))
        outputs.append(output.unflatten(1, some.shape[1:3]))
        lses.append(lse.unflatten(1, some.shape[1:3]))
    output = torch.cat(outputs, 2).permute(2, 0, 1, 3).flatten(1, 2).to(q.dtype)
    return (output, torch.cat(lses, 2).permute(2, 0, 1).flatten(1, 2).float()) if return_lse else output


def variable_block_sparse_sdpa(q, k, v, block_mask, row_sizes, col_sizes, sm_scale, return_lse):
    """Uses torch's own choice of a kernel. It adds the mask to the logits, so keys that are not finite are removed
    first, and the rows that see them are set to NaN."""
    seen = visible(block_mask, row_sizes, col_sizes, q.shape[0], k.shape[0])
    broken = k.sum(-1, dtype=torch.float32) * 0 != 0  # (n, h_kv)
    query = q.unflatten(1, (k.shape[1], -1)).permute(1, 2, 0, 3)
    key, value = (t.transpose(0, 1)[:, None] for t in (k.masked_fill(broken[..., None], 0), v))
    output = F.scaled_dot_product_attention(query, key, value, seen[:, None], scale=sm_scale, enable_gqa=True)
    output = output.masked_fill(~seen.any(-1)[:, None, :, None], 0)
    output = output.masked_fill((seen & broken.T[:, None]).any(-1)[:, None, :, None], torch.nan)
    return output.permute(2, 0, 1, 3).flatten(1, 2)
