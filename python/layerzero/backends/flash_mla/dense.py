"""Decoding with latents by FlashMLA: pages of 64 entries whose latent and rotated parts are neighbours in one tensor.

Its schedule is made on the device in each call: a stored one would be right for the same lengths only.
"""

from collections.abc import Callable
from typing import Any

import torch

from layerzero.backends.flash_attn.packed import csr, finished
from layerzero.backends.torch.attention import positive_scale
from layerzero.errors import KernelRefusedError


def joined(ckv: torch.Tensor, kpe: torch.Tensor) -> torch.Tensor:
    """The tensor (pages, size, 1, d_ckv + d_kpe) of which the two caches are views; nothing is copied."""
    width = ckv.shape[2]
    follows = kpe.data_ptr() == ckv.data_ptr() + width * ckv.element_size() and ckv.stride() == kpe.stride()
    if not follows or ckv.stride(2) != 1 or ckv.stride(1) < width + kpe.shape[2]:
        raise KernelRefusedError(
            "FlashMLA reads latents and rotated parts from one tensor: make the caches views of it"
        )
    pages, size = ckv.shape[:2]
    shape, strides = (pages, size, 1, width + kpe.shape[2]), (ckv.stride(0), ckv.stride(1), ckv.stride(1), 1)
    return ckv.as_strided(shape, strides)


def mla_of(metadata: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The adapter of mla_decode_paged by a package's get_mla_metadata and flash_mla_with_kvcache."""

    def mla_decode_paged(q_nope, q_pe, ckv_cache, kpe_cache, indptr, indices, last_page_len, sm_scale, return_lse):
        query, scale = positive_scale(torch.cat((q_nope, q_pe), -1), sm_scale)
        cache = joined(ckv_cache, kpe_cache)
        pages = csr(cache, cache, indptr, indices, last_page_len)
        assert pages.used is not None
        output, lse = function(
            query.unsqueeze(1),
            cache,
            pages.table,
            pages.used,
            q_nope.shape[2],
            metadata()[0],
            softmax_scale=scale,
            causal=False,
        )
        empty = torch.eq(pages.used, 0)[:, None]
        output = output.squeeze(1).masked_fill(empty[..., None], 0)
        lse = lse.squeeze(2).masked_fill(empty, torch.inf)
        both = finished(output, lse, None, return_lse)
        return both if return_lse else output

    return mla_decode_paged


def probe_of(adapter: Callable[..., Any]) -> Callable[[], None]:
    """Returns a probe: the result of a zero query over two entries is the mean of their latents."""

    def probe() -> None:
        cache = torch.zeros(1, 64, 576, dtype=torch.bfloat16, device="cuda")
        cache[0, 1] = 1
        query = torch.zeros(1, 16, 576, dtype=torch.bfloat16, device="cuda")
        tables = (torch.tensor(t, dtype=torch.int32, device="cuda") for t in ([0, 1], [0], [2]))
        parts = (query[..., :512], query[..., 512:], cache[..., :512], cache[..., 512:])
        output, lse = adapter(*parts, *tables, 0.1, True)
        mean, lse = output.float().mean().item(), lse.mean().item()
        if abs(mean - 0.5) > 1e-2 or abs(lse - 0.6931) > 1e-2:
            raise RuntimeError(f"FlashMLA over latents 0 and 1: wanted 0.5 and lse 0.6931, got {mean} and {lse}")

    return probe
