"""Feed-forward blocks and mixtures of experts on random shapes, every kernel against float64 formulas."""

import math

import pytest
import torch
from every_kernel import assert_close, every_kernel
from hypothesis import assume, given, settings
from hypothesis import strategies as st

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    # 1 + erf(y) is erfc(-y), and 1 + tanh(y) is 2 sigmoid(2 y): torch's own formulas lose digits in the tails.
    "gelu": lambda x: x / 2 * (-x / math.sqrt(2)).erfc(),
    "gelu_tanh": lambda x: x * (2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).sigmoid(),
    "relu2": lambda x: torch.relu(x) ** 2,
}


class Weights:
    """Random weights of one or of several experts, in one of the forms that the operations take."""

    def __init__(self, seed, form, dtype, d, n, m, experts=None, biases=False):
        self.random = torch.Generator().manual_seed(seed)
        lead = () if experts is None else (experts,)
        rows = n if form in ("separate", "ungated") else 2 * n
        self.form = form
        self.arguments = {
            "gate_weight": self.draw(lead + (rows, d), dtype),
            "down_weight": self.draw(lead + (m, n), dtype),
        }
        if form == "separate":
            self.arguments["up_weight"] = self.draw(lead + (n, d), dtype)
        if biases:
            self.arguments["gate_bias"] = self.draw(lead + (rows,), dtype)
            self.arguments["down_bias"] = self.draw(lead + (m,), dtype)
            if form == "separate":
                self.arguments["up_bias"] = self.draw(lead + (n,), dtype)

    def draw(self, shape, dtype):
        fan = max(shape[-1], 1) ** 0.5
        return (torch.randn(shape, generator=self.random, dtype=torch.float64) / fan).to(dtype)

    def rows(self, x, activation, limit=None, alpha=1.0, up_offset=0.0, expert=None):
        """The block's output for rows x, in float64."""
        w = {k: (v if expert is None else v[expert]).double() for k, v in self.arguments.items()}
        gate = x.double() @ w["gate_weight"].T + w.get("gate_bias", 0)
        if self.form == "separate":
            up = x.double() @ w["up_weight"].T + w.get("up_bias", 0)
        elif self.form == "interleaved":
            gate, up = gate[:, ::2], gate[:, 1::2]
        elif self.form == "packed":
            gate, up = gate.chunk(2, -1)
        else:
            up = None
        if limit is not None:
            gate = gate.clamp(max=limit)
        hidden = gate * torch.sigmoid(alpha * gate) if activation == "silu" else ACTIVATIONS[activation](gate)
        if up is not None:
            hidden = hidden * ((up if limit is None else up.clamp(-limit, limit)) + up_offset)
        return hidden @ w["down_weight"].T + w.get("down_bias", 0)


sizes = st.integers(1, 40)
cases = st.tuples(
    st.sampled_from(["packed", "interleaved", "separate", "ungated"]),
    st.sampled_from(DTYPES),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.booleans(),  # biases
    st.booleans(),  # clamped
    st.tuples(sizes, sizes, st.integers(8, 40)),  # d, n, m
    st.integers(0, 99),
)


def prepare(case, experts=None):
    form, dtype, activation, biases, clamped, (d, n, m), seed = case
    # The tail of an activation cancels; few of them alone make a row that float64 alone resolves.
    assume(n >= 8 or dtype == torch.float64)
    weights = Weights(seed, form, dtype, d, n, m, experts, biases)
    how = {"activation": activation}
    if clamped:
        how["limit"] = 0.7
        if form != "ungated":
            how["up_offset"] = 1.0
        if activation == "silu":
            how["alpha"] = 1.702
    return weights, how, {"interleaved": form == "interleaved"}


def roundings_of(kernel):
    """torch's rows round products and activations to the dtype, and relu2 squares what was rounded."""
    return 3 if kernel.startswith(("torch.fused_mlp", "torch.fused_moe")) else 1


@settings(deadline=None, max_examples=40)
@given(cases, st.integers(0, 60))
def test_fused_mlp(case, rows):
    weights, how, packing = prepare(case)
    x = weights.draw((rows, case[5][0]), case[1]) * 3
    want = weights.rows(x, **how)
    for kernel, (got,) in every_kernel("fused_mlp", input=x, **weights.arguments, **how, **packing):
        assert_close(kernel, got, want, row_max=True, roundings=roundings_of(kernel))


