"""gated_delta_rule where its recursion grows, and where its sums leave float32: every kernel against float64."""

import layerzero as lz
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

HEADS = 2


def draw(seed, positions, d_k, d_v, strength):
    """A call whose keys have `strength` squared as their sum of squares, so that each corrects the state that much."""
    random = torch.Generator().manual_seed(seed)
    rows = {
        name: torch.randn(1, positions, HEADS, size, generator=random)
        for name, size in (("query", d_k), ("key", d_k), ("value", d_v))
    }
    rows["key"] *= strength / rows["key"].norm(dim=-1, keepdim=True)
    gates = {name: torch.rand(1, positions, HEADS, generator=random) for name in ("g", "beta")}
    gates["g"] *= -1
    return rows | gates | {"state": torch.randn(1, HEADS, d_k, d_v, generator=random)}


def recursion(call, dtype):
    """(outputs, last state) position by position in `dtype`, and the largest state on the way of each head."""
    query, key, value, g, beta, state = (
        call[name].to(dtype) for name in ("query", "key", "value", "g", "beta", "state")
    )
    outputs, largest = [], state.abs().amax((-1, -2))
    for t in range(query.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        seen = torch.einsum("bhkv,bhk->bhv", state, key[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", key[:, t], beta[:, t, :, None] * (value[:, t] - seen))
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]) * query.shape[-1] ** -0.5)
        largest = torch.maximum(largest, state.abs().amax((-1, -2)))
    return torch.stack(outputs, 1), state, largest


def answers(call):
    """(kernel id, output, last state) of each kernel."""
    for candidate in lz.explain("gated_delta_rule", **call).candidates:
        if candidate.admissible:
            state = call["state"].clone()
            yield candidate.kernel_id, lz.gated_delta_rule(**call | {"state": state}, kernel=candidate.kernel_id), state


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 24), st.integers(1, 40), st.integers(1, 70), st.floats(0.1, 3))
def test_a_recursion_that_grows(seed, positions, d_k, d_v, strength):
    """Where keys are long each position makes the state larger, some thousandfold in all: rounding grows as it does."""
    call = draw(seed, positions, d_k, d_v, strength)
    outputs, state, largest = recursion(call, torch.float64)
    lengths = call["query"].norm(dim=-1).clamp(min=1)[..., None]
    for kernel, got, last in answers(call):
        assert bool(((got - outputs).abs() <= 1e-4 * largest[:, None, :, None] * lengths).all()), kernel
        assert bool(((last - state).abs() <= 1e-4 * largest[..., None, None]).all()), kernel


@pytest.mark.parametrize("which", ["state", "product"])
def test_sums_that_leave_float32_stay_in_their_head(which):
    """The definition leaves them open: what is finite is right, and the other head is as if they were not there."""
    call = draw(7, 3, 8, 40, 1.0)
    if which == "state":
        call["state"][:, 0, :, 0], call["key"][:, :, 0] = 3e38, 1.0  # their sum is 2.4e39
        call["beta"][:, :, 0] = 0
    else:
        call["query"][:, :, 0], call["key"][:, :, 0] = 1e20, 1e20  # their product is 8e40
        call["beta"][:, :, 0] = 1e-30
        call["state"][:, 0] = 0
    outputs, _, _ = recursion(call, torch.float64)
    left = []
    for kernel, got, _ in answers(call):
        bound = 1e-4 * outputs.abs().amax(-1, keepdim=True)
        right = (got - outputs).abs() <= bound
        assert bool(right[:, :, 1].all()), kernel
        assert bool((right | ~got.isfinite()).all()), kernel
        if which == "state":  # columns of a state do not see each other
            assert bool(right[:, :, 0, 1:].all()), kernel
        left.append(bool(right.all()))
    assert False in left  # in float32 they do leave
