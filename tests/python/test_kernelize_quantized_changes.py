"""Layers that others have quantized, and what is done with them: adapters, other forwards, other dtypes, tensors that cannot be read."""

import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from packed_layers import AWQLinear, GPTQLinear  # noqa: E402

KINDS = pytest.mark.parametrize("kind", [GPTQLinear, AWQLinear])


def holding(kind, dtype=torch.float32, bias=True):
    torch.manual_seed(3)
    return torch.nn.ModuleDict({"layer": kind(torch.nn.Linear(64, 32, bias=bias).to(dtype))})


def calls_of(report):
    return sum(part["calls"] for part in report.replaced.values())


@KINDS
def test_rows_of_a_dtype_that_was_never_compared_take_the_layers_own_code(kind):
    holder = holding(kind, bias=False)
    report = lz.kernelize(holder)
    layer, rows = holder["layer"], torch.randn(3, 64)
    with torch.no_grad():
        layer(rows)
        assert calls_of(report) == 1
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.equal(layer(rows.to(dtype)), type(layer).forward(layer, rows.to(dtype)))
    assert calls_of(report) == 1


@KINDS
def test_an_adapter_is_not_left_out_once_it_is_trained(kind):
    class Adapted(kind):
        """An adapter as it begins: it adds nothing yet."""

        def __init__(self, linear):
            super().__init__(linear)
            self.lora_b = torch.nn.Parameter(torch.zeros(32, 64))

        def forward(self, rows):
            return super().forward(rows) + rows @ self.lora_b.T

    class Named(kind):
        adapter = "an object of another library, no module"

    holder = torch.nn.ModuleDict(
        {"parameter": Adapted(torch.nn.Linear(64, 32)), "named": Named(torch.nn.Linear(64, 32))}
    )
    holder["module"] = kind(torch.nn.Linear(64, 32))
    holder["module"].lora_a = torch.nn.Linear(64, 4)
    report = lz.kernelize(holder)
    for name, part in (("parameter", "lora_b"), ("named", "adapter"), ("module", "lora_a")):
        assert report.left[name] == f"has parts that its format does not have: {part}"
    with torch.no_grad():
        holder["parameter"].lora_b.fill_(1)
        rows = torch.randn(3, 64)
        expected = kind.forward(holder["parameter"], rows) + rows.sum(-1, keepdim=True)
        torch.testing.assert_close(holder["parameter"](rows), expected)


@KINDS
def test_a_forward_that_was_replaced_is_kept(kind):
    holder = holding(kind)
    layer, scale = holder["layer"], [1.0]
    mine = layer.forward = types.MethodType(lambda self, rows: scale[0] * type(self).forward(self, rows), layer)
    assert lz.kernelize(holder).left["layer"] == "its forward was replaced by something else"
    scale[0], rows = 2.0, torch.randn(3, 64)
    with torch.no_grad():
        assert torch.equal(layer(rows), 2 * type(layer).forward(layer, rows))
    lz.unkernelize(holder)
    assert layer.__dict__["forward"] is mine


@KINDS
def test_a_layer_that_cannot_be_read_is_left(kind):
    class Unreadable(kind):
        @property
        def scales(self):
            raise RuntimeError("on another server\nmore")

    class Odd(kind):
        pass

    holder = torch.nn.ModuleDict({"odd": Odd(torch.nn.Linear(64, 32)), "good": kind(torch.nn.Linear(64, 32))})
    holder["odd"].scales = holder["odd"].scales[0]  # one axis, where `read` takes two
    holder["gone"] = kind(torch.nn.Linear(64, 32))
    holder["gone"].__class__ = Unreadable
    report = lz.kernelize(holder)
    assert report.replaced[f"{kind.__name__.removesuffix('Linear')} Linear"]["count"] == 1
    assert "Odd: its weight could not be read" in report.left["odd"]
    assert report.left["gone"] == "Unreadable: its weight could not be read: on another server"


@KINDS
def test_unkernelize_takes_back_only_its_own_forward(kind):
    holder = holding(kind)
    layer, rows = holder["layer"], torch.randn(3, 64)
    lz.kernelize(holder)
    ours = layer.__dict__["forward"]
    later = layer.forward = lambda x: ours(x) + 1
    assert lz.unkernelize(holder)
    assert layer.__dict__["forward"] is later
    with torch.no_grad():
        assert torch.equal(layer(rows), type(layer).forward(layer, rows) + 1)


@pytest.mark.filterwarnings("ignore")
def test_unkernelize_keeps_a_forward_that_was_set_over_a_librarys():
    """compressed-tensors gives layers a forward of its own, which the later one goes on to call."""
    compressed = pytest.importorskip("compressed_tensors.quantization")
    from compressed_tensors.compressors import compress_module, decompress_module

    holder = torch.nn.Sequential(torch.nn.Linear(256, 40))
    group, status = compressed.preset_name_to_scheme("W8A16", ["Linear"]), compressed.QuantizationStatus
    config = compressed.QuantizationConfig(config_groups={"all": group}, quantization_status=status.INITIALIZED)
    compressed.apply_quantization_config(holder, config)
    (layer,) = holder
    layer.weight_scale.data.copy_(layer.weight.detach().reshape(*layer.weight_scale.shape, -1).abs().amax(-1) / 127)
    layer.quantization_status = status.FROZEN
    compress_module(layer)
    decompress_module(layer)
    theirs = layer.__dict__["forward"]
    assert lz.kernelize(holder).replaced["compressed-tensors Linear"]["count"] == 1
    ours, rows, reached = layer.__dict__["forward"], torch.randn(2, 256), []
    later = layer.forward = lambda x: (reached.append(1), ours(x))[1]
    lz.unkernelize(holder)
    assert layer.__dict__["forward"] is later
    with torch.no_grad():
        assert torch.equal(layer(rows), theirs(rows)) and reached


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_torchao_without_a_bias(name, dtype):
    """Scales of FP8 weights are float32 whatever the weight's dtype is."""
    quantization = pytest.importorskip("torchao.quantization")
    layer = torch.nn.Sequential(torch.nn.Linear(96, 40, bias=False).to(dtype))
    quantization.quantize_(layer, getattr(quantization, name)())
    rows = torch.randn(3, 96, dtype=dtype)
    with torch.no_grad():
        expected = layer(rows)
        report = lz.kernelize(layer)
        assert report.replaced["torchao Linear"]["count"] == 1, report
        torch.testing.assert_close(layer(rows), expected, rtol=3e-2, atol=3e-2)
    assert calls_of(report) == 1
