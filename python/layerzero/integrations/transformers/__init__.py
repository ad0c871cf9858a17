"""Hugging Face Transformers through LayerZero: `kernelize` a model, `unkernelize` it, or choose the attention alone."""

from layerzero.integrations.transformers.attention import register as register_with_transformers
from layerzero.integrations.transformers.kernelize import KernelizeReport, kernelize, unkernelize

__all__ = ["KernelizeReport", "kernelize", "register_with_transformers", "unkernelize"]
