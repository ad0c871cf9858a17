"""LayerZero's classes for vLLM take what vLLM 0.25 passes: compared with its recorded signatures, without importing either."""

import ast
import importlib.util
import json
from pathlib import Path

import pytest
from engine_calls import body, fields_read, recorder, takes

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent / "support"
(RECORD,) = json.loads((SUPPORT / "vllm_signatures.json").read_text()).values()  # of one version
OURS = ROOT / "python/layerzero/integrations/vllm"
BACKEND, MLA = "vllm.v1.attention.backend:", "vllm.model_executor.layers.attention.mla_attention:"
FLASH = "vllm.v1.attention.backends.flash_attn:FlashAttentionImpl."
# Our class: (its file, vLLM's classes whose methods it overrides).
CLASSES = {
    "LayerZeroBackend": ("attention.py", [f"{BACKEND}AttentionBackend."]),
    "LayerZeroImpl": ("attention.py", [f"{BACKEND}AttentionImpl.", FLASH]),
    "LayerZeroMetadataBuilder": ("metadata.py", [f"{BACKEND}AttentionMetadataBuilder."]),
    "LayerZeroMLABackend": ("latent.py", [f"{BACKEND}AttentionBackend."]),
    "LayerZeroMLABuilder": ("latent.py", [f"{BACKEND}AttentionMetadataBuilder.", f"{MLA}MLACommonMetadataBuilder."]),
    "LayerZeroMLAImpl": ("latent.py", [f"{BACKEND}MLAAttentionImpl."]),
    "LayerZeroLinearMethod": ("layers.py", ["vllm.model_executor.layers.linear:UnquantizedLinearMethod."]),
    "LayerZeroEmbeddingMethod": (
        "layers.py",
        ["vllm.model_executor.layers.vocab_parallel_embedding:UnquantizedEmbeddingMethod."],
    ),
    "LayerZeroSampler": ("sampling.py", ["vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler."]),
}
RUNNER = "vllm.v1.worker.gpu.sample."
# Our class and its method: (its file, vLLM's method whose calls it gets).
RENAMED = {
    "LayerZeroSiluAndMul layerzero_forward": (
        "layers.py", "vllm.model_executor.layers.activation:SiluAndMul.forward_cuda"
    ),
    "LayerZeroGeluAndMul layerzero_forward": (
        "layers.py", "vllm.model_executor.layers.activation:GeluAndMul.forward_cuda"
    ),
    "_Rotary layerzero_forward": (
        "layers.py", "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding.forward_cuda"
    ),
    "LayerZeroSampler layerzero_forward": (
        "sampling.py", "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_native"
    ),
    "newer LayerZeroRunnerSampler sample": ("sampling.py", f"{RUNNER}sampler:Sampler.sample"),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_our_methods_take_what_vllm_passes(name):
    file, bases = CLASSES[name]
    compared = 0
    for method in body(OURS / file, name):
        if not isinstance(method, ast.FunctionDef):
            continue
        for base in bases:
            if (theirs := RECORD.get(base + method.name)) is not None:
                compared += 1
                own = recorder().parameters(method)
                assert takes(own, theirs), (method.name, own, theirs)
    assert compared


@pytest.mark.parametrize("name", RENAMED)
def test_our_forwards_take_what_vllms_take(name):
    file, theirs = RENAMED[name]
    one = ast.parse((OURS / file).read_text())
    for part in name.split():
        one = recorder().named(one.body, part)
    assert takes(recorder().parameters(one), RECORD[theirs])


def test_what_our_sampler_reads_of_vllms_is_there():
    """By the newer runner's names: the attributes of its sampler and of its states, and its own method that ours calls."""
    assert {"sampling_states", "logprobs_mode", "use_fp64_gumbel"} <= set(RECORD[f"{RUNNER}sampler:Sampler()"])
    assert {"temperature", "top_k", "top_p", "seeds"} <= set(RECORD[f"{RUNNER}states:SamplingStates()"])
    assert fields_read(OURS / "sampling.py", {"states"}) == {
        "temperature", "top_k", "seeds", "get_top_k_top_p", "any_explicit_seed"
    }  # fmt: skip
    six = RECORD[f"{RUNNER}sampler:Sampler.sample"][:6]
    assert RECORD[f"{RUNNER}sampler:Sampler.apply_sampling_params"] == [*six, "skip_top_k_top_p?"]
    assert RECORD[f"{RUNNER}states:SamplingStates.get_top_k_top_p"] == [six[1], six[2]]
    assert RECORD[f"{RUNNER}states:SamplingStates.any_explicit_seed"] == [six[2]]


@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm"])
def test_our_norms_have_vllms_schema(name):
    function = recorder().named(ast.parse((OURS / "norms.py").read_text()).body, name)
    assert recorder().parameters(function) == RECORD[f"vllm.ir.ops.layernorm:{name}"]


def test_stand_ins_are_vllms():
    path = SUPPORT / "vllm_stand_in.py"
    fields = recorder().members(recorder().named(ast.parse(path.read_text()).body, "CommonAttentionMetadata"))
    theirs = RECORD[f"{BACKEND}CommonAttentionMetadata"]
    assert {f.rstrip("?") for f in fields} <= {f.rstrip("?") for f in theirs}
    needed = [f for f in theirs if not f.endswith("?")]
    assert fields[: len(needed)] == needed
    for module, name in (("registry", "register_backend"), ("utils", "split_decodes_and_prefills")):
        own = recorder().parameters(recorder().named(ast.parse(path.read_text()).body, name))
        assert own == RECORD[f"vllm.v1.attention.backends.{module}:{name}"][: len(own)]


def test_the_record_is_the_installed_vllm():
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        pytest.skip("vLLM is not installed; its signatures are those that scripts/engine_signatures.py recorded")
    assert recorder().recorded("vllm", Path(spec.submodule_search_locations[0])) == RECORD


def test_a_call_that_does_not_fit_is_noticed():
    assert takes(["a", "b?"], ["a"]) and takes(["a", "*args", "**kwargs"], ["a", "b", "c?"])
    assert not takes(["a"], ["a", "b"]) and not takes(["b"], ["a"]) and not takes(["a", "b"], ["a", "b?"])
    assert not takes(["a", "b"], ["a"])
