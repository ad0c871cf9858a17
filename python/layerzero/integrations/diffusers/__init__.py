"""diffusers through LayerZero: an attention backend, attention processors, and `kernelize` of models and pipelines."""

from typing import Any

from layerzero.integrations.diffusers.backend import NAME, register_backend

__all__ = [
    "NAME",
    "KernelizeReport",
    "LayerZeroAttnAddedKVProcessor",
    "LayerZeroAttnProcessor",
    "LayerZeroJointAttnProcessor",
    "kernelize",
    "processor_of",
    "register_backend",
    "unkernelize",
]
_LAZY = {
    "KernelizeReport": "report",
    "LayerZeroAttnAddedKVProcessor": "processors",
    "LayerZeroAttnProcessor": "processors",
    "LayerZeroJointAttnProcessor": "processors",
    "kernelize": "kernelizing",
    "processor_of": "processors",
    "unkernelize": "kernelizing",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value
