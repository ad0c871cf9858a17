"""Models quantised by others: layers whose layout fits are served with the same bits, the others keep their own code and the
report says why; the rest of the model is replaced."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.integrations import weights  # noqa: E402
from packed_layers import (  # noqa: E402
    AWQLinear,
    EightBitGPTQLinear,
    GPTQLinear,
    OldGPTQLinear,
    PackedWeightLinear,
    SymmetricGPTQLinear,
    quantise,
)
from small_llama import TOLERANCE, error, ids_of, logits_of, plan_of, tiny  # noqa: E402

WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}  # whole groups of 32 and 64
LINEARS, NORMS = 21, 7


def assert_served(model, part):
    """Its quantised layers multiply by LayerZero's operation, as `part` of the report; the model computes what it computed."""
    expected = logits_of(model)
    assert error(expected, logits_of(tiny(**WIDE))) > 1e-3, "nothing was quantised"
    report = lz.kernelize(model)
    served = report.replaced.get(part)
    assert served is not None and served["count"] == LINEARS, report
    assert error(logits_of(model), expected) <= TOLERANCE
    assert served["operation"] == "mlp.linear.quantized" and served["calls"] == LINEARS
    assert not [name for name in report.left if name.endswith("_proj")]
    copied = copy.deepcopy(model)
    assert error(logits_of(copied), expected) <= TOLERANCE
    assert served["calls"] == LINEARS, "a copy's tensors are not those that were read"
    assert lz.unkernelize(model)
    assert torch.equal(logits_of(model), expected)
    return report


def assert_left(model, said, linears=1, rounds=False):
    """The model computes what it computed, its quantised layers are left, and the report names one by `said`.

    `rounds`: the layers round their input too, see `step_of`.
    """
    expected = logits_of(model)
    distance = error(expected, logits_of(tiny(**WIDE)))
    assert distance > 1e-3, "nothing was quantised"
    bound = step_of(model, distance) if rounds else TOLERANCE
    report = lz.kernelize(model)
    assert error(logits_of(model), expected) <= bound
    reasons = [reason for part, reason in report.left.items() if said in reason and part.endswith("_proj")]
    assert len(reasons) == LINEARS, report
    assert report.left["decoder"].startswith("layer 0: ")
    assert report.replaced.get("Linear", {"count": 0})["count"] == linears
    assert report.replaced["attention"]["calls"]
    assert lz.unkernelize(model)
    assert torch.equal(logits_of(model), expected)
    return report


def step_of(model, distance):
    """How far two right results may be apart where activations are rounded to eight bits: as far as the last bit of the
    embeddings moves the logits, or a quarter of `distance`, what quantisation changed."""
    weight = model.model.embed_tokens.weight
    kept, expected, moved = weight.detach().clone(), logits_of(model), []
    with torch.no_grad():
        for seed in range(4):
            last_bit = torch.randint(-1, 2, weight.shape, generator=torch.Generator().manual_seed(seed)) * 2.0**-22
            weight.copy_(kept * (1 + last_bit))
            moved.append(error(logits_of(model), expected))
        weight.copy_(kept)
    step = max(0.25 * distance, *moved)
    assert step < 0.6 * distance, "a wrong result would pass"
    return step


