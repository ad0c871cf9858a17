"""Torch reference of attention.sparse.block: any device, differentiable; one block of queries at a time."""

from itertools import pairwise

import torch


def reference(q, k, v, indptr, indices, R, C, sm_scale=None, *, return_lse=False):
    blocks = k.shape[0] // C
    offsets = indptr.tolist()
    if offsets[0] != 0 or any(b < a for a, b in pairwise(offsets)) or offsets[-1] > indices.shape[0]:
        raise ValueError(f"indptr: wanted offsets from 0, never decreasing, up to {indices.shape[0]}, got {offsets}")
    used = indices[: offsets[-1]].long()
    if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < blocks:
        raise ValueError(f"indices: wanted key blocks below {blocks}, got {used.tolist()}")
    compute = torch.promote_types(q.dtype, torch.float32)
    scale = sm_scale if sm_scale is not None else q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (t.to(compute).unflatten(0, (blocks, C)) for t in (k, v))
    outs, lses = (
        [q.new_zeros(0, q.shape[1], v.shape[-1], dtype=compute)],
        [q.new_zeros(q.shape[1], 0, dtype=compute)],
    )
    for row, (begin, end) in enumerate(pairwise(offsets)):
        if begin == end:
            outs.append(q.new_zeros(R, q.shape[1], v.shape[-1], dtype=compute))
            lses.append(q.new_full((q.shape[1], R), -torch.inf, dtype=compute))
            continue
        keys, values = (t[used[begin:end]].flatten(0, 1).repeat_interleave(group, 1) for t in (k, v))
        z = torch.einsum("ihd,jhd->hij", q[row * R : (row + 1) * R].to(compute), keys) * scale
        outs.append(torch.einsum("hij,jhd->ihd", torch.softmax(z, -1), values))
        lses.append(torch.logsumexp(z, -1))
    out = torch.cat(outs).to(q.dtype)
    return (out, torch.cat(lses, 1).transpose(0, 1).float()) if return_lse else out
