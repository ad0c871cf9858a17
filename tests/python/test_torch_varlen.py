"""The adapters over torch's varlen flash kernel, on the CPU with a model of that kernel in its place.

The model does what the kernel does beyond arithmetic: rows of no sequence keep what the memory held, a row without a key
gives 0 and an lse of +inf, keys after `seqused_k` and before a window are not read.
"""

import inspect
import math

import pytest

torch = pytest.importorskip("torch")
import layerzero as lz  # noqa: E402
from adapter_calls import values_of  # noqa: E402
from flash_stand_ins import swapped  # noqa: E402
from layerzero.backends.torch import varlen  # noqa: E402
from layerzero.contracts import parameter_names  # noqa: E402
from layerzero.torch.references import call_reference  # noqa: E402
from operation_cases import as_tuple, cases  # noqa: E402

GARBAGE = 12345.0


def kernel(query, key, value, cu_q, cu_k, max_q, max_k, dropout, causal, debug, **options):
    assert cu_q.dtype == cu_k.dtype == torch.int32 and len(cu_q) == len(cu_k)
    out = torch.full((*query.shape[:2], value.shape[2]), GARBAGE, dtype=query.dtype)
    lse = torch.full((query.shape[1], query.shape[0]), GARBAGE)
    left, right, used = (options.get(k) for k in ("window_size_left", "window_size_right", "seqused_k"))
    swapped(query, key, len(cu_q) - 1, max_q, left is None and right is None)
    assert options["scale"] is None or options["scale"] > 0, "the kernel makes NaN of it"
    slopes, group = options.get("alibi_slopes"), query.shape[1] // key.shape[1]
    for s in range(len(cu_q) - 1):
        rows = slice(int(cu_q[s]), min(int(cu_q[s + 1]), int(cu_q[s]) + max_q))
        count = int(cu_k[s + 1] - cu_k[s]) if used is None else int(used[s])
        assert int(cu_k[s]) >= 0 and int(cu_k[s]) + count <= key.shape[0] and count <= max_k, "out of bounds"
        k, v = (t[int(cu_k[s]) : int(cu_k[s]) + count].double().repeat_interleave(group, 1) for t in (key, value))
        q = query[rows].double()
        row, column = torch.arange(q.shape[0])[:, None] + count - q.shape[0], torch.arange(count)
        gone = (column > row) if causal else torch.zeros(q.shape[0], count, dtype=torch.bool)
        gone = gone | (column < row - left) if left is not None and left >= 0 else gone
        gone = gone | (column > row + right) if right is not None and right >= 0 else gone
        z = torch.einsum("ihd,jhd->hij", q, k) * options["scale"]
        if slopes is not None:  # with causal alone the kernel adds the slope times the column
            only_causal = causal and (left is None or left < 0)
            z = z + slopes.double()[:, None, None] * (column if only_causal else -(row - column).abs())
        z = z.masked_fill(gone, -math.inf)
        empty = gone.all(-1) if count else torch.ones(q.shape[0], dtype=torch.bool)
        p = torch.softmax(z.masked_fill(empty[:, None], 0), -1).masked_fill(empty[:, None], 0)
        # A value is left out only where the kernel skips it: where no row of the sequence sees the key.
        v = v.masked_fill(gone.all(0)[:, None, None], 0) if q.shape[0] else v
        out[rows] = torch.einsum("hij,jhd->ihd", p, v).to(out.dtype)
        top = torch.logsumexp(z, -1).masked_fill(empty, math.inf).float()
        lse[:, rows] = top.masked_fill(top.isnan(), math.inf)
    return out, lse, None, None, None


@pytest.fixture(autouse=True)
def modelled(monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", kernel)


ROWS = {  # operation: parameters by name that the row takes
    "paged_decode_attention": {"sm_scale", "window_left", "sinks", "k_scale", "v_scale", "return_lse"},
    "paged_attention": {"scale", "window", "sinks", "k_scale", "v_scale", "return_lse"},
    "paged_cross_attention": {"sm_scale", "sinks", "k_scale", "v_scale", "return_lse"},
    "cascade_decode_attention": {"sm_scale", "sinks", "k_scale", "v_scale", "return_lse"},
    "paged_prefill_attention": {"sm_scale", "causal", "window_left", "sinks", "k_scale", "v_scale", "return_lse"},
    "ragged_attention": {"scale", "causal", "window", "sinks", "max_seqlen_q", "max_seqlen_kv", "return_lse"},
    "pod_attention": {"sm_scale", "causal", "window_left", "sinks", "return_lse"},
    "block_sparse_attention": {"sm_scale", "return_lse"},
}


PROPAGATE = ("paged_prefill_attention", "ragged_attention", "pod_attention")  # a NaN of a value that another row sees


def wide(tensor):
    """Half precision is widened: what is tested is which rows and keys meet, not rounding."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


@pytest.mark.parametrize("name", ROWS)
def test_agrees_with_the_reference_on_every_case(name):
    ran = invalid = 0
    failures = []
    adapter = getattr(varlen, name)
    for line, arguments in cases(name):
        values = values_of(name, arguments, ROWS[name], wide)
        hidden_nan = name in PROPAGATE and "nan" in line
        if values is None or hidden_nan or any(isinstance(v, torch.Tensor) and v.numel() == 0 for v in values):
            continue
        try:
            want = call_reference(name, dict(zip(parameter_names(name), values, strict=True)))
        except lz.KernelExecutionError:
            adapter(*values)  # the kernel's model holds that it stays within the tensors
            invalid += 1
            continue
        for a, b in zip(as_tuple(adapter(*values)), as_tuple(want), strict=True):
            if not torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
                failures.append(f"{line}\n    {a.flatten()[:4]} for {b.flatten()[:4]}")
        ran += 1
    assert not failures, "\n".join(failures)
    assert ran > 5 and (invalid or name != "paged_prefill_attention")


@pytest.mark.parametrize("name", ROWS)
def test_takes_the_parameters_in_the_contract_order(name):
    assert len(inspect.signature(getattr(varlen, name)).parameters) == len(parameter_names(name))