def loaded(folder, quantisation):
    tiny(**WIDE).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=quantisation, dtype=torch.float32, device_map="cpu"
    ).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "kind, format, zeros",
    [
        (GPTQLinear, "uint4", True),
        (OldGPTQLinear, "uint4", True),
        (SymmetricGPTQLinear, "int4", False),
        (EightBitGPTQLinear, "uint8", True),
        (AWQLinear, "uint4", True),
    ],
)
def test_packed_integers_have_the_same_bits(kind, format, zeros, dtype):
    """Against unpacking that shares no code with the package's."""
    layer = kind(torch.nn.Linear(96, 40).to(dtype))
    own = layer.dequantised().t()
    found = [each for each in weights.read(layer).unpack() if torch.equal(each.values(dtype), own)]
    assert [(each.format, each.zeros is not None) for each in found] == [(format, zeros)]
    rows = torch.randn(3, 96, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(found[0].product(rows, layer.bias), layer(rows), rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("kind", [OldGPTQLinear, AWQLinear])
def test_packed_integers_are_served(kind):
    assert_served(quantise(tiny(**WIDE), kind), f"{'AWQ' if kind is AWQLinear else 'GPTQ'} Linear")


def test_packed_integers_of_no_format():
    report = assert_left(quantise(tiny(**WIDE), PackedWeightLinear), "PackedWeightLinear holds")
    assert report.replaced["RMSNorm"]["calls"] == NORMS


def test_written_and_moved_weights_are_not_multiplied_with():
    model = quantise(tiny(**WIDE), GPTQLinear)
    served = lz.kernelize(model).replaced["GPTQ Linear"]
    before = logits_of(model)
    calls, layer = served["calls"], model.model.layers[0].mlp.up_proj
    layer.scales.mul_(2)
    written = logits_of(model)
    assert served["calls"] == 2 * calls - 1, "one layer runs its own code"
    layer.scales.mul_(0.5)
    assert error(written, before) > 1e-3
    layer.qweight = layer.qweight.clone()
    assert error(logits_of(model), before) <= TOLERANCE
    with torch.enable_grad():
        assert logits_of(model).shape == before.shape


def refused(change, kind=GPTQLinear):
    layer = kind(torch.nn.Linear(64, 32))
    change(layer)
    return weights.read(layer)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda layer: layer.g_idx.copy_(layer.g_idx.flip(0)), "desc_act"),
        (lambda layer: setattr(layer, "qweight", layer.qweight.reshape(-1)[:, None]), "is not packed as a GPTQ"),
        (lambda layer: setattr(layer, "scales", layer.scales.double()), "scales are torch.float64"),
        (
            lambda layer: (setattr(layer, "qweight", layer.qweight[:6]), setattr(layer, "qzeros", layer.qzeros[:, :3])),
            "3 bits",
        ),
    ],
)
def test_reasons_of_gptq(change, said):
    assert said in refused(change)


def test_reasons_of_awq():
    assert "is not packed as an AWQ" in refused(lambda layer: setattr(layer, "qzeros", layer.qzeros[:1]), AWQLinear)


def test_a_layer_that_computes_something_else_is_left():
    class Doubled(AWQLinear):
        def forward(self, rows):
            return 2 * super().forward(rows)

    class Broken(AWQLinear):
        def forward(self, rows):
            raise RuntimeError("needs another device")

    holder = torch.nn.ModuleDict(
        {kind.__name__: kind(torch.nn.Linear(64, 32)) for kind in (Doubled, Broken, AWQLinear)}
    )
    report = lz.kernelize(holder)
    assert report.replaced["AWQ Linear"]["count"] == 1
    assert "its own code computes something else" in report.left["Doubled"]
    assert "does not run here" in report.left["Broken"]


def test_packed_layers_put_in_after_kernelize():
    model, reference = tiny(**WIDE), quantise(tiny(**WIDE), GPTQLinear)
    lz.kernelize(model)
    quantise(model, GPTQLinear)
    assert error(logits_of(model), logits_of(reference)) <= TOLERANCE
    assert plan_of(model).why_aside == {"a module was replaced after kernelize": 1}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes(bits, tmp_path):
    pytest.importorskip("bitsandbytes")
    options = {"bnb_4bit_compute_dtype": torch.float32} if bits == 4 else {}
    model = loaded(tmp_path, transformers.BitsAndBytesConfig(**{f"load_in_{bits}bit": True}, **options))
    said = "Params4bit: fp4 codes are places in a table" if bits == 4 else "Int8Params: LLM.int8() rounds"
    report = assert_left(model, said, rounds=bits == 4)
    assert report.replaced["RMSNorm"]["calls"] == NORMS


