"""Writes tests/python/support/ENGINE_signatures.json: the signatures of a serving engine that its plugin overrides or calls.

    python scripts/engine_signatures.py vllm FOLDER 0.25.0     # .../site-packages/vllm; the wheel unpacked is enough
    python scripts/engine_signatures.py sglang FOLDER 0.5.23   # keeps the other versions

Sources are parsed, not imported, so that neither a GPU nor the engine's dependencies are needed.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent.parent / "tests/python/support"
# module: names of functions, classes ("Class" records its fields and members, "Class()" what its __init__ sets), methods,
# and other names, of which it records that they exist.
VLLM = {
    "v1/attention/backend.py": """
        AttentionBackend.get_name AttentionBackend.get_impl_cls AttentionBackend.get_builder_cls
        AttentionBackend.get_kv_cache_shape AttentionBackend.get_kv_cache_stride_order
        AttentionBackend.get_supported_kernel_block_sizes AttentionBackend.get_supported_head_sizes
        AttentionBackend.supports_head_size AttentionBackend.supports_sink AttentionBackend.supports_attn_type
        AttentionBackend.supports_combination AttentionImpl.__init__ AttentionImpl.forward
        AttentionMetadataBuilder.__init__ AttentionMetadataBuilder.build
        AttentionMetadataBuilder.build_for_cudagraph_capture AttentionMetadataBuilder.update_block_table
        AttentionMetadataBuilder.use_cascade_attention AttentionMetadataBuilder._init_reorder_batch_threshold
        MLAAttentionImpl.forward_mqa CommonAttentionMetadata AttentionCGSupport""",
    "v1/attention/backends/flash_attn.py": "FlashAttentionImpl.__init__ FlashAttentionImpl.do_kv_cache_update",
    "v1/attention/backends/registry.py": "register_backend AttentionBackendEnum",
    "v1/attention/backends/utils.py": "split_decodes_and_prefills get_kv_cache_layout",
    "model_executor/layers/attention/mla_attention.py": """
        MLACommonMetadataBuilder._build_decode MLACommonDecodeMetadata""",
    "ir/ops/layernorm.py": "rms_norm fused_add_rms_norm",
    "config/kernel.py": "KernelConfig.set_platform_defaults",
    "model_executor/custom_op.py": "CustomOp.register_oot",
    "model_executor/layers/activation.py": "SiluAndMul.forward_cuda GeluAndMul.forward_cuda",
    "model_executor/layers/linear.py": "UnquantizedLinearMethod.apply",
    "model_executor/layers/vocab_parallel_embedding.py": "UnquantizedEmbeddingMethod.apply",
    "model_executor/layers/rotary_embedding/base.py": "RotaryEmbedding.forward_cuda",
    "v1/sample/ops/topk_topp_sampler.py": "TopKTopPSampler.__init__ TopKTopPSampler.forward_native",
    "v1/sample/sampler.py": "TopKTopPSampler",
    "v1/worker/gpu/model_runner.py": "Sampler",
    "v1/worker/gpu/sample/sampler.py": """
        Sampler.__init__ Sampler.sample Sampler.apply_sampling_params Sampler()""",
    "v1/worker/gpu/sample/states.py": """
        SamplingStates.get_top_k_top_p SamplingStates.any_explicit_seed SamplingStates()""",
}
SGLANG = {
    "srt/layers/attention/base_attn_backend.py": """
        AttentionBackend.init_forward_metadata AttentionBackend.init_forward_metadata_out_graph
        AttentionBackend.init_cuda_graph_state AttentionBackend.get_cuda_graph_seq_len_fill_value
        AttentionBackend.forward AttentionBackend.forward_decode AttentionBackend.forward_extend""",
    "srt/layers/attention/attention_registry.py": "register_attention_backend ATTENTION_BACKENDS",
    "srt/layers/radix_attention.py": "RadixAttention() AttentionType",
    "srt/layers/sampler.py": """
        Sampler.forward Sampler._sample_from_probs Sampler._preprocess_logits Sampler._sync_token_ids_across_tp Sampler()
        register_sampler_backend _CUSTOM_SAMPLER_FACTORIES top_k_top_p_min_p_sampling_from_probs_torch""",
    "srt/mem_cache/memory_pool.py": """
        KVWriteLoc MHATokenToKVPool.set_kv_buffer MHATokenToKVPool.get_kv_buffer MLATokenToKVPool.set_kv_buffer
        MLATokenToKVPool.set_mla_kv_buffer MLATokenToKVPool.get_key_buffer""",
    "srt/mem_cache/swa_memory_pool.py": "SWAKVPool.set_kv_buffer SWAKVPool.translate_loc_from_full_to_swa",
    "srt/model_executor/forward_batch_info.py": "ForwardMode ForwardBatch",
    "srt/model_executor/forward_batch_deepseek_mha_mixin.py": "ForwardBatchDeepSeekMHAMixin",
    "srt/models/deepseek_common/attention_backend_handler.py": """
        AttentionBackendRegistry.register is_in_tc_piecewise_cuda_graph is_in_breakable_cuda_graph""",
    "srt/models/deepseek_common/attention_forward_methods/forward_methods.py": "AttnForwardMethod",
    "srt/sampling/sampling_batch_info.py": "SamplingBatchInfo",
    "srt/server_args.py": "add_attention_backend_choices ATTENTION_BACKEND_CHOICES SAMPLING_BACKEND_CHOICES",
    "srt/plugins/__init__.py": "load_plugins GENERAL_PLUGINS_GROUP",
}
WANTED = {"vllm": VLLM, "sglang": SGLANG}


def parameters(function: ast.FunctionDef) -> list[str]:
    """Names in order; "name?" has a default, "*name" and "**name" collect."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = len(plain) - len(given.defaults)
    names = [arg.arg + ("?" if i >= defaults else "") for i, arg in enumerate(plain) if arg.arg not in ("self", "cls")]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    names += [arg.arg + ("?" if default is not None else "") for arg, default in pairs]
    return names + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


