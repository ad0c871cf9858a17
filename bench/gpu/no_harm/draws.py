"""Softmax and sampling over a vocabulary."""

from collections.abc import Iterator
from typing import Any

import layerzero as lz
import torch
from case import Case, r
from torch.nn import functional as F


def topk(x: torch.Tensor) -> torch.Tensor:
    values, ids = torch.topk(x, 50)
    return ids.gather(-1, torch.multinomial(torch.softmax(values, -1), 1))


def topp(x: torch.Tensor) -> torch.Tensor:
    values, ids = torch.sort(x, descending=True)
    p = torch.softmax(values, -1)
    p = torch.where(p.cumsum(-1) - p < 0.9, p, 0.0)
    return ids.gather(-1, torch.multinomial(p, 1))


def sampling() -> Iterator[Case]:
    for n in (1, 64):
        x = r(n, 128256, dtype=torch.float32) * 3
        label = f"{n} x 128256"

        def minp(x: Any = x) -> Any:
            p = torch.softmax(x, -1)
            return torch.multinomial(torch.where(p >= 0.1 * p.amax(-1, keepdim=True), p, 0.0), 1)

        def both(x: Any = x) -> Any:
            values, ids = torch.topk(x, 50)
            p = torch.softmax(values, -1)
            p = torch.where(p.cumsum(-1) - p < 0.9, p, 0.0)
            return ids.gather(-1, torch.multinomial(p, 1))

        yield Case("softmax", label, lambda x=x: lz.softmax(x), lambda x=x: torch.softmax(x, -1))
        yield Case("sample_topk", label, lambda x=x: lz.sample_topk(x, 50), lambda x=x: topk(x), checked=False)
        yield Case("sample_topp", label, lambda x=x: lz.sample_topp(x, 0.9), lambda x=x: topp(x), checked=False)
        yield Case("sample_minp", label, lambda x=x: lz.sample_minp(x, 0.1), lambda f=minp: f(), checked=False)
        yield Case(
            "sample_topk_topp", label, lambda x=x: lz.sample_topk_topp(x, 50, 0.9), lambda f=both: f(), checked=False
        )
    b, n, vocab = 16, 4, 32000
    draft, target = (torch.softmax(r(b, t, vocab, dtype=torch.float32), -1) for t in (n, n + 1))
    ids = torch.randint(0, vocab, (b, n), device="cuda")

    def speculate() -> Any:
        p, q = (t[:, :n].gather(-1, ids[..., None])[..., 0] for t in (target, draft))
        accepted = (torch.rand(b, n, device="cuda") < p / q).cumprod(-1).sum(-1)
        row = torch.arange(b, device="cuda")
        rest = target[row, accepted] - F.pad(draft, (0, 0, 0, 1))[row, accepted]
        last = torch.multinomial(rest.clamp(min=0), 1)
        return F.pad(ids, (0, 1)).scatter(1, accepted[:, None], last), accepted

    yield Case(
        "speculative_sample",
        f"{b} x {n} x {vocab}",
        lambda: lz.speculative_sample(draft, ids, target),
        speculate,
        checked=False,
    )