def compressed(folder, scheme, form):
    """A checkpoint as compressed-tensors writes it, loaded by Transformers."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors import quantization as ct
    from compressed_tensors.compressors import ModelCompressor

    model = tiny(**WIDE)
    group = ct.preset_name_to_scheme(scheme, ["Linear"])
    status = ct.QuantizationStatus
    ct.apply_quantization_config(
        model,
        ct.QuantizationConfig(
            config_groups={"all": group}, ignore=["lm_head"], format=form, quantization_status=status.INITIALIZED
        ),
    )
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            groups = module.weight.detach().reshape(*module.weight_scale.shape, -1)
            module.weight_scale.data.copy_(groups.abs().amax(-1) / (2 ** (group.weights.num_bits - 1) - 1))
            module.quantization_status = status.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme, format", [("W8A16", "int8"), ("W4A16", "int4")])
def test_compressed_tensors(scheme, format, tmp_path):
    """Its linear layers are torch.nn.Linear by class, and have another forward, which is put back."""
    model = compressed(tmp_path, scheme, "pack-quantized")
    layer = model.model.layers[0].mlp.up_proj
    assert type(layer) is torch.nn.Linear and "packed until the model's first call" in weights.read(layer)
    with torch.no_grad():  # torch counts no writes into what is unpacked in inference mode
        model(ids_of())
    own = layer.__dict__["forward"]
    assert_served(model, "compressed-tensors Linear")
    assert layer.__dict__["forward"] == own
    (found,) = weights.read(layer).unpack()
    assert torch.equal(found.values(torch.float32), layer.weight) and found.format == format


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "scheme, format, zeros",
    [("W4A16_ASYM", "int4", True), ("W8A16", "int8", False), ("FP8_DYNAMIC", "fp8_e4m3", False)],
)
def test_compressed_tensors_have_the_same_bits(scheme, format, zeros, dtype):
    """Against the library's own unpacking of what it packed."""
    ct = pytest.importorskip("compressed_tensors.quantization")
    from compressed_tensors.compressors import compress_module, decompress_module

    holder = torch.nn.Sequential(torch.nn.Linear(256, 40).to(dtype))
    group, status = ct.preset_name_to_scheme(scheme, ["Linear"]), ct.QuantizationStatus
    group.input_activations = None
    ct.apply_quantization_config(
        holder, ct.QuantizationConfig(config_groups={"all": group}, quantization_status=status.INITIALIZED)
    )
    layer = holder[0]
    blocks = layer.weight.detach().reshape(*layer.weight_scale.shape, -1)
    most = 448 if format == "fp8_e4m3" else 2 ** (group.weights.num_bits - 1) - 1
    layer.weight_scale.data.copy_(blocks.abs().amax(-1) / most)
    if zeros:
        layer.weight_zero_point.data.copy_(torch.arange(40)[:, None].expand(40, 2) % 5 - 2)
    layer.quantization_status = status.FROZEN
    compress_module(layer)
    decompress_module(layer)
    (found,) = weights.read(layer).unpack()
    assert torch.equal(found.values(dtype), layer.weight)
    assert (found.format, found.zeros is not None) == (format, zeros)
    assert lz.kernelize(holder).replaced["compressed-tensors Linear"]["count"] == 1


@pytest.mark.filterwarnings("ignore")
def test_compressed_tensors_that_round_activations(tmp_path):
    assert_left(compressed(tmp_path, "W8A8", "int-quantized"), "round what is multiplied too", linears=0)


@pytest.mark.filterwarnings("ignore")
def test_compressed_tensors_before_its_first_call(tmp_path):
    """The weights are packed until then; kernelize calls the model itself."""
    model = compressed(tmp_path, "W8A16", "pack-quantized")
    report = lz.kernelize(model)
    actual = logits_of(model)
    reference = compressed(tmp_path, "W8A16", "pack-quantized")
    assert error(actual, logits_of(reference)) <= TOLERANCE
    assert report.replaced["compressed-tensors Linear"]["calls"] == LINEARS


def torchao_config(kind):
    quantisation = pytest.importorskip("torchao.quantization")
    return getattr(quantisation, kind)()