def members(found: ast.ClassDef) -> list[str]:
    """Fields with annotations and members with values, in order; "name?" has a value."""
    names = []
    for one in found.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            names.append(one.target.id + ("?" if one.value is not None else ""))
        elif isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            names.append(one.targets[0].id + "?")
    return names


def attributes(function: ast.FunctionDef) -> list[str]:
    """What a method sets of its object, in order."""
    targets = [t for one in ast.walk(function) if isinstance(one, ast.Assign) for t in one.targets]
    targets += [one.target for one in ast.walk(function) if isinstance(one, ast.AnnAssign)]
    owned = [
        t for t in targets if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "self"
    ]
    return list(dict.fromkeys(one.attr for one in owned))


def named(body: list[ast.stmt], name: str) -> Any:
    """The definition of a name; None for one that is assigned or imported. Raises StopIteration if there is none."""
    for one in body:
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and one.name == name:
            return one
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        names += [a.asname or a.name for a in one.names] if isinstance(one, ast.ImportFrom) else []
        if name in names:
            return None
    raise StopIteration(name)


def recorded(engine: str, folder: Path) -> dict[str, list[str]]:
    found = {}
    for path, names in WANTED[engine].items():
        tree = ast.parse((folder / path).read_text())
        module = f"{engine}." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names.split():
            one: Any = tree
            for part in name.removesuffix("()").split("."):
                one = named(one.body, part)
            if one is None:
                found[f"{module}:{name}"] = ["*"]
            elif name.endswith("()"):
                found[f"{module}:{name}"] = attributes(named(one.body, "__init__"))
            else:
                found[f"{module}:{name}"] = members(one) if isinstance(one, ast.ClassDef) else parameters(one)
    return found


def text_of(kept: dict[str, dict[str, list[str]]]) -> str:
    """JSON with a line for each signature."""
    versions = []
    for version, signatures in kept.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(names)}" for name, names in signatures.items())
        versions.append(f" {json.dumps(version)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(versions) + "\n}\n"


def main() -> int:
    engine, folder, version = sys.argv[1:4]
    out = OUT / f"{engine}_signatures.json"
    kept = json.loads(out.read_text()) if out.exists() else {}
    kept[version] = recorded(engine, Path(folder))
    out.write_text(text_of(kept))
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
