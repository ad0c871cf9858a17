"""The torch references of sampling against a plain Python reading of the definitions."""

import math

import pytest
import torch
from layerzero.torch.references import reference_function, reference_helpers

COMMON = reference_helpers("sampling")


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


def uniform(seed, offset, row, slot=0):
    low = 0xFFFFFFFF
    words = philox([offset & low, offset >> 32 & low, row & low, slot], [seed & low, seed >> 32 & low])
    return (words[0] << 21 | words[1] >> 11) * 2.0**-53


def expected_token(logits, u, k=None, p=1.0, min_p=0.0, temperature=1.0):
    if any(map(math.isnan, logits)) or max(logits) == -math.inf:
        return -1
    top = max(logits)
    weights = [1.0 if x == top else math.exp((x - top) / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    total, before, kept = sum(weights[i] for i in order), 0.0, set()
    for rank, i in enumerate(order):
        if rank and ((p < 1 and before >= p * total) or weights[i] < min_p):
            break
        kept.add(i)
        before += weights[i]
    target, running = u * sum(weights[i] for i in sorted(kept)), 0.0
    for i in sorted(kept):
        running += weights[i]
        if running > target:
            return i
    raise AssertionError("the last sum is the total")


def test_philox_matches_the_published_answers():
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    for seed, offset, slot in [(0, 0, 0), (-1, 5, 3), (2**63 - 1, -(2**63), 7), (123456789012, 98765432109, 1)]:
        got = COMMON.philox_uniform(seed, offset, torch.arange(50), slot).tolist()
        assert got == [uniform(seed, offset, row, slot) for row in range(50)]
        assert all(0 <= u < 1 for u in got)


CASES = [
    ("topk", {"k": 1}),
    ("topk", {"k": 5}),
    ("topk", {"k": 1000}),
    ("topp", {"p": 0.0}),
    ("topp", {"p": 0.7}),
    ("topp", {"p": 1.0}),
    ("minp", {"min_p": 0.0}),
    ("minp", {"min_p": 0.2}),
    ("minp", {"min_p": 1.0}),
    ("topk_topp", {"k": 8, "p": 0.5}),
]


@pytest.mark.parametrize(("name", "filters"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_token_is_the_definitions(name, filters, dtype):
    torch.manual_seed(0)
    logits = torch.randn(40, 30).mul(2).round(decimals=1).to(dtype)  # with ties
    logits[1, 3] = math.nan
    logits[2] = -math.inf
    logits[3, ::2] = -math.inf
    logits[4, 5] = math.inf
    reference = reference_function(f"sample_{name}")
    got = reference(logits.view(4, 10, 30), **filters, temperature=0.8, seed=42, offset=6)
    assert got.shape == (4, 10)
    assert got.dtype == torch.int64
    rows = logits.double().tolist()
    expected = [expected_token(row, uniform(42, 6, i), **filters, temperature=0.8) for i, row in enumerate(rows)]
    assert got.flatten().tolist() == expected
    assert reference(logits[0], **filters, seed=0).ndim == 0
    assert reference(logits[:, :0], **filters, seed=0).tolist() == [-1] * 40
    assert reference(logits[:0], **filters, seed=0).shape == (0,)


def test_softmax_handles_temperature_and_empty_rows():
    reference = reference_function("softmax")
    x = torch.randn(3, 10)
    torch.testing.assert_close(reference(x, 0.5), torch.softmax(x.double() / 0.5, -1).float())
    assert reference(x[:, :0], 2.0).shape == (3, 0)
    assert reference(x.bfloat16()).dtype == torch.float32


def expected_chain(draft, ids, target, row, seed, offset):
    n, out = len(ids), []
    for i in range(n + 1):
        p = target[i]
        weights = p
        if i < n:
            token = ids[i]
            if not 0 <= token < len(p):
                return out + [-1] * (n + 1 - i), i
            q = draft[i]
            if uniform(seed, offset, row, 1 + 2 * i) * q[token] < p[token]:
                out.append(token)
                continue
            weights = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
            if sum(weights) == 0:
                weights = p
        goal, running = uniform(seed, offset, row, 2 + 2 * i) * sum(weights), 0.0
        for token, weight in enumerate(weights):
            running += weight
            if running > goal:
                return [*out, token] + [-1] * (n - i), i
    raise AssertionError("a row without mass")


@pytest.mark.parametrize("n", [0, 1, 3])
def test_speculative_is_the_definitions(n):
    torch.manual_seed(1)
    draft, target = torch.randn(50, n, 9).softmax(-1), torch.randn(50, n + 1, 9).softmax(-1)
    ids = torch.randint(0, 9, (50, n), dtype=torch.int32)
    ids[0, :1] = 9
    output, count = reference_function("speculative_sample")(draft, ids, target, seed=7, offset=1)
    assert output.dtype == count.dtype == torch.int64
    for row in range(50):
        args = draft[row].double().tolist(), ids[row].tolist(), target[row].double().tolist()
        assert (output[row].tolist(), int(count[row])) == expected_chain(*args, row, 7, 1)
    if n:
        assert 0 < int(count.sum()) < 50 * n


def test_speculative_gives_minus_one_where_nothing_is_decided():
    draft = torch.full((2, 1, 4), 0.25)
    target = torch.tensor([[0.0, 0.5, 0.25, 0.25]]).repeat(2, 2, 1)
    target[0, 1] = 0
    target[1, 0, 1] = math.nan
    ids = torch.ones(2, 1, dtype=torch.int64)
    output, count = reference_function("speculative_sample")(draft, ids, target, seed=0)
    assert output.tolist() == [[1, -1], [-1, -1]]
    assert count.tolist() == [1, 0]