@pytest.mark.filterwarnings("ignore")
def test_torchao(tmp_path):
    """Its linear layers are torch.nn.Linear by class: only their weight is of another type."""
    model = loaded(tmp_path, transformers.TorchAoConfig(torchao_config("Int8WeightOnlyConfig")))
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert_served(model, "torchao Linear")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "name, format",
    [("Int8WeightOnlyConfig", "int8"), ("IntxWeightOnlyConfig", "int4"), ("Float8WeightOnlyConfig", "fp8_e4m3")],
)
def test_torchao_has_the_same_bits(name, format, dtype):
    quantization = pytest.importorskip("torchao.quantization")
    options = {}
    if format == "int4":
        options = {"weight_dtype": torch.int4, "granularity": quantization.PerGroup(32)}
    layer = torch.nn.Sequential(torch.nn.Linear(96, 40).to(dtype))
    quantization.quantize_(layer, getattr(quantization, name)(**options))
    (weight,) = weights.read(layer[0]).unpack()
    assert weight.format == format
    assert torch.equal(weight.values(dtype), layer[0].weight.dequantize())
    report = lz.kernelize(layer)
    assert report.replaced["torchao Linear"]["count"] == 1


@pytest.mark.filterwarnings("ignore")
def test_torchao_that_rounds_activations():
    config = torchao_config("Int8DynamicActivationInt8WeightConfig")
    from torchao.quantization import quantize_

    layer = torch.nn.Sequential(torch.nn.Linear(64, 32))
    quantize_(layer, config)
    assert "round what is multiplied too (act_quant_kwargs)" in lz.kernelize(layer).left["0"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_torchao_after_kernelize(kind, fused):
    config = torchao_config(kind)
    from torchao.quantization import quantize_

    model, reference, plain = tiny(**WIDE), tiny(**WIDE), tiny(**WIDE)
    report = lz.kernelize(model)
    if not fused:
        del model.model.__dict__["forward"]
    for each in (model, reference):
        quantize_(each, config)
    distance = error(logits_of(reference), logits_of(plain))
    bound = TOLERANCE if "WeightOnly" in kind else step_of(reference, distance)
    assert error(logits_of(model), logits_of(reference)) <= bound
    assert report.replaced["Linear"]["calls"] == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("weights, activations", [("qint8", None), ("qfloat8", None), ("qint8", "qint8")])
def test_quanto(weights, activations, frozen):
    """Its linear layers are a subclass; frozen, their weight is of another type; hooks quantise activations."""
    quanto = pytest.importorskip("optimum.quanto")
    model = tiny(**WIDE)
    quanto.quantize(
        model, exclude="lm_head", weights=vars(quanto)[weights], activations=activations and vars(quanto)[activations]
    )
    if frozen:
        quanto.freeze(model)
    if activations:
        said = "has forward or backward hooks"
    else:
        said = "weight is a WeightQBytesTensor" if frozen else "QLinear is not exactly torch.nn.Linear"
    assert_left(model, said, rounds=bool(activations))


@pytest.mark.filterwarnings("ignore")
def test_quanto_after_kernelize():
    quanto = pytest.importorskip("optimum.quanto")
    model, reference, plain = tiny(**WIDE), tiny(**WIDE), logits_of(tiny(**WIDE))
    lz.kernelize(model)
    for each in (model, reference):
        quanto.quantize(each, exclude="lm_head", weights=quanto.qint8)
    expected = logits_of(reference)
    assert error(expected, plain) > 1e-3
    assert error(logits_of(model), expected) <= TOLERANCE
    assert plan_of(model).why_aside == {"a module was replaced after kernelize": 1}


@pytest.mark.filterwarnings("ignore")
def test_dynamic_quantisation_of_torch():
    model = torch.ao.quantization.quantize_dynamic(tiny(**WIDE), {torch.nn.Linear})
    expected = logits_of(model)
    bound = step_of(model, error(expected, logits_of(tiny(**WIDE))))
    report = lz.kernelize(model)
    assert error(logits_of(model), expected) <= bound
    assert "Linear" not in report.replaced and report.replaced["RMSNorm"]["calls"] == NORMS
