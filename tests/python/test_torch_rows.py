"""Torch's rows on the CPU at sizes beyond the conformance cases, against the references; formats to the bit."""

import copy

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")
import row_calls  # noqa: E402
from conformance_calls import with_written  # noqa: E402
from layerzero.backends.torch import quantize  # noqa: E402
from layerzero.torch.references import call_reference, reference_function  # noqa: E402

CALLS = list(row_calls.calls())


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("kernel", sorted({kernel for _, kernel, _ in CALLS if not kernel.endswith(".cuda")}))
def test_rows_agree_with_the_references(kernel):
    for name, _, given in (c for c in CALLS if c[1] == kernel):
        ours, theirs = copy.deepcopy(given), copy.deepcopy(given)
        got = with_written(name, getattr(lz, name)(**ours, kernel=kernel), ours)
        layout = theirs.pop("layout", None)
        want = with_written(name, call_reference(name, theirs, layout), theirs)
        row_calls.compare(name, as_tuple(got), as_tuple(want))


def test_zero_points_beyond_what_float32_counts():
    x = torch.randn(4, 64) * 2**28
    for point in (-(2**31) + 5, -(2**28) - 3, 2**25 + 1, 2**31 - 1):
        given = dict(scale=torch.tensor([1.0]), zero_point=torch.tensor([point], dtype=torch.int32))
        for dtype in ("int8", "uint8", "int4", "uint4"):
            got = quantize.quantize(x, dtype, given["scale"], None, 0, 1, given["zero_point"], None, "ceil")
            assert torch.equal(got, reference_function("quantize")(x, dtype, **given))


def test_a_block_of_negative_zeros_has_a_positive_scale():
    x = torch.full((2, 16), -0.0)
    for quantise in (
        reference_function("quantize"),
        lambda x, d, tensor_scale: lz.quantize(x, d, tensor_scale=tensor_scale),
    ):
        values, scale = quantise(x, "nvfp4", tensor_scale=torch.tensor([0.5]))
        assert not scale.float().signbit().any() and (values == 0x88).all()


def test_delta_rule_hides_what_is_not_finite_from_earlier_positions():
    given = {c[1]: c[2] for c in CALLS if c[0] == "gated_delta_rule"}["torch.gated_delta_rule"]
    given = copy.deepcopy(given)
    given["value"][:, 70] = torch.nan
    got = lz.gated_delta_rule(**given, kernel="torch.gated_delta_rule")
    assert got[:, :70].isfinite().all() and got[:, 70:].isnan().all()