@settings(deadline=None, max_examples=30)
@given(cases, st.integers(0, 20), st.integers(1, 6), st.integers(1, 4), st.sampled_from(["output", "input"]))
def test_fused_moe(case, tokens, experts, k, weighted):
    weights, how, packing = prepare(case, experts)
    x = weights.draw((tokens, case[5][0]), case[1]) * 3
    ids = torch.randint(-1, experts + 1, (tokens, k), generator=weights.random)  # some belong to other ranks
    w = torch.rand(tokens, k, generator=weights.random) + 0.1
    want = torch.zeros(tokens, case[5][2], dtype=torch.float64)
    for t in range(tokens):
        for j in range(k):
            if not 0 <= ids[t, j] < experts:
                continue
            row = x[t : t + 1].double() * (w[t, j].double() if weighted == "input" else 1)
            y = weights.rows(row, **how, expert=int(ids[t, j]))[0]
            want[t] += y * (1 if weighted == "input" else w[t, j].double())
    arguments = {"input": x, "expert_ids": ids, "expert_weights": w, "weighted": weighted}
    for kernel, (got,) in every_kernel("fused_moe", **arguments, **weights.arguments, **how, **packing):
        assert_close(kernel, got, want, row_max=True, roundings=roundings_of(kernel))


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(DTYPES),
    sizes,
    st.integers(4, 40),
    st.lists(st.integers(0, 9), min_size=2, max_size=6),
    st.booleans(),
)
def test_grouped_gemm(dtype, d, n, counts, bias):
    random = torch.Generator().manual_seed(d)
    offsets = torch.tensor(counts).cumsum(0).int()  # the first count belongs to no expert
    rows, experts = int(offsets[-1]) + 2, len(counts) - 1
    x = torch.randn(rows, d, generator=random).to(dtype)
    w = torch.randn(experts, n, d, generator=random).to(dtype)
    b = torch.randn(experts, n, generator=random).to(dtype) if bias else None
    want = torch.zeros(rows, n, dtype=torch.float64)
    for e in range(experts):
        part = slice(int(offsets[e]), int(offsets[e + 1]))
        want[part] = x[part].double() @ w[e].double().T + (b[e].double() if bias else 0)
    given_bias = {"bias": b} if bias else {}
    for kernel, (got,) in every_kernel("grouped_gemm", input=x, weight=w, offsets=offsets, **given_bias):
        assert_close(kernel, got, want, row_max=True)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4),  # groups
    st.integers(1, 6),  # experts of a group
    st.sampled_from(["softmax", "sigmoid", "sqrt_softplus"]),
    st.sampled_from(["max", "top2_sum"]),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_route(groups, size, scoring, group_score, bias, renormalize, data):
    top_groups = data.draw(st.integers(1, groups))
    k = data.draw(st.integers(0, top_groups * size))
    random = torch.Generator().manual_seed(k)
    logits = torch.randn(9, groups * size, generator=random, dtype=torch.float64)
    b = torch.randn(groups * size, generator=random, dtype=torch.float64) if bias else None
    score = {
        "softmax": lambda x: x.softmax(-1),
        "sigmoid": torch.sigmoid,
        "sqrt_softplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
    }[scoring](logits)
    choice = score + b if bias else score
    best = choice.unflatten(-1, (groups, size)).topk(min(size, 1 if group_score == "max" else 2)).values.sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(top_groups).indices, True)
    ids = choice.masked_fill(~kept.repeat_interleave(size, -1), -torch.inf).topk(k).indices
    weights = score.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=0.7)
    how = {"scoring": scoring, "renormalize": renormalize, "scale": 1.5}
    extra = {"bias": b} if bias else {}
    extra |= {"min_sum": 0.7} if renormalize else {}
    extra |= {"group_score": group_score} if groups > 1 else {}
    call = {"logits": logits, "k": k, "num_groups": groups, "top_groups": top_groups, **how, **extra}
    for kernel, (got, got_ids) in every_kernel("moe_route", **call):
        assert torch.equal(got_ids.long(), ids), kernel
        assert_close(kernel, got, 1.5 * weights, torch.float32)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 9), st.sampled_from([0.0, 0.01, 0.3]), st.floats(0.01, 5))
def test_a_sparse_mixer_of_two(experts, jitter, size):
    """As PhiMoE's own code has it: each choice masks what is far below it, relative to the larger of both."""
    x = size * torch.randn(9, experts, generator=torch.Generator().manual_seed(experts), dtype=torch.float64)
    weights, ids, left = [], [], x
    for _ in range(2):
        best, index = left.max(dim=-1, keepdim=True)
        far = (best - x) / x.abs().clamp(min=best) > 2 * jitter
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, index))
        ids.append(index)
        left = left.scatter(-1, index, -torch.inf)
    call = {"logits": x, "k": 2, "scoring": "sparsemixer", "jitter": jitter}
    for kernel, (got, got_ids) in every_kernel("moe_route", **call):
        assert torch.equal(got_ids.long(), torch.cat(ids, -1)), kernel
        assert_close(kernel, got, torch.cat(weights, -1), torch.float32)


def test_a_sparse_mixer_has_a_finite_gradient_of_distant_logits():
    import layerzero as lz

    x = torch.tensor([[2000.0, 3.0, 2.9, -700.0]], dtype=torch.float64, requires_grad=True)
    weights, _ = lz.moe_route(x, 2, scoring="sparsemixer", jitter=0.3)
    (gradient,) = torch.autograd.grad(weights[0, 1], x)
    near = torch.tensor([3.0, 2.9], dtype=torch.float64).softmax(0)
    slope = float(near[0] * near[1])
    assert torch.allclose(gradient, torch.tensor([[0, slope, -slope, 0]], dtype=torch.float64), rtol=1e-6)


@pytest.mark.parametrize("form", ["packed", "separate", "ungated"])
def test_fused_mlp_has_a_right_gradient(form):
    import layerzero as lz

    weights = Weights(1, form, torch.float64, 5, 6, 4, biases=True)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    names = sorted(weights.arguments)
    values = [weights.arguments[n].requires_grad_() for n in names]
    assert torch.autograd.gradcheck(lambda x, *v: lz.fused_mlp(x, **dict(zip(names, v, strict=True))), (x, *values))
