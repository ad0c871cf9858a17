"""Index tensors are int32 or int64 in every operation, for every kernel, through lz.* and torch.ops: converted where a kernel
reads the other one, never cut. Generated from the contracts: nothing here names an operation's arguments."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from operation_cases import as_tuple, copied, few, same  # noqa: E402

INTEGERS = {"int32", "int64"}


def index_params(name):
    tensors = [p for p in contracts()[name]["params"] if p["kind"] == "tensor"]
    return [p["name"] for p in tensors if INTEGERS & set(p["dtypes"]) and not {"float32", "int8"} & set(p["dtypes"])]


NAMES = [name for name in contracts() if index_params(name)]


def with_indices(name, arguments, dtype):
    indices = {n: arguments[n].to(dtype) for n in index_params(name) if arguments.get(n) is not None}
    return arguments | {n: t for n, t in indices.items() if arguments[n].dtype in (torch.int32, torch.int64)}


def outcome(name, call, arguments):
    """Results and what was written, as int64 where they are indices; or that the indices were refused."""
    arguments = copied(arguments)
    try:
        result = call(**arguments)
    except lz.KernelExecutionError:
        return lz.KernelExecutionError
    written = [arguments[p["name"]].long() for p in contracts()[name]["params"] if p.get("mutated") and p.get("index")]
    return tuple(t for t in as_tuple(result) if t is not None) + tuple(written)


def agree(got, want):
    assert (got is lz.KernelExecutionError) == (want is lz.KernelExecutionError)
    if got is not lz.KernelExecutionError:
        same(got, want)


def near(got, want):
    """Within what rounding explains: the kernels' own tolerances are conformance's to check."""
    assert (got is lz.KernelExecutionError) == (want is lz.KernelExecutionError)
    if got is not lz.KernelExecutionError:
        for a, b in zip(got, want, strict=True):
            if a.is_floating_point() and a.numel():
                a, b = a.nan_to_num(), b.nan_to_num()
                assert (a.double() - b.double()).abs().max() <= 0.05 * (1 + b.double().abs().max())
            else:
                assert torch.equal(a, b)


def test_no_tensor_parameter_takes_one_of_them_alone():
    for name, contract in contracts().items():
        for p in contract["params"]:
            if p["kind"] == "tensor":
                assert len(INTEGERS & set(p["dtypes"])) != 1, (name, p["name"])
    assert len(NAMES) >= 15


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_takes_both(name):
    tried = 0
    for line, arguments in few(name, 3):
        narrow, wide = (with_indices(name, arguments, d) for d in (torch.int32, torch.int64))
        report = lz.explain(name, **wide)
        want = outcome(name, lambda **a: lz.run(name, kernel=f"ref.{report.operation}", **a), narrow)  # noqa: B023
        admissible = {c.kernel_id for c in lz.explain(name, **narrow).candidates if c.admissible}
        assert {c.kernel_id for c in report.candidates if c.admissible} == admissible, line
        for kernel in admissible:
            each = [outcome(name, lambda **a: lz.run(name, kernel=kernel, **a), g) for g in (narrow, wide)]  # noqa: B023
            agree(*each)  # bit for bit
            near(each[1], want)
            tried += 1
    assert tried


@pytest.mark.parametrize("name", [n for n in NAMES if hasattr(torch.ops.layerzero, n)])
def test_the_operators_of_torch_take_both(name):
    from layerzero.torch.operators import call_operator

    for _, arguments in few(name, 3):
        narrow, wide = (with_indices(name, arguments, d) for d in (torch.int32, torch.int64))
        want, got = (outcome(name, lambda **a: call_operator(name, a), each) for each in (narrow, wide))
        agree(got, want)


@pytest.mark.parametrize("name", NAMES)
def test_the_shapes_of_both_are_traced(name):
    from torch._subclasses import FakeTensorMode

    _, arguments = few(name, 1)[0]
    for dtype in (torch.int32, torch.int64):
        given = with_indices(name, arguments, dtype)
        real = outcome(name, getattr(lz, name), given)
        if real is lz.KernelExecutionError:
            continue
        with FakeTensorMode() as mode:
            fake = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
            results = [t for t in as_tuple(getattr(lz, name)(**fake)) if t is not None]
        assert [t.shape for t in results] == [t.shape for t in real[: len(results)]]


BLOCKS = (torch.randn(2, 1, 4, 16), torch.randn(3, 8, 4, 16), torch.randn(3, 8, 4, 16))
TABLES, LENGTHS = torch.tensor([[0, 1], [2, 0]]), torch.tensor([9, 3])


@pytest.mark.parametrize("value", [2**31, 2**32, 2**32 + 1, -(2**31) - 1, 2**63 - 1])
@pytest.mark.parametrize("call", [lz.paged_attention, lambda *a: torch.ops.layerzero.paged_attention(*a)])
def test_a_value_that_int32_does_not_hold_is_an_error_and_never_cut(call, value):
    tables = TABLES.clone()
    tables[0, 1] = value  # 2**32 + 1 would be block 1
    with pytest.raises(lz.KernelExecutionError, match="block_tables|index"):
        call(*BLOCKS, tables, LENGTHS)


@pytest.mark.parametrize("value", [2**31, 2**32 + 1])
def test_no_kernel_cuts_it(value):
    tables = TABLES.clone()
    tables[0, 1] = value
    for candidate in lz.explain("paged_attention", *BLOCKS, tables, LENGTHS).candidates:
        if candidate.admissible:
            with pytest.raises((lz.KernelExecutionError, lz.InvalidRequestError)):
                lz.paged_attention(*BLOCKS, tables, LENGTHS, kernel=candidate.kernel_id)


def test_the_conversion_is_part_of_the_plan_and_strict_mode_allows_none():
    report = lz.explain("paged_attention", *BLOCKS, TABLES, LENGTHS)
    own = next(c for c in report.candidates if c.kernel_id.startswith("hwy."))
    assert own.admissible
    casts = {t.tensor: (t["from"], t["to"]) for t in report.plan.transforms if t.kind == "cast"}
    if report.kernel_id == own.kernel_id:
        assert casts == {n: ("int64", "int32") for n in ("block_tables", "context_lens")}
    with lz.policy(strict_mode=True):
        strict = lz.explain("paged_attention", *BLOCKS, TABLES, LENGTHS)
    refused = next(c for c in strict.candidates if c.kernel_id == own.kernel_id)
    assert {"DTYPE_UNSUPPORTED", "TRANSFORM_NOT_ALLOWED"} <= {r.code for r in refused.reasons}


def test_what_is_written_keeps_its_dtype():
    tables = torch.zeros(2, 2, dtype=torch.int64)
    lz.kv_block_table_update(tables, torch.tensor([[1, 0, 2**40]]))
    assert tables.tolist() == [[0, 0], [2**40, 0]]
    with pytest.raises(lz.KernelExecutionError):
        lz.kv_block_table_update(tables.int(), torch.tensor([[1, 0, 2**40]]))
