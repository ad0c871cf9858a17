"""`lz.kernelize` and `lz.unkernelize`: the library that a model is of decides which integration serves it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerzero.integrations.diffusers.report import KernelizeReport as OfDiffusers
    from layerzero.integrations.transformers.counts import KernelizeReport


def _is_of_diffusers(model: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "diffusers" for kind in type(model).__mro__)


def _integration(model: Any) -> Any:
    if _is_of_diffusers(model):
        from layerzero.integrations import diffusers

        return diffusers
    try:
        from layerzero.integrations import transformers
    except ImportError as error:
        from layerzero.host.optional import as_not_installed

        if found := as_not_installed(error, "layerzero.kernelize"):
            raise found from None
        raise
    return transformers


def kernelize(model: Any, weights: str | None = None, **options: Any) -> "KernelizeReport | OfDiffusers":
    """Runs what LayerZero computes of a model through LayerZero, from here on; returns a report. Twice changes nothing more.

    A model of Transformers or any torch.nn.Module: `layerzero.integrations.transformers.kernelize`, with its options (weights, activations,
    accuracy_ids, max_perplexity_ratio, release_originals, quiet). A model or a pipeline of diffusers:
    `layerzero.integrations.diffusers.kernelize` (quiet), its text encoders as Transformers' models. Raises WrongTypeError for anything else.
    """
    return _integration(model).kernelize(model, weights, **options)


def unkernelize(model: Any) -> bool:
    """Puts everything back as it was before `kernelize`; returns whether there was something to undo."""
    return bool(_integration(model).unkernelize(model))
