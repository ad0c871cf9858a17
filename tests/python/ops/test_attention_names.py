"""Names of attention: deprecated aliases, locks on them, operations by their ids; ALiBi; hidden NaN in torch's kernels."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

Q, K = torch.randn(1, 3, 4, 8), torch.randn(1, 5, 4, 8)
PAGED = (torch.randn(2, 4, 8), torch.randn(3, 4, 4, 8), torch.randn(3, 4, 4, 8)) + tuple(
    torch.tensor(v, dtype=torch.int32) for v in ([0, 1, 3], [2, 0, 1], [4, 3])
)


@pytest.mark.parametrize(("alias", "causal"), [("attention.causal", True), ("attention.full", False)])
def test_an_alias_means_its_argument_and_warns(alias, causal):
    want = lz.attention(Q, K, K, causal=causal)
    with pytest.warns(DeprecationWarning, match=f"{alias}.*causal={causal}"):
        assert torch.equal(lz.run(alias, Q, K, K), want)
    with pytest.warns(DeprecationWarning):
        assert torch.equal(lz.prepare(alias, Q, K, K)(Q, K, K), want)
    with pytest.warns(DeprecationWarning), pytest.raises(lz.InvalidRequestError, match=f"causal: wanted {causal}"):
        lz.run(alias, Q, K, K, causal=not causal)
    with pytest.warns(DeprecationWarning):
        lz.run(alias, Q, K, K, causal=causal)


def test_the_alias_of_paged_decode():
    with pytest.warns(DeprecationWarning, match="paged_decode_attention"):
        assert torch.equal(lz.run("attention.paged", *PAGED), lz.paged_decode_attention(*PAGED))


@pytest.mark.parametrize("queries", [1, 3], ids=["decode", "prefill"])
@pytest.mark.parametrize("kv_heads", [4, 2], ids=["standard", "gqa"])
@pytest.mark.parametrize("alias", ["attention.causal", "attention.full"])
def test_a_lock_on_an_alias_covers_all_its_targets(alias, kv_heads, queries):
    q, k = Q[:, :queries], K[:, :, :kv_heads]
    assert lz.which("attention", q, k, k)["kernel_id"] != "torch.sdpa.math"
    with lz.policy(locks={alias: "torch.sdpa.math"}):
        assert lz.which("attention", q, k, k)["kernel_id"] == "torch.sdpa.math"
        assert lz.which("attention", q, k, k, causal=False)["kernel_id"] == "torch.sdpa.math"
        assert lz.which("rms_norm", q)["kernel_id"] != "torch.sdpa.math"


def test_a_lock_on_the_paged_alias_binds_the_operation_that_has_the_kernel():
    with lz.policy(locks={"attention.paged": "ref.attention.standard.decode.paged"}):
        assert lz.which("paged_decode_attention", *PAGED)["kernel_id"] == "ref.attention.standard.decode.paged"
        grouped = (torch.randn(2, 8, 8), *PAGED[1:])
        assert lz.which("paged_decode_attention", *grouped)["kernel_id"] != "ref.attention.standard.decode.paged"


OPERATIONS = {
    "attention.cross.decode": lambda: lz.explain("cross_attention", Q[:, :1], K, K),
    "attention.cross.prefill": lambda: lz.explain("attention.cross.prefill", Q, K[:, :, :2], K[:, :, :2]),
    "attention.gqa.prefill": lambda: lz.explain("attention", Q, K[:, :, :2], K[:, :, :2]),
    "attention.standard.decode": lambda: lz.explain("attention", Q[:, :1], K, K),
    "attention.standard.decode.paged": lambda: lz.explain("paged_decode_attention", *PAGED),
    "attention.gqa.partials": lambda: lz.explain("attention_partials", Q, K[:, :, :2], K[:, :, :2], num_splits=2),
    "posenc.alibi": lambda: lz.explain("alibi", torch.ones(4), 2, 3),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_calls_are_of_the_operation_that_their_shapes_say(operation):
    assert OPERATIONS[operation]().operation == operation


def test_cross_attention_takes_neither_causality_nor_positions():
    for argument in ({"causal": True}, {"window": 3}, {"alibi_slopes": torch.ones(4)}):
        with pytest.raises((TypeError, lz.LayerZeroError), match=next(iter(argument))):
            lz.cross_attention(Q, K, K, **argument)


def test_alibi_is_the_mask_that_the_slopes_mean():
    slopes = lz.alibi_slopes(4)
    want = lz.attention(Q, K, K, causal=True, alibi_slopes=slopes)
    torch.testing.assert_close(lz.attention(Q, K, K, attn_mask=lz.alibi(slopes, 3, 5, causal=True)), want)


@pytest.mark.parametrize("heads", [1, 6, 8, 12, 20, 32])
def test_published_slopes(heads):
    def powers(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]

    power = 1 << max(heads.bit_length() - 1, 0)
    want = powers(power)[:heads] + powers(2 * power)[0::2][: max(heads - power, 0)]
    torch.testing.assert_close(lz.alibi_slopes(heads), torch.tensor(want))
    assert lz.alibi_slopes(heads, dtype=torch.float16).dtype == torch.float16


# ---- L15 in torch's kernels: a hidden NaN is declared, and honoured


def rows(kernel_id):
    lz.attention(Q, K, K)  # the backends' rows are registered on first use
    kernel = next(k for k in lz.list_kernels("attention") if k.kernel_id == kernel_id)
    return {c["field"]: c for c in kernel.constraints}


def test_what_lets_a_hidden_value_through_is_kept_out_of_strict_mode():
    assert "policy.strict_mode" in rows("torch.sdpa.flash")
    assert "policy.strict_mode" in rows("torch.sdpa.cudnn")
    for clean in ("torch.sdpa.cpu", "torch.sdpa.math"):
        assert "policy.strict_mode" not in rows(clean)


@pytest.mark.parametrize("kernel", ["torch.sdpa.cpu", "torch.sdpa.math"])
@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("boolean", [True, False])
def test_a_hidden_key_never_shows(kernel, special, where, boolean):
    mask = torch.tensor([True, False, True, True, False]).expand(3, 5)
    clean = {"query": Q, "key": K, "value": K.flip(1)}
    dirty = clean | {where: clean[where].masked_fill(~mask[0][:, None, None], special)}
    mask = mask if boolean else torch.zeros(3, 5).masked_fill(~mask, -torch.inf)
    with lz.policy(strict_mode=True):
        got = lz.attention(**dirty, attn_mask=mask, kernel=kernel)
        torch.testing.assert_close(got, lz.attention(**clean, attn_mask=mask))
        cross = lz.cross_attention(**dirty, attn_mask=mask, kernel=kernel)
    assert torch.equal(got, cross)


@pytest.mark.parametrize("kernel", ["torch.sdpa.cpu", "torch.sdpa.math"])
def test_a_row_that_sees_nan_is_nan(kernel):
    key = K.clone()
    key[:, 0] = torch.nan
    got = lz.attention(Q[:, :1], key[:, :1], K[:, :1], kernel=kernel)
    assert got.isnan().all()
    query = Q.clone()
    query[:, 1] = torch.nan
    got = lz.attention(query, K, K, causal=False, kernel=kernel)
    assert got[:, 1].isnan().all() and not got[:, ::2].isnan().any()


# ---- nested batches


def test_nested_batches_refuse_what_packed_ones_have_not():
    nested = torch.nested.nested_tensor([Q[0], K[0]], layout=torch.jagged)
    with pytest.raises(lz.InvalidRequestError, match="attention: attn_mask: wanted none with nested tensors"):
        lz.attention(nested, nested, nested, attn_mask=torch.ones(3, 3))
    with pytest.raises(lz.InvalidRequestError, match=r"attention: key: .*nest all or none"):
        lz.attention(nested, K, K)
    with pytest.raises(lz.InvalidRequestError, match=r"attention: query: wanted a nested tensor \(b, h, j, d\)"):
        lz.attention(nested, nested, nested, layout="BHSD")
    with pytest.raises(lz.LayerZeroError):
        lz.rms_norm(nested)


def test_gradients_of_nested_batches():
    nested = torch.nested.nested_tensor([Q[0], K[0]], layout=torch.jagged, requires_grad=True)
    lz.attention(nested, nested, nested).values().sum().backward()
    padded = [t.clone().requires_grad_() for t in (Q, K)]
    for t in padded:
        lz.attention(t, t, t).sum().backward()
    torch.testing.assert_close(nested.grad.values(), torch.cat([t.grad[0] for t in padded]))
