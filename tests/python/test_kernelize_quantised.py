"""Models quantised by others keep their layers' own code, and the report says so; the rest of the model is replaced."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from packed_layers import AWQLinear, GPTQLinear, PackedWeightLinear, quantise  # noqa: E402
from small_llama import TOLERANCE, error, logits_of, plan_of, tiny  # noqa: E402

WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}  # whole groups of 32 and 64
LINEARS, NORMS = 21, 7


def assert_served(model, said, linears=1, rounds=False):
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


@pytest.mark.parametrize("kind", [GPTQLinear, AWQLinear, PackedWeightLinear])
def test_packed_integers(kind):
    report = assert_served(quantise(tiny(**WIDE), kind), f"{kind.__name__} holds")
    assert report.replaced["RMSNorm"]["calls"] == NORMS


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
    report = assert_served(model, "Params4bit" if bits == 4 else "Int8Params", rounds=bits == 4)
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
            module.weight_scale.data.copy_(groups.abs().amax(-1) / 127)
            module.quantization_status = status.FROZEN
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme, form", [("W8A16", "pack-quantized"), ("W8A8", "int-quantized")])
def test_compressed_tensors(scheme, form, tmp_path):
    """Its linear layers are torch.nn.Linear by class, and have another forward, which rounds activations too (A8)."""
    model = compressed(tmp_path, scheme, form)
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert_served(model, "its forward was replaced by something else", linears=0)


@pytest.mark.filterwarnings("ignore")
def test_compressed_tensors_before_its_first_call(tmp_path):
    """The weights are packed until then, so that there is nothing else to see than the forward."""
    model, reference = compressed(tmp_path, "W8A16", "pack-quantized"), None
    report = lz.kernelize(model)
    actual = logits_of(model)
    reference = compressed(tmp_path, "W8A16", "pack-quantized")
    assert error(actual, logits_of(reference)) <= TOLERANCE
    assert "Linear" in report.replaced and report.replaced["Linear"]["count"] == 1  # the head


def torchao_config(kind):
    quantisation = pytest.importorskip("torchao.quantization")
    return getattr(quantisation, kind)()


@pytest.mark.filterwarnings("ignore")
def test_torchao(tmp_path):
    """Its linear layers are torch.nn.Linear by class: only their weight is of another type."""
    model = loaded(tmp_path, transformers.TorchAoConfig(torchao_config("Int8WeightOnlyConfig")))
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    report = assert_served(model, "Int8Tensor")
    assert report.replaced["RMSNorm"]["calls"] == NORMS


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
    assert_served(model, said, rounds=bool(activations))


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
