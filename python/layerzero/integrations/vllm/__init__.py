"""LayerZero inside vLLM 0.25: a plugin of the group `vllm.general_plugins`, which vLLM loads in each of its processes.

    vllm serve MODEL --attention-backend LAYERZERO
    vllm serve MODEL --additional-config '{"layerzero": {"ops": ["silu_and_mul", "rotary_embedding"]}}'

Nothing is used unless it is named. docs/guide/vllm.md says what is served and what is refused.
"""

import logging

NAME = "LAYERZERO"  # of the attention backend
BACKEND = "layerzero.integrations.vllm.chosen.Backend"
_log = logging.getLogger("layerzero")


def register() -> None:
    """The plugin: makes the names known to vLLM. May run several times; a vLLM that it does not fit is a warning, since an
    exception would end every program that uses vLLM."""
    try:
        register_backend()
        from layerzero.integrations.vllm import layers, norms

        norms.register()
        layers.register()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        _log.warning("layerzero: this vLLM is not served (tested: 0.25.0): %s: %s", type(error).__name__, error)


def register_backend() -> None:
    """Puts the attention backend into vLLM's slot for further ones, CUSTOM, which has the name LAYERZERO from then on too."""
    from vllm.v1.attention.backends import registry

    slot = registry.AttentionBackendEnum.CUSTOM
    if slot.is_overridden() and slot.get_path() != BACKEND:
        raise ValueError(f"vLLM's slot for another attention backend holds {slot.get_path()}")
    registry.register_backend(slot, BACKEND)
    # An alias of the member: what is pickled for another process is CUSTOM, which exists there before any plugin.
    registry.AttentionBackendEnum._member_map_[NAME] = slot
