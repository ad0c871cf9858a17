"""Dense, cross, paged and packed attention."""

import math
from collections.abc import Iterator
from typing import Any

import layerzero as lz
import torch
from case import DTYPE, H_KV, H_Q, Case, D, gathered, pages, qkv, r, sdpa


def dense_attention() -> Iterator[Case]:
    dense = ((1, 512, 128), (1, 4096, 128), (8, 1024, 128), (1, 4096, 64), (1, 2048, 256))
    for b, s, d in dense:
        q, k, v = qkv(b, s, s, d)
        yield Case(
            "attention",
            f"causal {b} x {s}, d {d}",
            lambda q=q, k=k, v=v: lz.attention(q, k, v, layout="BHSD"),
            lambda q=q, k=k, v=v: sdpa(q, k, v, is_causal=True),
        )
    for b, s_q, s_kv in ((1, 1, 4096), (64, 1, 4096), (16, 1, 1024), (16, 16, 4096)):
        q, k, v = qkv(b, s_q, s_kv)
        seen = torch.ones(s_q, s_kv, dtype=torch.bool, device="cuda").tril(s_kv - s_q) if s_q > 1 else None
        yield Case(
            "attention",
            f"{b} x {s_q} over {s_kv}",
            lambda q=q, k=k, v=v: lz.attention(q, k, v, layout="BHSD"),
            lambda q=q, k=k, v=v, m=seen: sdpa(q, k, v, attn_mask=m),
        )
    q, k, v = (t.transpose(1, 2).contiguous() for t in qkv(1, 4096, 4096))
    yield Case(
        "attention",
        "causal 1 x 4096, BSHD",
        lambda: lz.attention(q, k, v, layout="BSHD"),
        lambda: sdpa(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2),
    )
    qf, kf, vf = (t.float() for t in qkv(1, 1024, 1024))
    yield Case(
        "attention",
        "causal 1 x 1024, f32",
        lambda: lz.attention(qf, kf, vf, layout="BHSD"),
        lambda: sdpa(qf, kf, vf, is_causal=True),
    )
    yield from _masked_attention()
    yield from _attention_variants()
    for s_q, s_kv in ((1, 1500), (448, 1500)):
        cq, ck, cv = qkv(8, s_q, s_kv, 64, 20, 20)
        yield Case(
            "cross_attention",
            f"8 x {s_q} over {s_kv}",
            lambda q=cq, k=ck, v=cv: lz.cross_attention(q, k, v, layout="BHSD"),
            lambda q=cq, k=ck, v=cv: sdpa(q, k, v),
        )


def _masked_attention() -> Iterator[Case]:
    for b, s in ((1, 2048), (4, 1024)):
        q, k, v = qkv(b, s, s)
        padding = torch.ones(b, 1, s, s, dtype=torch.bool, device="cuda").tril()
        padding[:, :, :, :7] = False
        padding |= torch.eye(s, dtype=torch.bool, device="cuda")
        bias = r(1, H_Q, s, s)
        for name, mask in (("bool mask", padding), ("float mask", bias)):
            yield Case(
                "attention",
                f"{name} {b} x {s}",
                lambda q=q, k=k, v=v, m=mask: lz.attention(q, k, v, attn_mask=m, layout="BHSD"),
                lambda q=q, k=k, v=v, m=mask: sdpa(q, k, v, attn_mask=m),
            )


def _logits(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    z = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2) * q.shape[-1] ** -0.5
    s_q, s_kv = z.shape[-2:]
    return z, torch.ones(s_q, s_kv, dtype=torch.bool, device="cuda").tril(s_kv - s_q)


def _by_hand(q: Any, k: Any, v: Any, cap: Any = None, sinks: Any = None, lse: bool = False) -> Any:
    """Computes attention as a user writes it if torch's function lacks an argument."""
    z, seen = _logits(q, k)
    if cap:
        z = cap * torch.tanh(z / cap)
    z = z.masked_fill(~seen, -math.inf)
    if sinks is not None:
        z = torch.cat((z, sinks.view(1, -1, 1, 1).expand(*z.shape[:3], 1)), -1)
    p = torch.softmax(z, -1, dtype=torch.float32).to(q.dtype)
    p = p[..., :-1] if sinks is not None else p
    out = p @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return (out, torch.logsumexp(z.float(), -1)) if lse else out


