"""vLLM's own operations and layers with LayerZero's kernels: against vLLM's native code, in vLLM's real classes."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM 0.25 (its Python files and their dependencies are enough)", allow_module_level=True)

import layerzero as lz  # noqa: E402
from layerzero.integrations import vllm as plugin  # noqa: E402
from layerzero.integrations.vllm import layers, options  # noqa: E402
from vllm import ir  # noqa: E402
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.custom_op import op_registry_oot  # noqa: E402
from vllm.model_executor.layers import activation, linear, rotary_embedding  # noqa: E402
from vllm.v1.sample import sampler  # noqa: E402

plugin.register()


def config(*ops):
    given = {"additional_config": {"layerzero": {"ops": list(ops)}}} if ops else {}
    return VllmConfig(device_config=DeviceConfig(device="cpu"), **given)


def built(make, *ops):
    with set_current_vllm_config(config(*ops)):
        return make()


def test_the_plugin_may_run_again():
    plugin.register()
    assert op_registry_oot["SiluAndMul"] is layers.LayerZeroSiluAndMul
    assert {"RotaryEmbedding", "Llama3RotaryEmbedding", "YaRNScalingRotaryEmbedding"} <= set(op_registry_oot)


@pytest.mark.parametrize("residual", [False, True])
def test_norms_are_providers(residual):
    op = ir.ops.fused_add_rms_norm if residual else ir.ops.rms_norm
    x, weight = torch.randn(5, 64), torch.randn(64)
    arguments = (x, torch.randn(5, 64), weight, 1e-5) if residual else (x, weight, 1e-5)
    with op.set_priority(["layerzero", "native"]):
        got = op(*arguments)
    torch.testing.assert_close(got, op.impls["native"].impl_fn(*arguments))
    assert not op.impls["layerzero"].supports_args(*arguments, 32)  # the variance of a part of the columns


def test_the_option_puts_norms_first():
    priority = config("rms_norm").kernel_config.ir_op_priority
    assert priority.rms_norm[0] == "layerzero" and "layerzero" not in priority.fused_add_rms_norm
    assert "layerzero" not in config().kernel_config.ir_op_priority.rms_norm


@pytest.mark.parametrize("make", [activation.SiluAndMul, activation.GeluAndMul, lambda: activation.GeluAndMul("tanh")])
def test_activations(make):
    name = "gelu_and_mul" if isinstance(built(make), activation.GeluAndMul) else "silu_and_mul"
    ours, theirs = built(make, name), built(make)
    x = torch.randn(4, 64)
    assert ours._forward_method == ours.layerzero_forward != getattr(theirs, "_forward_method", None)
    torch.testing.assert_close(ours(x), theirs.forward_native(x))


@pytest.mark.parametrize("neox", [True, False])
def test_rotary_embeddings(neox):
    def make():
        parameters = {"rope_theta": 10000.0, "rope_type": "default"}
        return rotary_embedding.get_rope(
            64, max_position=128, is_neox_style=neox, rope_parameters=parameters, dtype=torch.float32
        )

    rotary_embedding._ROPE_DICT.clear()
    ours = built(make, "rotary_embedding")
    rotary_embedding._ROPE_DICT.clear()
    query, key, positions = torch.randn(5, 8 * 64), torch.randn(5, 2 * 64), torch.tensor([3, 0, 100, 7, 7])
    got, want = ours(positions, query, key), ours.forward_native(positions, query.clone(), key.clone())
    assert ours._forward_method == ours.layerzero_forward
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
    assert ours(positions, query, None)[1] is None


def test_products():
    layer = torch.nn.Linear(64, 32)
    x = torch.randn(3, 64)
    ours, theirs = built(linear.UnquantizedLinearMethod, "linear"), built(linear.UnquantizedLinearMethod)
    assert ours.own and not theirs.own
    torch.testing.assert_close(ours.apply(layer, x, layer.bias), layer(x))


def test_the_sampler_draws_from_what_is_kept():
    ours = built(sampler.TopKTopPSampler, "sampler")
    assert ours.forward == ours.layerzero_forward
    logits = torch.tensor([[0.0, 5.0, 4.0, 1.0]]).repeat(64, 1)
    both = ours(logits.clone(), {}, torch.full((64,), 2), None)[0]
    assert set(both.tolist()) == {1, 2}
    assert set(ours(logits.clone(), {}, torch.full((64,), 1), torch.full((64,), 0.9))[0].tolist()) == {1}
    seeded = [ours(logits.clone(), {0: torch.Generator().manual_seed(5)}, None, None)[0][0] for _ in range(2)]
    assert seeded[0] == seeded[1]
    processed = built(lambda: sampler.TopKTopPSampler("processed_logits"), "sampler")
    assert processed.forward != processed.layerzero_forward


def test_a_wrong_name_is_an_error():
    with pytest.raises(lz.UnknownNameError, match="layerzero.ops"):
        options.ops_of(type("Config", (), {"additional_config": {"layerzero": {"ops": ["norms"]}}}))
    everything = type("Config", (), {"additional_config": {"layerzero": {"ops": "all"}}})
    assert options.ops_of(everything) == set(options.OPS) and not options.ops_of(None)


def reasons(**changed):
    from layerzero.integrations.vllm.attention import LayerZeroBackend

    given = {
        "head_size": 64, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False,
        "has_sink": False, "use_sparse": False, "use_mm_prefix": False, "use_per_head_quant_scales": False,
        "device_capability": None, "attn_type": "decoder",
    }  # fmt: skip
    return LayerZeroBackend.validate_configuration(**(given | changed))


SERVED = [
    {}, {"has_sink": True}, {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8_e5m2"}, {"kv_cache_dtype": None},
    {"block_size": None}, {"block_size": 64}, {"head_size": 512}, {"dtype": torch.float16}, {"attn_type": "encoder_only"},
]  # fmt: skip
REFUSED = [
    ({"dtype": torch.float32}, "dtype"),
    ({"head_size": 520}, "head_size"),
    ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype"),
    ({"kv_cache_dtype": "fp8_per_token_head"}, "kv_cache_dtype"),
    ({"block_size": 24}, "block_size"),
    ({"use_mla": True}, "MLA"),
    ({"use_sparse": True}, "sparse"),
    ({"use_mm_prefix": True}, "partial multimodal"),
    ({"use_per_head_quant_scales": True}, "per-head"),
    ({"attn_type": "encoder_decoder"}, "encoder_decoder"),
    ({"use_non_causal": True}, "non-causal"),
    ({"use_batch_invariant": True}, "batch invariance"),
]


@pytest.mark.parametrize("changed", SERVED, ids=str)
def test_what_vllm_is_told_to_be_served(changed):
    assert reasons(**changed) == []


@pytest.mark.parametrize(("changed", "reason"), REFUSED, ids=str)
def test_what_vllm_is_told_to_be_refused(changed, reason):
    (found,) = reasons(**changed)
    assert reason in found
