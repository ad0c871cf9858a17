"""LayerZero's classes for SGLang take what SGLang passes: compared with its recorded signatures, without importing either."""

import ast
import importlib.metadata
import importlib.util
import json
from pathlib import Path

import pytest
from engine_calls import ROOT, body, fields_read, recorder, takes

SUPPORT = Path(__file__).parent / "support"
RECORDS = json.loads((SUPPORT / "sglang_signatures.json").read_text())
OURS = ROOT / "python/layerzero/integrations/sglang"
BACKEND = "sglang.srt.layers.attention.base_attn_backend:AttentionBackend."
SAMPLER = "sglang.srt.layers.sampler:Sampler."
CLASSES = {
    "StepBackend": ("backend.py", BACKEND, 4),
    "LayerZeroBackend": ("attention.py", BACKEND, 2),
    "LayerZeroMLABackend": ("latent.py", BACKEND, 5),
    "LayerZeroSampler": ("sampling.py", SAMPLER, 2),
}


@pytest.fixture(params=RECORDS)
def record(request):
    return RECORDS[request.param]


@pytest.mark.parametrize("name", CLASSES)
def test_our_methods_take_what_sglang_passes(record, name):
    file, base, count = CLASSES[name]
    compared = 0
    for method in body(OURS / file, name):
        if isinstance(method, ast.FunctionDef) and (theirs := record.get(base + method.name)) is not None:
            compared += 1
            own = recorder().parameters(method)
            # **kwargs takes what SGLang passes by name alone, as `logprob_logits`.
            named = (
                bool(own)
                and own[-1].startswith("**")
                and all(p.endswith("?") for p in theirs[len(own) - 1 :] if p[0] != "*")
            )
            assert takes(own, theirs) or (named and takes(own, theirs[: len(own) - 1])), (method.name, own, theirs)
    assert compared == count


def test_fields_of_a_batch_exist(record):
    mixin = "sglang.srt.model_executor.forward_batch_deepseek_mha_mixin:ForwardBatchDeepSeekMHAMixin"
    known = record["sglang.srt.model_executor.forward_batch_info:ForwardBatch"] + record[mixin]
    known = {name.rstrip("?") for name in known}
    for file in ("metadata.py", "backend.py", "attention.py", "latent.py"):
        assert fields_read(OURS / file, ("batch", "forward_batch")) <= known, file
    assert "extend_prefix_lens_cpu" in fields_read(OURS / "metadata.py", ("batch",))


def test_fields_of_a_layer_exist(record):
    known = set(record["sglang.srt.layers.radix_attention:RadixAttention()"])
    read = fields_read(OURS / "attention.py", ("layer",)) | fields_read(OURS / "latent.py", ("layer",))
    assert read <= known and "sliding_window_size" in read
    given = set(RECORDS["0.5.15"]["sglang.srt.layers.radix_attention:RadixAttention()"])
    step = ast.parse((SUPPORT / "sglang_step.py").read_text())
    keys = [
        k.value
        for one in ast.walk(recorder().named(step.body, "layer_of"))
        if isinstance(one, ast.Dict)
        for k in one.keys
    ]
    assert set(filter(None, keys)) <= given


def test_fields_of_sampling_exist(record):
    known = {name.rstrip("?") for name in record["sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo"]}
    read = fields_read(OURS / "sampling.py", ("sampling_info", "info"))
    masks = {"sampling_mask_batch_indices", "max_top_k"}  # of later releases; without the first nobody reads the second
    assert read - masks <= known and "top_ks" in read


def test_modes_and_kinds_exist(record):
    modes = {name.rstrip("?") for name in record["sglang.srt.model_executor.forward_batch_info:ForwardMode"]}
    ours = next(
        one.value for one in ast.parse((OURS / "backend.py").read_text()).body
        if isinstance(one, ast.Assign) and one.targets[0].id == "_MODES"
    )  # fmt: skip
    assert set(ast.literal_eval(ours)) | {"TARGET_VERIFY"} <= modes
    methods = {
        name.rstrip("?")
        for name in record[
            "sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods:AttnForwardMethod"
        ]
    }
    assert fields_read(OURS / "latent.py", ("methods",)) <= methods


def test_pools_take_what_we_write(record):
    pools = "sglang.srt.mem_cache.memory_pool:"
    assert record[f"{pools}KVWriteLoc"][:2] == ["loc", "swa_loc?"]
    for name in (
        f"{pools}MHATokenToKVPool.set_kv_buffer",
        "sglang.srt.mem_cache.swa_memory_pool:SWAKVPool.set_kv_buffer",
    ):
        assert record[name][:6] == ["layer", "loc_info", "cache_k", "cache_v", "k_scale?", "v_scale?"], name
    assert record[f"{pools}MLATokenToKVPool.set_kv_buffer"][:4] == ["layer", "loc_info", "cache_k", "cache_v"]
    assert record[f"{pools}MLATokenToKVPool.set_mla_kv_buffer"][2:4] == ["cache_k_nope", "cache_k_rope"]
    assert record["sglang.srt.mem_cache.swa_memory_pool:SWAKVPool.translate_loc_from_full_to_swa"] == ["kv_indices"]


@pytest.mark.parametrize(
    "name", ["register_attention_backend", "register_sampler_backend", "KVWriteLoc", "Sampler._sample_from_probs"]
)
def test_stand_ins_are_sglang_s(record, name):
    (theirs,) = (value for key, value in record.items() if key.partition(":")[2] == name)
    one = ast.parse((SUPPORT / "sglang_stand_in.py").read_text())
    for part in name.split("."):
        one = recorder().named(one.body, part)
    own = recorder().members(one) if isinstance(one, ast.ClassDef) else recorder().parameters(one)
    assert own == theirs[: len(own)] and own


def test_the_record_is_the_installed_sglang():
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SGLang is not installed; its signatures are those that scripts/engine_signatures.py recorded")
    version = importlib.metadata.version("sglang")
    if version not in RECORDS:
        pytest.skip(f"SGLang {version} is none of the recorded versions: {', '.join(RECORDS)}")
    assert recorder().recorded("sglang", Path(spec.submodule_search_locations[0])) == RECORDS[version]
