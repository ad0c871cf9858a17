"""Random attention calls: one sequence as explicit FP64 loops over its visible keys, and storage forms of sequences."""

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

DTYPES = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float64: 1e-5}


@dataclass
class How:
    """What changes logits and visibility of one sequence."""

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    slopes: torch.Tensor | None = None
    mask: torch.Tensor | None = None  # (h, n_q, n_kv)


def attend(q, k, v, how):
    """q (n_q, h, d), k (n_kv, h_kv, d), v to output (n_q, h, d_v) and lse (n_q, h): only visible keys are touched."""
    (n_q, heads, _), n_kv, group = q.shape, k.shape[0], q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double(), v.double()
    out, lse = torch.zeros(n_q, heads, v.shape[-1]).double(), torch.full((n_q, heads), -torch.inf).double()
    for i in range(n_q):
        p = i + n_kv - n_q
        for h in range(heads):
            first = 0 if how.window is None else max(0, p - how.window + 1)
            end = min(n_kv, p + 1) if how.causal or how.window is not None else n_kv
            seen = torch.arange(first, max(first, end))
            added = torch.zeros(len(seen)).double()
            if how.mask is not None:
                mask = how.mask[h, i, seen]
                keep = mask if mask.dtype == torch.bool else mask != -torch.inf
                added = added[keep] if mask.dtype == torch.bool else mask[keep].double()
                seen = seen[keep]
            z = how.scale * (k[seen, h // group] @ q[i, h])
            z = z if how.softcap is None else how.softcap * torch.tanh(z / how.softcap)
            z = z if how.slopes is None else z - how.slopes[h].double() * (p - seen).abs()
            z = z + added
            if len(seen) == 0:
                continue
            lse[i, h] = torch.logsumexp(z, 0)
            total = lse[i, h] if how.sinks is None else torch.logaddexp(lse[i, h], how.sinks[h].double())
            out[i, h] = torch.exp(z - total) @ v[seen, h // group]
    return out, lse


def close(got, want, dtype, what=""):
    assert got.dtype == dtype and got.shape == want.shape, (what, got.shape, want.shape)
    torch.testing.assert_close(
        got.double(), want, rtol=DTYPES[dtype], atol=DTYPES[dtype], equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def close_lse(got, want, what=""):
    torch.testing.assert_close(
        got.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text: f"{what} lse: {text}"
    )


@dataclass
class Sizes:
    heads: int
    kv_heads: int
    d: int
    d_v: int
    dtype: torch.dtype
    seed: int


@st.composite
def sizes(draw):
    kv_heads = draw(st.integers(1, 3))
    return Sizes(
        heads=kv_heads * draw(st.sampled_from([1, 2, 5])),
        kv_heads=kv_heads,
        d=draw(st.sampled_from([1, 3, 8, 33, 64])),
        d_v=draw(st.sampled_from([2, 8, 17, 64])),
        dtype=draw(st.sampled_from(list(DTYPES))),
        seed=draw(st.integers(0, 2**31)),
    )


@st.composite
def hows(draw, heads, d, *, causal=True, window=True, slopes=True):
    return How(
        scale=draw(st.sampled_from([d**-0.5, 0.3, -0.25])),
        causal=causal and draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 9)) if window else None,
        softcap=draw(st.none() | st.floats(0.5, 30)),
        sinks=torch.randn(heads) if draw(st.booleans()) else None,
        slopes=torch.rand(heads) if slopes and draw(st.booleans()) else None,
    )


lengths = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 40)), min_size=0, max_size=4)


def strided(tensor, generator):
    """The same values behind other strides; the last axis stays dense."""
    choice = int(torch.randint(0, 3, (), generator=generator))
    if choice == 1:
        return torch.cat([tensor, torch.full_like(tensor, torch.nan)], -1)[..., : tensor.shape[-1]]
    if choice == 2 and tensor.dim() > 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    return tensor


@dataclass
class Batch:
    """Sequences of unlike length, and what the storage forms make of them."""

    sizes: Sizes
    queries: list = field(default_factory=list)
    keys: list = field(default_factory=list)
    values: list = field(default_factory=list)

    @classmethod
    def of(cls, sizes, lengths):
        torch.manual_seed(sizes.seed)
        batch = cls(sizes)
        for n_q, n_kv in lengths:
            batch.queries.append(torch.randn(n_q, sizes.heads, sizes.d).to(sizes.dtype))
            batch.keys.append(torch.randn(n_kv, sizes.kv_heads, sizes.d).to(sizes.dtype))
            batch.values.append(torch.randn(n_kv, sizes.kv_heads, sizes.d_v).to(sizes.dtype))
        return batch

    def packed(self, name, extra=0):
        parts, s = getattr(self, name), self.sizes
        heads, d = (s.heads, s.d) if name == "queries" else (s.kv_heads, s.d if name == "keys" else s.d_v)
        return torch.cat([*parts, torch.full((extra, heads, d), torch.nan, dtype=s.dtype)])

    @staticmethod
    def offsets(parts):
        return torch.tensor([0, *torch.tensor([len(p) for p in parts], dtype=torch.int64).cumsum(0)], dtype=torch.int32)

    def pages(self, page_size, dtype=None):
        """k and v caches whose unused slots and pages are NaN (int8: 99), kv_indptr, kv_indices, kv_last_page_len."""
        dtype = dtype or self.sizes.dtype
        counts = [-(-len(k) // page_size) for k in self.keys]
        order = torch.randperm(sum(counts) + 2)
        caches = []
        for parts, d in ((self.keys, self.sizes.d), (self.values, self.sizes.d_v)):
            unused = torch.nan if dtype.is_floating_point else 99
            cache = torch.full((len(order), page_size, self.sizes.kv_heads, d), unused, dtype=dtype)
            at = 0
            for part, count in zip(parts, counts, strict=True):
                for j, entry in enumerate(part):
                    cache[order[at + j // page_size], j % page_size] = entry
                at += count
            caches.append(cache)
        last = [(len(k) - 1) % page_size + 1 if len(k) else 0 for k in self.keys]
        indices = torch.cat([order[: sum(counts)], torch.tensor([-7, 99])]).to(torch.int32)
        indptr = torch.tensor([0, *torch.tensor(counts, dtype=torch.int64).cumsum(0)], dtype=torch.int32)
        return (*caches, indptr, indices, torch.tensor(last, dtype=torch.int32))

    def expected(self, how, extra=0):
        parts = [attend(q, k, v, how) for q, k, v in zip(self.queries, self.keys, self.values, strict=True)]
        s = self.sizes
        parts.append((torch.zeros(extra, s.heads, s.d_v).double(), torch.full((extra, s.heads), -torch.inf).double()))
        return torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts])
