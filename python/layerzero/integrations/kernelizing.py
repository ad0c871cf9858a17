"""`lz.kernelize` and `lz.unkernelize`: the library that a model is of decides which integration serves it."""

from typing import TYPE_CHECKING, Any

from layerzero.errors import WrongTypeError
from layerzero.host import optional

if TYPE_CHECKING:
    from layerzero.integrations.diffusers.report import KernelizeReport as OfDiffusers
    from layerzero.integrations.transformers.counts import KernelizeReport


def is_of(library: str, model: Any) -> bool:
    """Whether the model's class, or one that it derives from, is of this library."""
    return any(kind.__module__.partition(".")[0] == library for kind in type(model).__mro__)


def _integration(model: Any) -> Any:
    if is_of("diffusers", model):
        from layerzero.integrations import diffusers

        return diffusers
    with optional.needed_for("layerzero.kernelize"):
        from layerzero.integrations import transformers

        return transformers


def kernelize(model: Any, weights: str | None = None, **options: Any) -> "KernelizeReport | OfDiffusers":
    """Replaces the parts of a model that LayerZero computes, and returns a report. A second call changes nothing more.

    A model of Transformers or any torch.nn.Module: `layerzero.integrations.transformers.kernelize`, with its options (weights, activations,
    accuracy_ids, max_perplexity_ratio, release_originals, quiet, sampling). A model or a pipeline of diffusers:
    `layerzero.integrations.diffusers.kernelize` (quiet, graphs), its text encoders as Transformers' models. Raises WrongTypeError for anything else.
    """
    return _integration(model).kernelize(model, weights, **options)


def unkernelize(model: Any) -> bool:
    """Restores a model as it was before `kernelize`; returns whether there was something to undo."""
    _integration(model)  # says first what is not installed
    if not (hasattr(model, "modules") or hasattr(model, "components")):  # a module, or a pipeline of diffusers
        raise WrongTypeError("unkernelize", "a torch.nn.Module or a pipeline of diffusers", type(model).__name__)
    from layerzero.integrations import moves

    moves.forget(model)
    return undo(model)


def undo(model: Any) -> bool:
    """Restores a model, which may be kernelized again when it moves."""
    return bool(_integration(model).unkernelize(model))
