"""Models from local files, for `layerzero generate`, `bench e2e` and `demo`."""

import importlib
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from layerzero.models.generation import Result, Sampling, Session
    from layerzero.models.gguf import default_model_path, load

__all__ = ["Result", "Sampling", "Session", "default_model_path", "load"]
_FROM_GGUF = ("default_model_path", "load")


def __getattr__(name: str) -> Any:
    """Imports on first use, so that listing the disk cache does not need torch."""
    if name not in __all__:
        raise AttributeError(f"module 'layerzero.models' has no attribute {name!r}")
    module = "gguf" if name in _FROM_GGUF else "generation"
    return getattr(importlib.import_module(f"layerzero.models.{module}"), name)
