"""LayerZero inside SGLang 0.5: a plugin of the group `sglang.srt.plugins`, which SGLang loads in each of its processes.

    sglang serve --model-path MODEL --attention-backend layerzero --sampling-backend layerzero

Nothing is used unless it is named. docs/guide/sglang.md says what is served and what is refused.
"""

import logging
from typing import Any

from layerzero.host.import_hook import when_imported

NAME = "layerzero"  # of both backends
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_SAMPLER = "sglang.srt.layers.sampler"
_RUNNER = "sglang.srt.model_executor.model_runner"
_LATENTS = "sglang.srt.models.deepseek_common.attention_backend_handler"
_log = logging.getLogger("layerzero")


def register() -> None:
    """The plugin: makes the names known to SGLang. May run several times; an SGLang that it does not fit is a warning,
    since its plugins run in every program that uses it."""
    try:
        _add_choices()  # the other modules are never imported in processes without a model
        when_imported(_REGISTRY, _register_attention)
        when_imported(_SAMPLER, _register_sampler)
        when_imported(_LATENTS, _register_latents)
        when_imported(_RUNNER, _serve_prefix_chunks)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        _log.warning(
            "layerzero: this SGLang is not served (tested: 0.5.15, 0.5.23): %s: %s", type(error).__name__, error
        )


def _add_choices() -> None:
    """Of the command line, which SGLang reads right after its plugins."""
    from sglang.srt import server_args

    if NAME not in server_args.ATTENTION_BACKEND_CHOICES:
        server_args.add_attention_backend_choices([NAME])
    server_args.SAMPLING_BACKEND_CHOICES.add(NAME)
    _serve_prefix_chunks(server_args)


def _serve_prefix_chunks(module: Any) -> None:
    """SGLang's list of backends that attend to a prefix of latents in chunks is in one of two modules."""
    if NAME not in getattr(module, "CHUNKED_PREFIX_CACHE_SUPPORTED_ATTENTION_BACKENDS", (NAME,)):
        module.add_chunked_prefix_cache_attention_backend(NAME)


def _register_attention(registry: Any) -> None:
    if NAME not in registry.ATTENTION_BACKENDS:
        registry.register_attention_backend(NAME)(create_attention_backend)


def _register_sampler(sampler: Any) -> None:
    if NAME not in sampler._CUSTOM_SAMPLER_FACTORIES:
        sampler.register_sampler_backend(NAME, create_sampler)


def _register_latents(handlers: Any) -> None:
    from layerzero.integrations.sglang.latent import forward_method

    handlers.AttentionBackendRegistry.register(NAME, forward_method)


def create_attention_backend(runner: Any) -> Any:
    """The factory of SGLang's registry: of latents (MLA) where the model has them. Raises ValueError with the reasons
    for a model or an option that is not served."""
    from layerzero.integrations.sglang.refused import reasons

    if found := reasons(runner):
        raise ValueError(f"--attention-backend {NAME}: {'; '.join(found)}")
    if runner.use_mla_backend:
        from layerzero.integrations.sglang.latent import LayerZeroMLABackend

        return LayerZeroMLABackend(runner)
    from layerzero.integrations.sglang.attention import LayerZeroBackend

    return LayerZeroBackend(runner)


def create_sampler() -> Any:
    """The factory of SGLang's registry of samplers."""
    from layerzero.integrations.sglang.sampling import LayerZeroSampler

    return LayerZeroSampler()
