"""Quantization, KV caches, experts, convolutions, pools, layouts, the delta rule."""

import functools
from collections.abc import Iterator
from typing import Any

import layerzero as lz
import torch
from case import DTYPE, DTYPE_NAME, H_KV, H_Q, PAGE, Case, D, r
from layerzero.backends.torch import sequences
from torch.nn import functional as F


def quantisation() -> Iterator[Case]:
    for n in (1, 64, 4096):
        x = r(n, 4096)
        scale = (x.float().abs().amax() / 127).reshape(1)
        label = f"{n} rows"
        yield Case(
            "quantize",
            f"int8, scale given, {label}",
            lambda x=x, s=scale: lz.quantize(x, "int8", s),
            lambda x=x, s=scale: (x.float() / s).round().clamp(-127, 127).to(torch.int8),
        )
        yield Case(
            "quantize",
            f"fp8, scale given, {label}",
            lambda x=x, s=scale: lz.quantize(x, "fp8_e4m3", s),
            lambda x=x, s=scale: (x.float() / s).clamp(-448, 448).to(torch.float8_e4m3fn),
        )

        def by_row(x: Any = x) -> Any:
            s = x.float().abs().amax(-1, keepdim=True) / 127
            return (x.float() / s).round().clamp(-127, 127).to(torch.int8), s

        yield Case(
            "quantize", f"int8 by row, {label}", lambda x=x: lz.quantize(x, "int8", axis=0), lambda f=by_row: f()
        )
        codes, scales = by_row()
        yield Case(
            "dequantize",
            f"int8 by row, {label}",
            lambda c=codes, s=scales: lz.dequantize(c, s, "int8", dtype=DTYPE_NAME),
            lambda c=codes, s=scales: (c.float() * s).to(DTYPE),
        )
    x = r(1024, 4096)
    groups = x.float().view(1024, -1, 128)

    def int4() -> Any:
        g = x.float().view(1024, -1, 128)
        s = g.abs().amax(-1, keepdim=True) / 7
        c = (g / s).round().clamp(-7, 7).to(torch.int8).view(1024, -1)
        return (c[:, ::2] & 15) | (c[:, 1::2] << 4), s[..., 0]

    yield Case(
        "quantize",
        "int4 by groups of 128, 1024 rows",
        lambda: lz.quantize(x, "int4", group_size=128),
        int4,
        checked=False,
    )

    def asymmetric() -> Any:
        low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
        s = (high - low) / 255
        zero = (-low / s).round()
        return ((groups / s).round() + zero).clamp(0, 255).to(torch.uint8), s, zero.to(torch.int32)

    yield Case(
        "quantize_asymmetric",
        "uint8 by groups of 128, 1024 rows",
        lambda: lz.quantize_asymmetric(x, "uint8", group_size=128),
        asymmetric,
        checked=False,
    )
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device="cuda")

    def nvfp4() -> Any:
        wide = x.float()
        tensor_scale = wide.abs().amax() / (448 * 6)
        g = wide.view(1024, -1, 16)
        s = (g.abs().amax(-1, keepdim=True) / 6 / tensor_scale).to(torch.float8_e4m3fn)
        c = torch.bucketize((g / (s.float() * tensor_scale)).abs(), middles) | ((g < 0).long() << 3)
        c = c.view(1024, -1).to(torch.uint8)
        return c[:, ::2] | (c[:, 1::2] << 4), s, tensor_scale

    yield Case("quantize_nvfp4", "1024 rows", lambda: lz.quantize_nvfp4(x), nvfp4, checked=False)
    scales = torch.randint(0, 255, (4096, 256), device="cuda", dtype=torch.uint8)
    yield Case(
        "swizzle_scales",
        "4096 x 256",
        lambda: lz.swizzle_scales(scales),
        lambda: scales.view(32, 4, 32, 64, 4).permute(0, 3, 2, 1, 4).reshape(-1),
    )
    tiles = lz.swizzle_scales(scales)
    yield Case(
        "unswizzle_scales",
        "4096 x 256",
        lambda: lz.unswizzle_scales(tiles, 4096, 256),
        lambda: tiles.view(32, 64, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(4096, 256),
    )


def kv() -> Iterator[Case]:
    blocks = 1024
    k, v = r(blocks, PAGE, H_KV, D), r(blocks, PAGE, H_KV, D)
    for n in (1, 64, 2048):
        slots = torch.randperm(blocks * PAGE, device="cuda")[:n]
        nk, nv = r(n, H_KV, D), r(n, H_KV, D)

        def append(nk: Any = nk, nv: Any = nv, at: Any = slots) -> None:
            k.view(-1, H_KV, D)[at] = nk
            v.view(-1, H_KV, D)[at] = nv

        yield Case(
            "kv_append_paged",
            f"{n} rows",
            lambda a=(nk, nv, slots): lz.kv_append_paged(k, v, *a, layout="NHD"),
            lambda f=append: f(),
        )
        query, cos, sin = r(n, H_Q, D), r(n, D, dtype=torch.float32), r(n, D, dtype=torch.float32)

        def turned(x: Any, cos: Any = cos, sin: Any = sin) -> torch.Tensor:
            low, high = x.chunk(2, -1)
            return x * cos[:, None].to(DTYPE) + torch.cat((-high, low), -1) * sin[:, None].to(DTYPE)

        def both(q: Any = query, nk: Any = nk, nv: Any = nv, at: Any = slots, turned: Any = turned) -> torch.Tensor:
            append(turned(nk), nv, at)
            return turned(q)

        yield Case(
            "kv_rope_append_paged",
            f"{n} rows",
            lambda a=(query, nk, nv, cos, sin, k, v, slots): lz.kv_rope_append_paged(*a, layout="NHD"),
            lambda f=both: f(),
        )
        yield Case(
            "kv_gather",
            f"{n} rows",
            lambda at=slots: lz.kv_gather(k, at, layout="NHD"),
            lambda at=slots: k.view(-1, H_KV, D)[at],
        )
    moves = torch.randperm(blocks, device="cuda")[:128].view(64, 2)

    def compact() -> None:
        k[moves[:, 1]] = k[moves[:, 0]]
        v[moves[:, 1]] = v[moves[:, 0]]

    yield Case("kv_compact", "64 blocks", lambda: lz.kv_compact(k, v, moves), compact)
    table = torch.zeros(64, 256, device="cuda", dtype=torch.int32)
    sequence, place = torch.arange(64, device="cuda"), torch.randint(0, 256, (64,), device="cuda")
    updates = torch.stack((sequence, place, sequence), -1)

    def update() -> None:
        table[updates[:, 0], updates[:, 1]] = updates[:, 2].to(torch.int32)

    yield Case("kv_block_table_update", "64 updates", lambda: lz.kv_block_table_update(table, updates), update)
    starts = torch.arange(0, 64 * 64 + 1, 64, device="cuda", dtype=torch.int32)
    listed = torch.randperm(64 * 64, device="cuda").to(torch.int32)
    last = torch.full((64,), 9, device="cuda", dtype=torch.int32)

    def page_table() -> tuple[torch.Tensor, torch.Tensor]:
        count = starts.diff()
        place = torch.arange(listed.numel(), device="cuda", dtype=torch.int32)
        entry = (starts[:-1, None] + place).clamp(max=listed.numel() - 1)
        pages = torch.where(place < count[:, None], listed[entry], 0)
        return F.pad(pages, (0, 0, 0, 1)), F.pad((count - 1) * 16 + last, (0, 1))

    own = functools.partial(lz.kv_page_table, starts, listed, last, listed.numel(), 16)
    yield Case("kv_page_table", "64 sequences of 64 pages", own, page_table)
    parts = r(8, 64, 4096)
    yield Case("reduce_tree", "8 x 64 x 4096", lambda: lz.reduce_tree(parts), lambda: parts.sum(0))


def experts() -> Iterator[Case]:
    count, k, d, n = 32, 4, 1024, 1024
    gate, up, down = r(count, n, d) / 32, r(count, n, d) / 32, r(count, d, n) / 32
    for tokens in (1, 64, 1024):
        logits, x = r(tokens, count), r(tokens, d)

        def route(logits: Any = logits) -> Any:
            weights, ids = torch.topk(torch.softmax(logits.float(), -1), k)
            return weights / weights.sum(-1, keepdim=True), ids

        yield Case(
            "moe_route",
            f"{tokens} tokens",
            lambda x=logits: lz.moe_route(x, k, renormalize=True),
            lambda f=route: f(),
            checked=False,
        )
        weights, ids = route()

        def looped(x: Any = x, weights: Any = weights, ids: Any = ids) -> torch.Tensor:
            out = torch.zeros_like(x)
            for e in range(count):
                row, slot = (ids == e).nonzero(as_tuple=True)
                h = F.silu(F.linear(x[row], gate[e])) * F.linear(x[row], up[e])
                out.index_add_(0, row, F.linear(h, down[e]) * weights[row, slot, None].to(DTYPE))
            return out

        yield Case(
            "fused_moe",
            f"{tokens} tokens, {count} experts",
            lambda x=x, i=ids, w=weights: lz.fused_moe(x, i, w, gate, down, up_weight=up),
            lambda f=looped: f(),
        )
    rows = 512
    x, offsets = r(rows, d), torch.linspace(0, rows, count + 1, device="cuda").to(torch.int32)
    ends = offsets.tolist()
    yield Case(
        "grouped_gemm",
        f"{rows} rows, {count} experts",
        lambda: lz.grouped_gemm(x, gate, offsets),
        lambda: torch.cat([F.linear(x[a:b], gate[e]) for e, (a, b) in enumerate(zip(ends, ends[1:], strict=False))]),
    )


def convolutions() -> Iterator[Case]:
    x1, w1 = r(8, 80, 3000), r(512, 80, 3)
    yield Case("conv1d", "8 x 80 x 3000", lambda: lz.conv1d(x1, w1, padding=1), lambda: F.conv1d(x1, w1, padding=1))
    x2, w2 = r(8, 3, 224, 224), r(768, 3, 16, 16)
    yield Case(
        "conv2d",
        "patches of 16",
        lambda: lz.conv2d(x2, w2, stride_h=16, stride_w=16),
        lambda: F.conv2d(x2, w2, stride=16),
    )
    x3, w3 = r(1, 3, 8, 112, 112), r(64, 3, 2, 14, 14)
    yield Case(
        "conv3d",
        "patches of 2 x 14 x 14",
        lambda: lz.conv3d(x3, w3, stride_d=2, stride_h=14, stride_w=14),
        lambda: F.conv3d(x3, w3, stride=(2, 14, 14)),
    )
    c, width = 4096, 4
    wc = r(c, width)
    for s in (1, 512):
        xc, state = r(2, s, c), r(2, c, width - 1)

        def causal(x: Any = xc, state: Any = state) -> torch.Tensor:
            joined = torch.cat((state, x.transpose(1, 2)), -1)
            state.copy_(joined[..., -(width - 1) :])
            return F.conv1d(joined, wc[:, None], groups=c).transpose(1, 2)

        yield Case(
            "causal_conv1d",
            f"2 x {s} x {c}",
            lambda x=xc, s=state: lz.causal_conv1d(x, wc, s),
            lambda f=causal: f(),
            checked=False,
        )
    p1, p2 = r(8, 512, 1024), r(8, 64, 112, 112)
    yield Case("pool1d", "8 x 512 x 1024", lambda: lz.pool1d(p1, 2, 2, mode="max"), lambda: F.max_pool1d(p1, 2, 2))
    yield Case(
        "pool2d", "8 x 64 x 112 x 112", lambda: lz.pool2d(p2, 2, 2, 2, 2, mode="mean"), lambda: F.avg_pool2d(p2, 2, 2)
    )
    x, mask = r(32, 128, 768), torch.ones(32, 128, device="cuda", dtype=torch.bool)
    yield Case(
        "sequence_pool",
        "32 x 128 x 768",
        lambda: lz.sequence_pool(x, mask),
        lambda: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
    )


def shapes() -> Iterator[Case]:
    x = r(4, 1024, H_Q, D)
    yield Case(
        "convert_layout",
        "4 x 1024 x 32 x 128",
        lambda: lz.convert_layout(x, "BSHD", "BHSD"),
        lambda: x.transpose(1, 2).contiguous(),
    )


def delta_rule() -> Iterator[Case]:
    h_v, d_k = 32, 128
    for s in (1, 512):
        state = r(2, h_v, d_k, D, dtype=torch.float32) * 0.1
        q, k, v = r(2, s, H_Q, d_k), F.normalize(r(2, s, H_Q, d_k), dim=-1), r(2, s, h_v, D)
        g, beta = -torch.rand(2, s, h_v, device="cuda"), torch.rand(2, s, h_v, device="cuda")

        def step(q: Any = q, k: Any = k, v: Any = v, g: Any = g, beta: Any = beta, state: Any = state) -> torch.Tensor:
            now = state * g[:, 0, :, None, None].exp()
            kf, vf, qf = (t[:, 0].float() for t in (k, v, q))
            rest = (vf - (now * kf[..., None]).sum(-2)) * beta[:, 0, :, None]
            now = now + kf[..., None] * rest[..., None, :]
            state.copy_(now)
            return ((now * qf[..., None]).sum(-2) * d_k**-0.5).to(DTYPE)[:, None]

        def chunks(a: Any = (q, k, v, g, beta, state)) -> torch.Tensor:
            return sequences.gated_delta_rule(*a, None, None, d_k**-0.5, None, 1.0)

        yield Case(
            "gated_delta_rule",
            f"2 x {s} x {h_v} heads",
            lambda a=(q, k, v, g, beta, state): lz.gated_delta_rule(*a),
            step if s == 1 else chunks,
            checked=False,
        )
