"""Kernels that Python calls (torch's functions, the torch references) on the conformance cases of tests/ops.

The engine's own harness runs native kernels; this one runs what needs Python, through the door, against the same FP64
references and tolerances.
"""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero._contracts import contracts  # noqa: E402

CASES = Path(__file__).resolve().parents[1] / "ops"
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}
TENSOR = re.compile(r"(\w+)\[([\d,]*)\](?:~(\w+)(?:\(([^)]*)\))?)?(?:\{([^}]*)\})?((?:@\w+)*)$")


def values(dtype, shape, fill, bounds, explicit):
    if explicit is not None:
        return torch.tensor([float(v) for v in explicit.split(",") if v], dtype=torch.float64).to(dtype).reshape(shape)
    floating = dtype.is_floating_point
    fill = fill or ("normal" if floating else "int")
    low, high = (float(b) for b in bounds.split(",")) if bounds else (0, 2)
    if fill == "normal":
        return torch.randn(shape, dtype=torch.float64).to(dtype)
    if fill == "probs":
        return torch.rand(shape, dtype=torch.float64).softmax(-1).to(dtype)
    if fill == "uniform":
        return (torch.rand(shape, dtype=torch.float64) * (high - low) + low).to(dtype)
    return torch.randint(int(low), int(high), shape).to(dtype)


def memory(tensor, how):
    """The same values in another memory layout."""
    if how == "nan" and tensor.numel():
        tensor.view(-1)[tensor.numel() // 2] = float("nan")
    if not tensor.dim():
        return tensor
    if how == "pad":
        return torch.cat((tensor, torch.zeros_like(tensor)), -1)[..., : tensor.shape[-1]]
    if how == "strided":
        return torch.stack((tensor, torch.zeros_like(tensor)), -1)[..., 0]
    if how == "transposed" and tensor.dim() > 1:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "expand" and tensor.shape[0]:
        return tensor[:1].expand_as(tensor)
    if how == "offset":
        return torch.cat((tensor.new_zeros(1), tensor.reshape(-1)))[1:].view(tensor.shape)
    return tensor


def argument(param, text):
    if param is None or param["kind"] == "choice":
        return text
    if param["kind"] == "bool":
        return text == "true"
    if param["kind"] != "tensor":
        return int(text) if param["kind"] == "int" else float(text)
    dtype, sizes, fill, bounds, explicit, how = TENSOR.match(text).groups()
    tensor = values(DTYPES[dtype], [int(s) for s in sizes.split(",") if s], fill, bounds, explicit)
    for step in filter(None, how.split("@")):
        tensor = memory(tensor, step)
    return tensor


def calls(contract):
    path = CASES / f"{contract['path']}.cases"
    params = {param["name"]: param for param in contract["params"]}
    for number, line in enumerate(path.read_text().splitlines() if path.is_file() else [], 1):
        line = line.split("#")[0].strip()
        if not line or line.startswith("refuse"):
            continue
        torch.manual_seed(number)
        pairs = (word.split("=", 1) for word in line.split())
        yield number, line, {name: argument(params.get(name), text) for name, text in pairs}


def tuple_of(result):
    return result if isinstance(result, tuple) else (result,)


def assert_within(contract, got, want, dtype):
    assert got.shape == want.shape and got.dtype == want.dtype
    if not got.dtype.is_floating_point:
        assert torch.equal(got, want)
        return
    tolerance = contract["tolerance"]
    names = {str(d).removeprefix("torch.") for d in (dtype, got.dtype) if d.is_floating_point}
    bound = max(tolerance[name] for name in names)
    x, r = got.double(), want.double()
    assert torch.equal(x.isnan(), r.isnan())
    special = r.isnan() | r.isinf() | x.isinf()
    assert torch.equal(x[special & ~r.isnan()], r[special & ~r.isnan()])
    x, r = x.masked_fill(special, 0), r.masked_fill(special, 0)
    if tolerance["compare"] == "exact":
        assert torch.equal(x, r)
        return
    if tolerance["compare"] == "row_max" and r.numel():
        allowed = bound * r.abs().amax(-1, keepdim=True).expand_as(r)
    else:
        allowed = bound * (1 + r.abs())
    # The reference was rounded once to the output's dtype.
    assert bool(((x - r).abs() <= allowed + r.abs() * torch.finfo(got.dtype).eps).all()), float((x - r).abs().max())


@pytest.mark.parametrize("name", lz._operations)
def test_host_kernels_agree_with_the_reference(name):
    contract = contracts()[name]
    host = {k.kernel_id for k in lz.list_kernels(name) if k.installed and not k.native}
    ran = dict.fromkeys(sorted(host), 0)
    wrong = []
    for number, line, arguments in calls(contract):
        report = lz.explain(name, **arguments)
        reference = next(c.kernel_id for c in report.candidates if c.kernel_id == f"ref.{report.operation}")
        try:
            want = tuple_of(getattr(lz, name)(**arguments, kernel=reference))
        except lz.KernelExecutionError:  # index data that no kernel need make sense of: the engine's harness has it
            continue
        with lz.policy(strict_mode=True):  # what does not carry a NaN as the operation says is kept out of it
            strict = {c.kernel_id for c in lz.explain(name, **arguments).candidates if c.admissible}
        first = next(arguments[p["name"]] for p in contract["params"] if p["kind"] == "tensor")
        for candidate in report.candidates:
            if candidate.kernel_id not in host or not candidate.admissible:
                continue
            if "@nan" in line and candidate.kernel_id not in strict:
                continue
            got = tuple_of(getattr(lz, name)(**arguments, kernel=candidate.kernel_id))
            try:
                for one, expected in zip(got, want, strict=True):
                    assert_within(contract, one, expected, first.dtype)
            except AssertionError as error:
                wrong.append(f"{candidate.kernel_id} on line {number}: {line}: {str(error).splitlines()[0]}")
            ran[candidate.kernel_id] += 1
    assert not wrong, "\n".join(wrong)
    cpu = {k.kernel_id for k in lz.list_kernels(name) if k.installed and not k.native and k.platform in ("any", "cpu")}
    registered_here = {k for k in ran if k.startswith("tests.")}
    assert not [k for k in cpu - registered_here if not ran[k]], ran
