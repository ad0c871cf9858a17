"""Parts alone whose code does less, more or other than the operation: products without their bias, casts that round, other gates."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import structure  # noqa: E402
from layerzero.integrations.transformers.recognise import module as recognised  # noqa: E402
from linear_kinds import RoundingLinear, TransposedLinear  # noqa: E402
from small_llama import TOLERANCE, error, logits_of, tiny  # noqa: E402


class WithoutBias(torch.nn.Linear):
    def forward(self, rows):
        return torch.nn.functional.linear(rows, self.weight)


class In8Bits(torch.nn.Linear):
    """Fake quantization by a cast."""

    def forward(self, rows):
        return torch.nn.functional.linear(rows, self.weight.to(torch.float8_e4m3fn).to(rows.dtype), self.bias)


class CastingLinear(torch.nn.Linear):
    def forward(self, rows):
        return torch.nn.functional.linear(rows.to(self.weight.dtype), self.weight, self.bias)


def alone(module, dtype=torch.float32, rows_dtype=None):
    """(report, the largest relative error) of a module of width 64 with weights that are not zero."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model = torch.nn.Sequential(module).to(dtype).eval()
    rows = torch.randn(5, 64).to(rows_dtype or dtype)
    with torch.inference_mode():
        expected = model(rows)
        report = lz.kernelize(model)
        actual = model(rows)
    assert actual.dtype == expected.dtype
    return report, error(actual.float(), expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("kind", "bias", "served"),
    [
        (TransposedLinear, True, True),
        (TransposedLinear, False, True),
        (CastingLinear, True, True),
        (WithoutBias, False, True),
        (WithoutBias, True, False),
        (In8Bits, True, False),
        (In8Bits, False, False),
    ],
)
def test_a_subclass_of_linear_alone(kind, bias, served, dtype):
    report, worst = alone(kind(64, 32, bias), dtype)
    assert worst <= (TOLERANCE if dtype == torch.float32 else 1e-2)
    assert report.replaced.get("Linear", {"calls": 0})["calls"] == served and ("0" in report.left) != served


def test_a_product_of_other_numbers(monkeypatch):
    """Of a graph that is one product, its numbers decide too."""
    monkeypatch.setattr(recognised, "name_of", lambda node: "")
    linear = RoundingLinear(64, 32)
    graph = recognised.graph_of(linear, structure.rows_for(linear.weight, 64))
    monkeypatch.setattr(graph.result, "args", (graph.rows, *graph.result.args[1:]))
    monkeypatch.setattr(recognised, "graph_of", lambda *_: graph)
    assert "something else" in recognised.why_not_linear(linear)


@pytest.mark.parametrize("weight", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("part", "bias"), [("linear", True), ("linear", False), ("mlp", True)])
def test_code_that_casts_its_rows(part, bias, weight):
    """Rows of another dtype than the weights are for its own code."""
    module = CastingLinear(64, 32, bias) if part == "linear" else RoundedMlp(weight, CastingLinear)
    other = torch.float32 if weight == torch.bfloat16 else torch.bfloat16
    assert alone(module, weight, other)[1] <= TOLERANCE


class RoundedMlp(torch.nn.Module):
    def __init__(self, dtype, kind=torch.nn.Linear, activation=torch.nn.functional.silu):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = kind(64, 96), kind(64, 96), kind(96, 64)
        self.act_fn, self.dtype, self.activation = torch.nn.Identity(), dtype, activation

    def forward(self, rows):
        rows = rows.to(self.gate_proj.weight.dtype)
        gate = self.activation(self.gate_proj(rows)).to(self.dtype).to(rows.dtype)
        return self.down_proj(gate * self.up_proj(rows))


class RoundedNorm(torch.nn.RMSNorm):
    def forward(self, rows):
        return super().forward(rows).to(torch.float8_e4m3fn).to(rows.dtype)


class WideNorm(torch.nn.Module):
    """Without a weight that has a dtype; what it returns stays in float32."""

    eps = 1e-6

    def forward(self, rows):
        rows = rows.float()
        return rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("part", ["norm", "mlp"])
def test_parts_that_round_to_8_bits(part, dtype):
    module = RoundedNorm(64, eps=1e-6) if part == "norm" else RoundedMlp(torch.float8_e4m3fn)
    report, worst = alone(module, dtype)
    assert "0" in report.left and worst <= (TOLERANCE if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize(
    "module", [RoundedMlp(torch.bfloat16), WideNorm()], ids=["rounds to bfloat16", "returns float32"]
)
def test_parts_whose_dtypes_are_others(module):
    dtype = torch.float16 if isinstance(module, RoundedMlp) else torch.bfloat16
    report, worst = alone(module, dtype)
    assert "0" in report.left and worst <= 1e-2


@pytest.mark.parametrize("name", ["relu", "quick_gelu"])
def test_a_gate_that_no_operation_has(name):
    function = {"relu": torch.relu, "quick_gelu": lambda rows: rows * torch.sigmoid(1.702 * rows)}[name]
    report, _ = alone(RoundedMlp(torch.float32, activation=function))
    assert report.left["0"] == f"no operation has a gate of its activation, {name}"


class Normalized(torch.nn.Module):
    def forward(self, rows):
        return torch.nn.functional.normalize(rows, dim=-1)


def test_out_that_is_none_is_no_write():
    assert recognised.graph_of(Normalized(), torch.randn(2, 8)).result.op == "normalize"


def test_a_layer_that_leaves_a_bias_out():
    model = tiny()
    gate = model.model.layers[1].mlp.gate_proj
    model.model.layers[1].mlp.gate_proj = other = WithoutBias(gate.in_features, gate.out_features)
    other.load_state_dict(gate.state_dict() | {"bias": torch.zeros(gate.out_features)})  # no output shows it
    expected = logits_of(model)
    report = lz.kernelize(model)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert (
        "leaves the bias out" in report.left["decoder"] and "leaves the bias out" in report.left["model.layers.1.mlp"]
    )
