"""Models from local files: what `layerzero generate`, `bench e2e` and `demo` run."""

import importlib
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from layerzero.models.generation import Result, Sampling, Session
    from layerzero.models.gguf import default_model_path, load

__all__ = ["Result", "Sampling", "Session", "default_model_path", "load"]
_FROM_GGUF = ("default_model_path", "load")


def __getattr__(name: str) -> Any:
    """Imported when first used: the cache on disk is listed without torch."""
    if name not in __all__:
        raise AttributeError(f"module 'layerzero.models' has no attribute {name!r}")
    module = "gguf" if name in _FROM_GGUF else "generation"
    return getattr(importlib.import_module(f"layerzero.models.{module}"), name)
