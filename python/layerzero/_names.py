"""Checks of names that a user passes: a known one, or an error with the nearest known one."""

from collections.abc import Iterable

from layerzero._refusals import refuse_name, refuse_request

# Values of options, checked before a model is loaded.
DTYPES = ("bf16", "f16", "f32")
WEIGHTS = ("gguf", "bf16", "int8", "int4")
ACTIVATIONS = ("input", "int8")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean rms_norm?", or "" if no name is near."""
    names = list(known)
    parts = sorted(name.split("."))
    for other in names:  # the same parts in another order
        if sorted(other.split(".")) == parts:
            return f"did you mean {other}?"
    import difflib  # only imported for a wrong name, not by import layerzero

    folded = {_folded(k): k for k in reversed(names)}
    near = difflib.get_close_matches(_folded(name), folded, n=1, cutoff=0.7)
    return f"did you mean {folded[near[0]]}?" if near else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def one_of(field: str, value: str, known: Iterable[str]) -> str:
    """Returns `value` if it is known, else raises InvalidRequestError with all known ones."""
    names = list(known)
    if value not in names:
        refuse_request(field, f"one of {', '.join(names)}", repr(value), did_you_mean(value, names))
    return value


def known_name(field: str, what: str, value: str, known: Iterable[str], where: str) -> str:
    """Returns `value` if it is known, else raises UnknownNameError with the nearest name or `where` to find names."""
    names = list(known)
    if value not in names:
        refuse_name(field, what, repr(value), did_you_mean(value, names) or where)
    return value


def check_weights(weights: str | None, activations: str) -> None:
    """Checks weights= and activations= of `kernelize`, as far as possible without the model."""
    if weights is not None:
        one_of("weights", weights, WEIGHTS)
    one_of("activations", activations, ACTIVATIONS)
    if weights == "bf16" and activations != "input":
        fix = "the activations are rounded to bf16 too"
        refuse_request("activations", "'input' with weights='bf16'", repr(activations), fix)
