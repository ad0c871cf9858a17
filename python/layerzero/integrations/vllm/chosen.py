"""The class that vLLM finds under the path of the backend: of latents (MLA) where the model has them."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "Backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    model = config.model_config if config is not None else None
    if model is not None and model.use_mla:
        from layerzero.integrations.vllm.latent import LayerZeroMLABackend

        return LayerZeroMLABackend
    from layerzero.integrations.vllm.attention import LayerZeroBackend

    return LayerZeroBackend
