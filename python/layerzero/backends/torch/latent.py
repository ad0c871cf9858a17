"""Multi-head latent attention as torch expressions on any device."""

import torch
from torch.nn import functional as F

from layerzero.backends.torch import pages
from layerzero.backends.torch.expressions import HALF, product
from layerzero.backends.torch.paged import (
    by_head,
    dtype_of_products,
    exponentials,
    finished,
    gathered,
    over_blocks,
    quotient,
)
from layerzero.torch.captures import plans_first
from layerzero.torch.references import call_reference

LOGITS = 1 << 26  # in memory at once


def mla_decode_paged(
    q_nope, q_pe, ckv_cache, kpe_cache, indptr, indices, last_page_len, sm_scale, return_lse
):  # fmt: skip
    """Gathers latents once: they are the keys and the values of all heads."""
    operation = "mla_decode_paged"
    entries = pages.csr(operation, indptr, indices, last_page_len, ckv_cache.shape[1])
    dtype = dtype_of_products(q_nope, ckv_cache)
    nope, pe = (t.to(dtype) for t in (q_nope, q_pe))
    ckv_cache, kpe_cache = ckv_cache.unsqueeze(2), kpe_cache.unsqueeze(2)

    block = pages.blocks(operation, entries, ckv_cache.shape[0])
    row = by_head(block, 1)
    ckv, kpe = (gathered(cache, row, dtype) for cache in (ckv_cache, kpe_cache))
    nope, pe = (block.of(t) for t in (nope, pe))
    z = _logits(nope, pe, ckv[:, 0], kpe[:, 0], sm_scale).unsqueeze(1)
    parts = over_blocks(z, lambda: ckv, block, return_lse)
    if not return_lse:
        return quotient(parts.values, parts.total, parts.top == -torch.inf).squeeze(1).to(q_nope.dtype)
    output, lse = (t.squeeze(1) for t in finished(parts))
    return output.to(q_nope.dtype), lse.float()


def _logits(nope, pe, ckv, kpe, sm_scale):
    """Returns sm_scale * (nope @ ckv.T + pe @ kpe.T) of (b, rows, d) and (b, keys, d), in at least float32."""
    ckv, kpe = ckv.transpose(1, 2), kpe.transpose(1, 2)
    if nope.dtype not in HALF or not nope.is_cuda:
        return (product(nope, ckv) + product(pe, kpe)).mul_(sm_scale)
    rotated = product(pe, kpe)
    return torch.baddbmm(rotated, nope, ckv, beta=sm_scale, alpha=sm_scale, out_dtype=torch.float32)


def _weighed(z, value, return_lse):
    """Returns softmax(logits (b, rows, keys)) @ value (b, keys, d), 0 for a row of only -inf, and the lse or None."""
    nothing = (z.amax(-1, keepdim=True) == -torch.inf).expand(*z.shape[:-1], value.shape[-1])
    output = product(torch.softmax(z, -1).to(value.dtype), value)
    return output.masked_fill_(nothing, 0), torch.logsumexp(z, -1) if return_lse else None


def mla_decode(q_nope, q_pe, ckv, kpe, sm_scale, causal, return_lse):
    """Computes the heads of some tokens as the rows of one product with all latents."""
    dtype = dtype_of_products(q_nope, ckv)
    tokens, heads, _ = q_nope.shape
    length = ckv.shape[0]
    latents, rotated = (t.transpose(0, 1).to(dtype) for t in (ckv, kpe))
    step = max(1, LOGITS // (heads * length))
    parts = []
    for first in range(0, tokens, step):
        nope, pe = (t[first : first + step].flatten(0, 1)[None].to(dtype) for t in (q_nope, q_pe))
        z = _logits(nope, pe, latents, rotated, sm_scale)
        if causal and tokens > 1:
            position = torch.arange(length, device=ckv.device)
            last = torch.arange(first, first + nope.shape[1] // heads, device=ckv.device) + (length - tokens)
            seen = (position <= last[:, None])[:, None].expand(-1, heads, -1).flatten(0, 1)[None]
            both = finished(exponentials(z.masked_fill_(~seen, -torch.inf), latents, seen))
        else:
            both = _weighed(z, latents, return_lse)
        parts.append(both)
    outputs, lses = zip(*parts, strict=True)
    output = (torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]).to(q_nope.dtype).view(tokens, heads, -1)
    return (output, torch.cat(lses, 1).float().view(tokens, heads)) if return_lse else output


def _hides_nan(*tensors):
    """True if a logit or value may be NaN on the CPU, where torch's kernels add -inf to a masked key's logit."""
    return tensors[0].device.type == "cpu" and not all(bool(t.detach().sum().isfinite()) for t in tensors)


@plans_first
def mla_prefill(q_nope, q_pe, k_nope, k_pe, value, causal, sm_scale, return_lse, layout):
    """Concatenates the parts for torch's own choice of a kernel, which accepts values narrower than keys."""
    if sm_scale <= 0 or _hides_nan(q_nope, q_pe, k_nope, k_pe, value):
        names = ("q_nope", "q_pe", "k_nope", "k_pe", "value", "causal", "sm_scale")
        given = dict(zip(names, (q_nope, q_pe, k_nope, k_pe, value, causal, sm_scale), strict=True))
        return call_reference("mla_prefill", given, layout)
    q = torch.cat([q_nope, q_pe], -1)
    k = torch.cat([k_nope, k_pe.expand(*k_nope.shape[:-1], -1)], -1)
    if layout != "BHSD":  # after the copies, which are faster without
        q, k, value = (t.transpose(1, 2) for t in (q, k, value))
    s_q, s_kv, mask = q.shape[2], k.shape[2], None
    if causal and s_q not in (1, s_kv):
        mask = torch.ones(s_q, s_kv, dtype=torch.bool, device=q.device).tril(s_kv - s_q)
    output = F.scaled_dot_product_attention(q, k, value, mask, 0.0, causal and s_q == s_kv, scale=sm_scale)
    if causal and s_q > s_kv:  # rows before the first key
        output = F.pad(output[:, :, s_q - s_kv :], (0, 0, s_q - s_kv, 0))
    return output if layout == "BHSD" else output.transpose(1, 2)
