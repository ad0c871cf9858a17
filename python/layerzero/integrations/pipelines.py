"""Pipelines of diffusers and Transformers that are kernelized when they are built: the policy's `pipelines`, LAYERZERO_PIPELINES=1."""

import functools
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from layerzero.host.import_hook import when_imported
from layerzero.integrations import moves
from layerzero.integrations.kernelizing import kernelize

_OWN = "_layerzero_own"  # of a method that replaces another
_on = False


def _models_of_diffusers(_: Any, given: dict[str, Any]) -> list[Any]:
    return [part[1] if isinstance(part, tuple) else part for part in given.values()]


def _model_of_transformers(pipeline: Any, _: dict[str, Any]) -> list[Any]:
    return [getattr(pipeline, "model", None)]


def serve_pipelines(on: bool = True) -> None:
    """Kernelizes the models of each pipeline that is built from here on; False: of none any more. Pipelines that exist stay as they are.

    Nothing is imported for it: a library that the process has not imported yet is changed right after its import. A model that cannot be
    kernelized stays as it is, with a warning. One that is moved or gets another dtype afterwards is kernelized again.
    """
    global _on
    _on = on
    for name, change in _CHANGES.items():
        if on or name in sys.modules:
            when_imported(name, change)


def _change(module: ModuleType, kind: str, method: str, models_of: Callable[[Any, dict[str, Any]], list[Any]]) -> None:
    built = getattr(module, kind)
    now = getattr(built, method)
    own = getattr(now, _OWN, now)
    if not _on:
        setattr(built, method, own)
        return

    @functools.wraps(own)
    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = own(self, *args, **kwargs)
        for model in models_of(self, kwargs):
            if hasattr(model, "named_modules") and moves.follow(model, _of_pipeline):  # no tokenizer, no scheduler
                _of_pipeline(model)
        return result

    setattr(build, _OWN, own)
    setattr(built, method, build)


# Module -> what is done with it: the class and its method that knows the models of a new pipeline, and which they are.
_CHANGES = {
    "diffusers.pipelines.pipeline_utils": functools.partial(
        _change, kind="DiffusionPipeline", method="register_modules", models_of=_models_of_diffusers
    ),
    "transformers.pipelines.base": functools.partial(
        _change, kind="Pipeline", method="__init__", models_of=_model_of_transformers
    ),
}


def _of_pipeline(model: Any) -> None:
    kernelize_or_warn(model, "of a pipeline")


def kernelize_or_warn(model: Any, whose: str) -> None:
    """Kernelizes what has modules; a model for which that raises stays as it is, with a warning."""
    if not hasattr(model, "named_modules"):  # a tokenizer, a scheduler
        return
    try:
        kernelize(model, quiet=True)
    except Exception as error:  # of code that nobody knows: whoever needs the model has to get it
        warnings.warn(f"layerzero: {type(model).__name__} {whose} stays as it is: {error}", stacklevel=4)
