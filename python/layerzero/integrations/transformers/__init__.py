"""Hugging Face Transformers through LayerZero: `compile` or `kernelize` a model, or choose attention or experts alone."""

from layerzero.integrations.transformers.caches.paged_cache import PagedCache
from layerzero.integrations.transformers.compiled import ModelPlan, compile, dry_run
from layerzero.integrations.transformers.kernelize import KernelizeReport, kernelize, unkernelize
from layerzero.integrations.transformers.run import attention, experts

__all__ = [
    "KernelizeReport",
    "ModelPlan",
    "PagedCache",
    "compile",
    "dry_run",
    "kernelize",
    "register_with_transformers",
    "unkernelize",
]


def register_with_transformers() -> None:
    """Makes attn_implementation="layerzero" and experts_implementation="layerzero" known; twice is harmless."""
    attention.register()
    experts.register()
