"""Attention over latents, partial results and their merges, block-sparse attention."""

from collections.abc import Iterator
from typing import Any

import layerzero as lz
import torch
from case import DTYPE, H_KV, H_Q, PAGE, Case, D, qkv, r, sdpa
from torch.nn import functional as F


def latent() -> Iterator[Case]:
    heads, rank, pe = 128, 512, 64
    scale = 192**-0.5
    for tokens, length in ((1, 4096), (4, 2048)):
        qn, qp, c, kp = r(tokens, heads, rank), r(tokens, heads, pe), r(length, 1, rank), r(length, 1, pe)

        def by_hand(qn: Any = qn, qp: Any = qp, c: Any = c, kp: Any = kp) -> Any:
            z = (qn @ c[:, 0].T + qp @ kp[:, 0].T) * scale
            return torch.softmax(z, -1, dtype=torch.float32).to(DTYPE) @ c[:, 0]

        yield Case(
            "mla_decode",
            f"{tokens} over {length}",
            lambda a=(qn, qp, c, kp): lz.mla_decode(*a, scale),
            lambda f=by_hand: f(),
        )
    b, s = 16, 2048
    each = s // PAGE
    cache, pes = r(b * each, PAGE, rank), r(b * each, PAGE, pe)
    table = torch.randperm(b * each, device="cuda").to(torch.int32).view(b, each)
    indptr = torch.arange(0, b * each + 1, each, device="cuda", dtype=torch.int32)
    last = torch.full((b,), PAGE, device="cuda", dtype=torch.int32)
    qn, qp = r(b, heads, rank), r(b, heads, pe)

    def paged() -> torch.Tensor:
        c, p = cache[table].flatten(1, 2), pes[table].flatten(1, 2)
        z = (qn @ c.transpose(1, 2) + qp @ p.transpose(1, 2)) * scale
        return torch.softmax(z, -1, dtype=torch.float32).to(DTYPE) @ c

    yield Case(
        "mla_decode_paged",
        f"{b} x {s}",
        lambda: lz.mla_decode_paged(qn, qp, cache, pes, indptr, table.flatten(), last, scale),
        paged,
    )
    pq, pqe, pk, pke, pv = (r(1, 1024, h, d) for h, d in ((16, 128), (16, 64), (16, 128), (1, 64), (16, 128)))
    yield Case(
        "mla_prefill",
        "1 x 1024",
        lambda: lz.mla_prefill(pq, pqe, pk, pke, pv, layout="BSHD"),
        lambda: sdpa(
            *(
                t.transpose(1, 2)
                for t in (torch.cat((pq, pqe), -1), torch.cat((pk, pke.expand(-1, -1, 16, -1)), -1), pv)
            ),
            is_causal=True,
        ).transpose(1, 2),
    )


def merges() -> Iterator[Case]:
    q, k, v = qkv(1, 1, 8192)

    def partials() -> Any:
        z = (q.view(1, H_KV, 4, D) @ k.transpose(-1, -2) * D**-0.5).float().view(1, H_Q, 8, -1)
        lse = z.logsumexp(-1)
        p = torch.exp(z - lse[..., None]).to(DTYPE).view(H_KV, 4, 8, -1).transpose(1, 2)
        out = p @ v.view(H_KV, 8, -1, D)
        return out.permute(1, 0, 2, 3).reshape(8, 1, H_Q, D).float(), lse.permute(2, 0, 1)

    yield Case(
        "attention_partials", "1 x 8192 in 8", lambda: lz.attention_partials(q, k, v, 8, layout="BHSD"), partials
    )
    for n in (16, 4096):
        a, b = r(n, H_Q, D), r(n, H_Q, D)
        sa, sb = r(n, H_Q, dtype=torch.float32), r(n, H_Q, dtype=torch.float32)

        def merge(a: Any = a, b: Any = b, sa: Any = sa, sb: Any = sb) -> Any:
            lse = torch.logaddexp(sa, sb)
            return ((sa - lse).exp()[..., None] * a + (sb - lse).exp()[..., None] * b).to(DTYPE), lse

        yield Case("merge_attention", f"{n} rows", lambda x=(a, sa, b, sb): lz.merge_attention(*x), lambda f=merge: f())
        parts, lses = r(8, n, H_Q, D, dtype=torch.float32), r(8, n, H_Q, dtype=torch.float32)
        yield Case(
            "merge_partials",
            f"8 parts of {n} rows",
            lambda p=parts, s=lses: lz.merge_partials(p, s),
            lambda p=parts, s=lses: ((torch.softmax(s, 0)[..., None] * p).sum(0), torch.logsumexp(s, 0)),
        )


def sparse() -> Iterator[Case]:
    block = 64
    for m, share in ((1024, 0.3), (4096, 0.25)):
        n = m // block
        q, k, v = r(m, H_Q, D), r(m, H_KV, D), r(m, H_KV, D)
        kept = torch.rand(n, n, device="cuda") < share
        kept |= torch.eye(n, dtype=torch.bool, device="cuda")
        indptr = F.pad(kept.sum(1).cumsum(0), (1, 0)).to(torch.int32)
        indices = kept.nonzero()[:, 1].to(torch.int32)

        def expanded(mask: torch.Tensor, q: Any = q, k: Any = k, v: Any = v) -> torch.Tensor:
            mask = mask.repeat_interleave(block, -2).repeat_interleave(block, -1)
            return sdpa(*(t.transpose(0, 1)[None] for t in (q, k, v)), attn_mask=mask)[0].transpose(0, 1)

        yield Case(
            "block_sparse_attention",
            f"{m}, blocks of {block}",
            lambda a=(q, k, v, indptr, indices): lz.block_sparse_attention(*a, block, block),
            lambda f=expanded, mask=kept: f(mask),
        )
        sizes = torch.full((H_KV, n), block, device="cuda", dtype=torch.int32)
        masks = kept.expand(H_KV, -1, -1).contiguous()
        yield Case(
            "variable_block_sparse_attention",
            f"{m}, blocks of {block}",
            lambda a=(q, k, v, masks, sizes, sizes): lz.variable_block_sparse_attention(*a),
            lambda f=expanded, mask=masks: f(mask.repeat_interleave(H_Q // H_KV, 0)[None]),
        )
