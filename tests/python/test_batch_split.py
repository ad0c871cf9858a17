"""Attention over more sequences than a launch grid holds: split over the batch, as the last resort, with a warning."""

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")

from layerzero.backends.batch_split import adapters  # noqa: E402
from layerzero.contracts import host_parameter_names  # noqa: E402

LIMIT = 65535


def values(operation, **given):
    defaults = {"dropout_p": 0.0, "return_lse": False, "layout": "BSHD"}
    return [(defaults | given).get(name) for name in (*host_parameter_names(operation), "layout")]


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize(
    "more",
    [
        {"causal": True, "scale": 0.5},
        {"causal": True, "scale": 0.5, "window": 2, "softcap": 3.0},
        {"causal": False, "scale": 1.0, "attn_mask": "each"},
        {"causal": False, "scale": 1.0, "attn_mask": "all"},
        {"causal": True, "scale": 0.3, "sinks": True, "return_lse": True},
        {"causal": True, "scale": 0.3, "alibi_slopes": True},
    ],
    ids=lambda more: "-".join(more),
)
def test_parts_are_the_whole(monkeypatch, limit, layout, more):
    monkeypatch.setattr(adapters, "largest_batch", lambda device: limit)
    shape = (5, 4, 2, 8) if layout == "BSHD" else (5, 2, 4, 8)
    q, k, v = (torch.randn(shape) for _ in range(3))
    more = dict(more)
    if "attn_mask" in more:
        more["attn_mask"] = torch.randn(5 if more["attn_mask"] == "each" else 1, 2, 4, 4)
    for name in ("sinks", "alibi_slopes"):
        if name in more:
            more[name] = torch.rand(2)
    given = {"query": q, "key": k, "value": v, "layout": layout, **more}
    wanted = lz.attention(**given)
    with pytest.warns(UserWarning, match="5 sequences are split into") if limit < 5 else pytest.warns(UserWarning):
        found = adapters.attention(*values("attention", **given))
    pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_parts_of_cross_attention(monkeypatch):
    monkeypatch.setattr(adapters, "largest_batch", lambda device: 2)
    q, k = torch.randn(5, 3, 2, 8), torch.randn(5, 7, 2, 8)
    with pytest.warns(UserWarning, match="split into 3 calls"):
        found = adapters.cross_attention(*values("cross_attention", query=q, key=k, value=k, scale=0.4))
    torch.testing.assert_close(found, lz.cross_attention(q, k, k, scale=0.4, layout="BSHD"))


def chosen(batch, **policy):
    q = torch.empty(batch, 1, 2, 8, dtype=torch.bfloat16)
    with lz.policy(**policy):
        report = lz.explain("attention", q, q, q, layout="BSHD", device="h100")
    return report.kernel_id, {c.kernel_id: c for c in report.candidates}


def test_it_is_the_last_resort():
    kernel, found = chosen(LIMIT + 1)
    assert kernel != "batch_split.attention" and found["batch_split.attention"].admissible
    rank = {name: c.score for name, c in found.items() if c.admissible}
    behind = {name for name, score in rank.items() if score < rank["batch_split.attention"]}
    assert behind == {name for name in rank if name == "torch.sdpa.math" or found[name].reference}
    left = [name for name in rank if name not in behind and name != "batch_split.attention"]
    assert chosen(LIMIT + 1, rules=[{"deny": left}])[0] == "batch_split.attention"


@pytest.mark.parametrize(("batch", "admitted"), [(LIMIT, False), (LIMIT + 1, True)])
def test_it_takes_only_what_no_launch_holds(batch, admitted):
    candidate = chosen(batch)[1]["batch_split.attention"]
    assert candidate.admissible == admitted
    assert admitted or "device.max_grid_y" in candidate.reasons[0].message