def _attention_variants() -> Iterator[Case]:
    """Compares window, soft-cap, sinks, lse and ALiBi with SDPA with a mask, or with torch's operations."""
    sinks, slopes = r(H_Q, dtype=torch.float32), torch.rand(H_Q, device="cuda") * 0.1
    for b, s_q, s in ((1, 1, 4096), (1, 2048, 2048)):
        q, k, v = qkv(b, s_q, s)
        distance = torch.arange(s - s_q, s, device="cuda")[:, None] - torch.arange(s, device="cuda")
        band = (distance >= 0) & (distance < 512)
        bias = (-slopes[:, None, None] * distance.abs()).masked_fill(distance < 0, -math.inf).to(DTYPE)[None]
        label = f"{b} x {s_q} over {s}"

        def attend(q: Any = q, k: Any = k, v: Any = v, **options: Any) -> Any:
            return lz.attention(q, k, v, layout="BHSD", **options)

        yield Case(
            "attention",
            f"window {label}",
            lambda a=attend: a(window=512),
            lambda q=q, k=k, v=v, m=band: sdpa(q, k, v, attn_mask=m),
        )
        yield Case(
            "attention",
            f"alibi {label}",
            lambda a=attend: a(alibi_slopes=slopes),
            lambda q=q, k=k, v=v, m=bias: sdpa(q, k, v, attn_mask=m),
        )
        for name, options, by_hand in (
            ("softcap", {"softcap": 30.0}, {"cap": 30.0}),
            ("sinks", {"sinks": sinks}, {"sinks": sinks.to(DTYPE)}),
            ("lse", {"return_lse": True}, {"lse": True}),
        ):
            yield Case(
                "attention",
                f"{name} {label}",
                lambda a=attend, o=options: a(**o),
                lambda q=q, k=k, v=v, o=by_hand: _by_hand(q, k, v, **o),
            )


def paged_attention() -> Iterator[Case]:
    for b, s in ((1, 4096), (16, 1024), (64, 4096)):
        k, v, table, indptr, indices, last = pages(b, s)
        q, lengths = r(b, H_Q, D), torch.full((b,), s, device="cuda", dtype=torch.int32)
        seen = (torch.arange(s, device="cuda") < lengths[:, None])[:, None, None]

        def by_hand(q: Any, k: Any = k, v: Any = v, t: Any = table, m: Any = seen) -> Any:
            return sdpa(q[:, :, None], gathered(k, t), gathered(v, t), attn_mask=m)[:, :, 0]

        yield Case(
            "paged_decode_attention",
            f"{b} x {s}",
            lambda q=q, a=(k, v, indptr, indices, last): lz.paged_decode_attention(q, *a),
            lambda q=q, f=by_hand: f(q),
        )
        yield Case(
            "paged_attention",
            f"{b} x {s}",
            lambda q=q[:, None], a=(k, v, table, lengths): lz.paged_attention(q, *a),
            lambda q=q, f=by_hand: f(q)[:, None],
        )
    b, chunk, s = 4, 256, 2048
    k, v, table, indptr, indices, last = pages(b, s)
    q = r(b * chunk, H_Q, D)
    starts = torch.arange(0, b * chunk + 1, chunk, device="cuda", dtype=torch.int32)
    seen = torch.ones(chunk, s, dtype=torch.bool, device="cuda").tril(s - chunk)
    yield Case(
        "paged_prefill_attention",
        f"{b} x {chunk} over {s}",
        lambda: lz.paged_prefill_attention(q, k, v, starts, indptr, indices, last),
        lambda: (
            sdpa(q.view(b, chunk, H_Q, D).transpose(1, 2), gathered(k, table), gathered(v, table), attn_mask=seen)
            .transpose(1, 2)
            .flatten(0, 1)
        ),
    )
    xq = r(b, 16, H_Q, D)
    yield Case(
        "paged_cross_attention",
        f"{b} x 16 over {s}",
        lambda: lz.paged_cross_attention(xq, k, v, indptr, indices, last),
        lambda: sdpa(xq.transpose(1, 2), gathered(k, table), gathered(v, table)).transpose(1, 2),
    )
    dq, sk, sv = r(b, H_Q, D), r(1024, H_KV, D), r(1024, H_KV, D)
    join = lambda shared, pages: torch.cat((shared.transpose(0, 1)[None].expand(b, -1, -1, -1), pages), 2)  # noqa: E731
    yield Case(
        "cascade_decode_attention",
        f"{b} x 1024 shared + {s}",
        lambda: lz.cascade_decode_attention(dq, sk, sv, k, v, indptr, indices, last),
        lambda: sdpa(dq[:, :, None], join(sk, gathered(k, table)), join(sv, gathered(v, table)))[:, :, 0],
    )


def packed_attention() -> Iterator[Case]:
    b, s = 8, 512
    q, k, v = r(b * s, H_Q, D), r(b * s, H_KV, D), r(b * s, H_KV, D)
    starts = torch.arange(0, b * s + 1, s, device="cuda", dtype=torch.int32)
    ends = starts.tolist()

    def looped() -> torch.Tensor:
        parts = []
        for first, end in zip(ends, ends[1:], strict=False):
            one = (t[first:end].transpose(0, 1)[None] for t in (q, k, v))
            parts.append(sdpa(*one, is_causal=True)[0].transpose(0, 1))
        return torch.cat(parts)

    yield Case("ragged_attention", f"{b} x {s}", lambda: lz.ragged_attention(q, k, v, starts, starts), looped)
    kc, vc, table, indptr, indices, last = pages(16, 1024)
    dq = r(16, H_Q, D)
    yield Case(
        "pod_attention",
        f"{b} x {s} with 16 x 1024",
        lambda: lz.pod_attention(q, k, v, starts, starts, dq, kc, vc, indptr, indices, last),
        lambda: (looped(), sdpa(dq[:, :, None], gathered(kc, table), gathered(vc, table))[:, :, 0]),
    )
