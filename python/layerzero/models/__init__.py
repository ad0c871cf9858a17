"""Models from local files: what `layerzero generate`, `bench e2e` and `demo` run."""

from layerzero.models.generation import Result, Sampling, Session
from layerzero.models.gguf import default_model_path, load

__all__ = ["Result", "Sampling", "Session", "default_model_path", "load"]
