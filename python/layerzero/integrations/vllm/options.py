"""The option of an engine that names operations: vLLM's `additional_config`, {"layerzero": {"ops": [...]}}."""

from typing import Any

from layerzero.errors import UnknownNameError

OPS = ("fused_add_rms_norm", "linear", "rms_norm", "rotary_embedding", "sampler", "silu_and_mul", "gelu_and_mul")


def ops_of(vllm_config: Any) -> frozenset[str]:
    """The operations that this engine's configuration names; "all" is each of them. Raises UnknownNameError."""
    given = getattr(vllm_config, "additional_config", None)
    section = given.get("layerzero", {}) if isinstance(given, dict) else {}
    names = section.get("ops", ())
    names = names.split(",") if isinstance(names, str) else names
    if "all" in names:
        return frozenset(OPS)
    for name in names:
        if name not in OPS:
            raise UnknownNameError("additional_config: layerzero.ops", f"all, or some of {', '.join(OPS)}", repr(name))
    return frozenset(names)


def wanted(name: str) -> bool:
    """Whether the engine that is being built, whose configuration vLLM has set, names the operation."""
    from vllm.config import get_current_vllm_config_or_none

    return name in ops_of(get_current_vllm_config_or_none())
