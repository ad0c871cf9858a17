"""Adapters of xFormers over stand-ins with the library's signatures, against the FP64 references."""

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
import xformers_stand_in  # noqa: E402
from adapter_calls import values_of  # noqa: E402
from conformance_calls import problems  # noqa: E402
from library_rows import adapter_of, failures_of, installed, rows, served  # noqa: E402
from operation_cases import cases  # noqa: E402

BACKEND = "xformers"


@pytest.fixture(scope="module", autouse=True)
def package():
    with installed(xformers_stand_in.modules(), (BACKEND,)):
        yield


def admits(row, values):
    """The row's rules on strides, and on more queries than keys, which the cases do not apply."""
    axis = 2 if values[-1] == "BHSD" else 1
    enough = not row.get("supports_causal") or values[0].shape[axis] <= values[1].shape[axis]
    return enough and all(t.stride(-1) == 1 for t in values[:3])


def calls(name, row):
    if "mask" not in row["kernel_id"]:
        return [(line, values) for line, _, values in served(name, row) if admits(row, values)]
    found = []
    for line, arguments in cases(name):
        tensors = [t for t in arguments.values() if isinstance(t, torch.Tensor)]
        plain = not any(t.numel() == 0 for t in tensors) and "nan" not in line and "inf" not in line
        others = {"window", "softcap", "sinks", "alibi_slopes", "dropout_p"} & set(arguments)
        masked = arguments.get("attn_mask") is not None and not arguments.get("causal")
        if plain and masked and not others and len({t.dtype for t in tensors if t.dtype != torch.bool}) == 1:
            found.append((line, values_of(name, arguments, ("attn_mask", "return_lse", "causal"))))
    return [(line, values) for line, values in found if admits(row, values)]


def test_every_row_agrees_with_fp64():
    failures, ran = [], {}
    for name, row in rows(BACKEND):
        for line, values in calls(name, row):
            ran[row["kernel_id"], name] = ran.get((row["kernel_id"], name), 0) + 1
            failures += failures_of(row, name, line, adapter_of(row)(*values))
    assert not failures, f"{len(failures)} of {ran}\n" + "\n".join(failures[:20])
    assert not [key for name, row in rows(BACKEND) if (key := (row["kernel_id"], name)) not in ran], ran


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@pytest.mark.parametrize("heads", [1, 4])
def test_masks_that_broadcast_and_rows_that_see_nothing(dtype, heads):
    from layerzero.backends.xformers.adapters import attention

    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 5, 2, 8)
    seen = torch.rand(1, heads, 3, 5) > 0.4
    seen[..., 1, :] = False
    mask = seen if dtype == torch.bool else torch.where(seen, torch.randn(seen.shape), -torch.inf)
    found = attention(q, k, k, False, 0.3, mask, 0.0, None, None, None, None, True, "BSHD")
    wanted = lz.attention(q, k, k, causal=False, scale=0.3, attn_mask=mask, return_lse=True, layout="BSHD")
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_wrong_window_would_be_seen(monkeypatch):
    from layerzero.backends.xformers import adapters

    kind = adapters.LowerTriangularFromBottomRightLocalAttentionMask
    monkeypatch.setattr(adapters, "LowerTriangularFromBottomRightLocalAttentionMask", lambda window: kind(window + 1))
    row = next(row for name, row in rows(BACKEND) if name == "attention")
    tried = [(line, v) for line, a, v in served("attention", row) if a.get("window")]
    assert [line for line, values in tried if problems("attention", line, adapters.attention(*values))]


def test_it_ranks_below_torch():
    lz.rms_norm(torch.ones(1, 8))
    kernels = [k for k in lz.list_kernels() if k.kernel_id.startswith("xformers.")]
    assert kernels and all(k.priority == 5 and k.installed is False for k in kernels)
