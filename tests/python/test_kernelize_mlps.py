"""Gated MLPs whose gate and up are one projection, and the parts of an MLP that the operation does not call."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import structure  # noqa: E402
from layerzero.models.families import FAMILIES, first_output  # noqa: E402
from small_llama import TOLERANCE, error, logits_of, tiny  # noqa: E402
from torch import nn  # noqa: E402

BY_NAME = {family.name: family for family in FAMILIES}


class Packed(nn.Module):
    def __init__(self, function=None, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out = nn.Linear(64, 256), nn.Linear(128, 64)
        self.function, self.dropout = function or nn.SiLU(), nn.Dropout(dropout)

    def forward(self, x):
        gate, up = self.into(x).chunk(2, dim=-1)
        return self.out(self.dropout(self.function(gate) * up))


class UpFirst(Packed):
    def forward(self, x):
        up, gate = self.into(x).chunk(2, dim=-1)
        return self.out(self.function(gate) * up)


class Interleaved(Packed):
    def forward(self, x):
        rows = self.into(x)
        return self.out(self.function(rows[..., ::2]) * rows[..., 1::2])


class Clamped(Packed):
    def forward(self, x):
        gate, up = self.into(x).chunk(2, dim=-1)
        return self.out(self.function(gate).clamp(max=7) * up)


class Plain(nn.Module):
    """The widths of a gated MLP without a gate."""

    def __init__(self):
        super().__init__()
        self.into, self.out, self.function = nn.Linear(64, 256), nn.Linear(128, 64), nn.SiLU()

    def forward(self, x):
        return self.out(self.function(self.into(x))[..., :128])


def rows():
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "function, operation",
    [
        (nn.SiLU(), "activation.silu_and_mul"),
        (nn.GELU(), "activation.gated"),
        (nn.GELU(approximate="tanh"), "activation.gated"),
    ],
    ids=["silu", "gelu", "gelu_tanh"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed(function, operation, dtype):
    model = nn.Sequential(Packed(function)).to(dtype).eval()
    with torch.inference_mode():
        expected = model(rows().to(dtype))
        report = lz.kernelize(model)
        assert error(model(rows().to(dtype)), expected) <= (TOLERANCE if dtype == torch.float32 else 2e-2)
    called = {entry["operation"]: entry["calls"] for entry in report.replaced.values()}
    assert called == {operation: 1, "mlp.linear": 2}


@pytest.mark.parametrize("kind", [UpFirst, Interleaved, Clamped, Plain])
def test_packed_in_another_way_is_left(kind):
    model = nn.Sequential(kind()).eval()
    with torch.inference_mode():
        expected = model(rows())
        report = lz.kernelize(model)
        assert error(model(rows()), expected) <= TOLERANCE
    assert "0" in report.left and set(report.replaced) == {"Linear"}


def test_dropouts_of_training_are_drawn():
    model = nn.Sequential(Packed(dropout=0.5)).eval()
    report = lz.kernelize(model)
    model.train()
    with torch.no_grad():
        torch.manual_seed(3)
        actual = model(rows())
        lz.unkernelize(model)
        torch.manual_seed(3)
        assert error(actual, model(rows())) <= TOLERANCE
    assert report.replaced["packed MLP"]["calls"] == 0


def test_kernelize_leaves_each_part_in_its_mode():
    model = nn.Sequential(Packed(dropout=0.5)).train()
    model[0].out.eval()
    before = [part.training for part in model.modules()]
    lz.kernelize(model)
    assert [part.training for part in model.modules()] == before


def test_a_packed_mlp_within_a_program():
    config = transformers.GlmConfig(
        vocab_size=131, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, partial_rotary_factor=1.0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GlmForCausalLM(config).eval()
    expected = logits_of(model)
    report = lz.kernelize(model)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert report.replaced["decoder"]["calls"] == 1 and report.replaced["packed MLP"]["count"] == 2


def doubled(module, arguments, result):
    return result * 2


def changes(name):
    """What a user may do to a part of an MLP after kernelize."""

    def swapped(mlp):
        setattr(mlp, name, nn.ReLU())

    def other_forward(mlp):
        part = mlp._modules[name]
        part.forward = lambda x: type(part).forward(part, x) * 2

    return {
        "hook": lambda mlp: mlp._modules[name].register_forward_hook(doubled),
        "pre-hook": lambda mlp: mlp._modules[name].register_forward_pre_hook(lambda _, args: (args[0] * 2,)),
        "forward": other_forward,
        "swapped": swapped,
    }


@pytest.mark.parametrize("kind", changes(""))
@pytest.mark.parametrize(
    "family, name", [("llama", "act_fn"), ("mistral", "act_fn"), ("phi3", "activation_fn"), ("modernbert", "drop")]
)
def test_a_changed_part_is_honoured(family, name, kind):
    family = BY_NAME[family]
    model, reference = family.build(), family.build()
    lz.kernelize(model)
    for each in (model, reference):
        first_output(each, family.example())
        for module in each.modules():
            if structure.looks_like_mlp(module):
                changes(name)[kind](module)
    expected = first_output(reference, family.example())
    assert error(expected, first_output(family.build(), family.example())) > 10 * TOLERANCE, "nothing was changed"
    assert error(first_output(model, family.example()), expected) <= TOLERANCE


def test_rows_by_name():
    model = tiny()
    mlp = model.model.layers[0].mlp
    given = torch.randn(2, 96)
    with torch.inference_mode():
        expected = mlp(x=given)
        lz.kernelize(model)
        assert error(mlp(x=given), expected) <= TOLERANCE
