"""Writes tests/python/support/vllm_signatures.json: the signatures of vLLM that LayerZero's plugin overrides or calls.

    python scripts/vllm_signatures.py FOLDER_OF_VLLM [VERSION]    # .../site-packages/vllm; the wheel unpacked is enough

Sources are parsed, not imported, so that neither a GPU nor vLLM's dependencies are needed.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent.parent / "tests/python/support/vllm_signatures.json"
# module: names of functions, classes ("Class" records its fields and members), or methods.
WANTED = {
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
}


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


def named(body: list[ast.stmt], name: str) -> Any:
    return next(one for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and one.name == name)


def recorded(folder: Path) -> dict[str, list[str]]:
    found = {}
    for path, names in WANTED.items():
        tree = ast.parse((folder / path).read_text())
        module = "vllm." + path.removesuffix(".py").replace("/", ".")
        for name in names.split():
            one = tree.body
            for part in name.split("."):
                definition = named(one, part)
                one = definition.body
            is_class = isinstance(definition, ast.ClassDef)
            found[f"{module}:{name}"] = members(definition) if is_class else parameters(definition)
    return found


def main() -> int:
    version = sys.argv[2] if len(sys.argv) > 2 else "0.25.0"
    OUT.write_text(json.dumps({"vllm": version, "signatures": recorded(Path(sys.argv[1]))}, indent=1) + "\n")
    print(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
