"""Layers that other libraries have quantized, on the device: kernels serve them, and the model computes what it computed."""

import copy

import layerzero as lz
import pytest
import torch

pytest.importorskip("transformers")

from layerzero.integrations import weights  # noqa: E402
from packed_layers import AWQLinear, EightBitGPTQLinear, GPTQLinear, SymmetricGPTQLinear, quantise  # noqa: E402
from small_llama import ids_of, logits_of, tiny  # noqa: E402

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "head_dim": 64,
    "initializer_range": 0.1,
}
KINDS = {
    GPTQLinear: "GPTQ Linear",
    SymmetricGPTQLinear: "GPTQ Linear",
    EightBitGPTQLinear: "GPTQ Linear",
    AWQLinear: "AWQ Linear",
}
DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_products_of_few_and_many_rows(kind, dtype):
    layer = kind(torch.nn.Linear(512, 384).to(dtype)).to("cuda")
    own = layer.dequantised()
    found = [each for each in weights.read(layer).unpack() if torch.equal(each.values(dtype), own.t())]
    assert len(found) == 1
    for count in (1, 3, 16, 64):
        rows = torch.randn(count, 512, device="cuda", dtype=dtype)
        want = rows.double() @ own.double() + layer.bias.double()
        got = found[0].product(rows, layer.bias)
        assert (got.double() - want).norm() <= 1e-2 * want.norm(), count
        given = rows, found[0].codes, found[0].scales, found[0].format, layer.bias
        report = lz.explain("linear_quantized", *given, zero_point=found[0].zeros)
        assert not report.kernel_id.startswith("torch.ref."), str(report)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_served_and_goes_back(kind, dtype):
    model = quantise(tiny(dtype, **SIZES), kind).to("cuda")
    ids = ids_of().cuda()
    with torch.inference_mode():
        exact = copy.deepcopy(model).double()(ids).logits
    before = logits_of(model, ids)
    report = lz.kernelize(model)
    served = report.replaced.get(KINDS[kind])
    assert served is not None and served["count"] == 21, report
    after = logits_of(model, ids)
    assert served["calls"] == 21
    own, ours = ((logits.double() - exact).norm() / exact.norm() for logits in (before, after))
    assert ours <= max(1.5 * own, 1e-3), (ours, own)
    tokens = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert tokens.shape == (2, ids.shape[1] + 8) and served["calls"] == 21 * 9
    assert lz.unkernelize(model)
    assert torch.equal(logits_of(model, ids), before)


def test_written_weights_are_multiplied_by_their_own_code():
    model = quantise(tiny(torch.bfloat16, **SIZES), GPTQLinear).to("cuda")
    ids = ids_of().cuda()
    served = lz.kernelize(model).replaced["GPTQ Linear"]
    before = logits_of(model, ids)
    calls = served["calls"]
    model.model.layers[0].mlp.up_proj.scales.mul_(2)
    after = logits_of(model, ids)
    assert served["calls"] == 2 * calls - 1
    assert (after - before).norm() > 1e-3 * before.norm()
