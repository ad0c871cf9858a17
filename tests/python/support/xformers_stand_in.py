"""xFormers' attention in float64, with the signatures and checks of release 0.0.35."""

import dataclasses
import types

import torch
from library_signatures import stand_in


class LowerTriangularFromBottomRightMask:
    window = 0


@dataclasses.dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    _window_size: int

    def __post_init__(self):
        assert self._window_size > 0
        self.window = self._window_size


def logits(q, k, bias, scale):
    """(b, ..., s_q, s_kv) of (b, s, ..., d) tensors."""
    z = torch.einsum("bq...d,bk...d->b...qk", q.double(), k.double()) * scale
    s_q, s_kv = z.shape[-2:]
    if isinstance(bias, torch.Tensor):
        assert bias.dtype == q.dtype and bias.shape == z.shape and 0 not in bias.stride(), "a bias that broadcasts"
        assert all(stride % 8 == 0 for stride in bias.stride()[:-1]) and bias.stride(-1) == 1, bias.stride()
        return z + bias.double()
    if bias is None:
        return z
    distance = torch.arange(s_q)[:, None] + s_kv - s_q - torch.arange(s_kv)
    hidden = distance < 0
    return z.masked_fill(hidden | (distance >= bias.window) if bias.window else hidden, -torch.inf)


def both(a):
    q, k, v = a["query"], a["key"], a["value"]
    assert q.dim() == k.dim() == v.dim() and q.dim() in (4, 5) and q.shape[2:-1] == k.shape[2:-1] == v.shape[2:-1]
    assert a["p"] == 0.0 and a["op"] is None and all(t.stride(-1) == 1 for t in (q, k, v))
    assert a["scale"] > 0, "the largest logit of a row is found before it is scaled"
    z = logits(q, k, a["attn_bias"], a["scale"])
    output = torch.einsum("b...qk,bk...d->bq...d", z.softmax(-1), v.double()).to(q.dtype)  # NaN where all is hidden
    lse = z.logsumexp(-1).float()
    return output, torch.nn.functional.pad(lse, (0, 5), value=7.0)  # one kernel rounds the length up


def modules():
    fmha, bias = types.ModuleType("xformers.ops.fmha"), types.ModuleType("xformers.ops.fmha.attn_bias")
    name = "xformers.ops.fmha:memory_efficient_attention_forward"
    fmha.memory_efficient_attention_forward = stand_in(name, lambda a: both(a)[0])
    fmha.memory_efficient_attention_forward_requires_grad = stand_in(f"{name}_requires_grad", both)
    for kind in (LowerTriangularFromBottomRightMask, LowerTriangularFromBottomRightLocalAttentionMask):
        setattr(bias, kind.__name__, kind)
    packages = {n: types.ModuleType(n) for n in ("xformers", "xformers.ops")}
    return packages | {"xformers.ops.fmha": fmha, "xformers.ops.fmha.attn_bias": bias}
