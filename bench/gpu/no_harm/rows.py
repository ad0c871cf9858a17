"""Norms, activations, RoPE, casts, and products with weights."""

from collections.abc import Iterator

import layerzero as lz
import torch
from case import DTYPE, DTYPE_NAME, H_Q, Case, D, r
from torch.nn import functional as F


def rows() -> Iterator[Case]:
    w, b = r(4096), r(4096)
    for n in (1, 64, 4096):
        x, y, gate = r(n, 4096), r(n, 4096), r(n, 2 * 14336)
        g, u = gate.chunk(2, -1)
        g, u = g.contiguous(), u.contiguous()
        label = f"{n} rows"
        yield Case("rms_norm", label, lambda x=x: lz.rms_norm(x, w), lambda x=x: F.rms_norm(x, (4096,), w, 1e-6))
        yield Case(
            "layer_norm", label, lambda x=x: lz.layer_norm(x, 4096, w, b), lambda x=x: F.layer_norm(x, (4096,), w, b)
        )
        yield Case(
            "fused_add_rms_norm",
            label,
            lambda x=x, y=y: lz.fused_add_rms_norm(x, y, w),
            lambda x=x, y=y: (F.rms_norm(s := x + y, (4096,), w, 1e-6), s),
        )
        yield Case(
            "fused_add_layer_norm",
            label,
            lambda x=x, y=y: lz.fused_add_layer_norm(x, y, 4096, w, b),
            lambda x=x, y=y: (F.layer_norm(s := x + y, (4096,), w, b), s),
        )
        yield Case("swiglu", label, lambda g=g, u=u: lz.swiglu(g, u), lambda g=g, u=u: F.silu(g) * u)
        yield Case("geglu", label, lambda g=g, u=u: lz.geglu(g, u), lambda g=g, u=u: F.gelu(g) * u)
        yield Case(
            "silu_and_mul",
            label,
            lambda t=gate: lz.silu_and_mul(t),
            lambda t=gate: F.silu(t[..., :14336]) * t[..., 14336:],
        )
        yield Case(
            "gated_activation",
            f"{label}, gelu_tanh",
            lambda t=gate: lz.gated_activation(t, activation="gelu_tanh"),
            lambda t=gate: F.gelu(t[..., :14336], approximate="tanh") * t[..., 14336:],
        )
        for name, function in (("silu", F.silu), ("gelu", F.gelu), ("relu", F.relu)):
            yield Case(
                "activation",
                f"{label}, {name}",
                lambda x=x, name=name: lz.activation(x, name),
                lambda x=x, function=function: function(x),
            )
        yield Case("elementwise", label, lambda x=x, y=y: lz.elementwise(x, y, "mul"), lambda x=x, y=y: torch.mul(x, y))
        yield Case("cast", label, lambda x=x: lz.cast(x, "float32"), lambda x=x: x.float())
        yield Case("convert", label, lambda x=x: lz.convert(x, "float16"), lambda x=x: x.to(torch.float16))
    for n in (1, 512, 4096):
        q, c, s = r(1, n, H_Q, D), r(n, D), r(n, D)
        yield Case(
            "rope",
            f"{n} tokens",
            lambda q=q, c=c, s=s: lz.rope(q, c, s, layout="BSHD"),
            lambda q=q, c=c, s=s: q * c[:, None] + torch.cat((-q[..., 64:], q[..., :64]), -1) * s[:, None],
        )
    slopes = r(H_Q, dtype=torch.float32)
    distance = lambda n: (torch.arange(n, device="cuda")[:, None] - torch.arange(n, device="cuda")).abs()  # noqa: E731
    yield Case("alibi", "1024", lambda: lz.alibi(slopes, 1024, 1024), lambda: -slopes[:, None, None] * distance(1024))


def products() -> Iterator[Case]:
    w = r(4096, 4096) / 64
    gate, up, down = r(14336, 4096) / 64, r(14336, 4096) / 64, r(4096, 14336) / 120
    table, heads = r(128256, 4096), r(H_Q, 512, D) / 11
    codes, scale = lz.quantize(w, "int8", axis=0)
    scale = scale.reshape(-1, 1)
    for n in (1, 64, 2048):
        x, ids = r(n, 4096), torch.randint(0, 128256, (n,), device="cuda")
        yield Case("linear", f"{n} rows", lambda x=x: lz.linear(x, w), lambda x=x: F.linear(x, w))
        yield Case("embedding", f"{n} ids", lambda i=ids: lz.embedding(i, table), lambda i=ids: F.embedding(i, table))
        yield Case(
            "fused_mlp",
            f"{n} rows",
            lambda x=x: lz.fused_mlp(x, gate, down, up_weight=up),
            lambda x=x: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down),
        )
        yield Case(
            "linear_quantized",
            f"{n} rows, int8",
            lambda x=x: lz.linear_quantized(x, codes, scale, "int8"),
            lambda x=x: F.linear(x, (codes.to(DTYPE) * scale.to(DTYPE))),
        )
        q = r(n, H_Q, D)
        yield Case(
            "head_linear",
            f"{n} rows",
            lambda q=q: lz.head_linear(q, heads, DTYPE_NAME),
            lambda q=q: torch.einsum("nhk,hok->nho", q, heads),
        )
    yield from few_rows(w)


def few_rows(w: torch.Tensor) -> Iterator[Case]:
    """Products of decode steps with weights of 4 and 8 bits."""
    n, k = w.shape
    int4, scale4 = lz.quantize(w, "int4", group_size=128)
    blocks = torch.randint(0, 112, (n, k // 32 * 34), device="cuda", dtype=torch.uint8)  # q8_0, finite scales

    def wide4() -> torch.Tensor:
        codes = torch.stack([int4 & 15, int4 >> 4], -1).view(n, k // 128, 128)
        return (((codes ^ 8).to(DTYPE) - 8) * scale4.to(DTYPE)[..., None]).view(n, k)

    def wide8() -> torch.Tensor:
        parts = blocks.view(n, k // 32, 34)
        d = parts[..., :2].contiguous().view(torch.float16)
        return (parts[..., 2:].view(torch.int8).to(DTYPE) * d.to(DTYPE)).view(n, k)

    for m in (1, 16):
        x = r(m, k)
        yield Case(
            "linear_quantized",
            f"{m} rows, int4",
            lambda x=x: lz.linear_quantized(x, int4, scale4, "int4"),
            lambda x=x: F.linear(x, wide4()),
        )
        yield Case(
            "linear_gguf",
            f"{m} rows, q8_0",
            lambda x=x: lz.linear_gguf(x, blocks, "q8_0"),
            lambda x=x: F.linear(x, wide8()),
        )
    yield Case("dequantize_gguf", "q8_0", lambda: lz.dequantize_gguf(blocks, k, format="q8_0", dtype=DTYPE_NAME), wide8)
