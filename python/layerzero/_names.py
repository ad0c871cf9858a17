"""Names that a user gives: one of those that there are, or an error with the nearest."""

from collections.abc import Iterable

from layerzero._refusals import refuse_name, refuse_request

# Values of options that are checked before a model is loaded.
DTYPES = ("bf16", "f16", "f32")
WEIGHTS = ("gguf", "bf16", "int8", "int4")
ACTIVATIONS = ("input", "int8")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The text "did you mean rms_norm?", or "" where no name is near."""
    names = list(known)
    parts = sorted(name.split("."))
    for other in names:  # the right parts in another order
        if sorted(other.split(".")) == parts:
            return f"did you mean {other}?"
    import difflib  # a name is wrong: import layerzero does without

    folded = {_folded(k): k for k in reversed(names)}
    near = difflib.get_close_matches(_folded(name), folded, n=1, cutoff=0.7)
    return f"did you mean {folded[near[0]]}?" if near else ""


def _folded(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def one_of(field: str, value: str, known: Iterable[str]) -> str:
    """`value`, if it is known; else InvalidRequestError with all of them: for lists that fit into a line."""
    names = list(known)
    if value not in names:
        refuse_request(field, f"one of {', '.join(names)}", repr(value), did_you_mean(value, names))
    return value


def known_name(field: str, what: str, value: str, known: Iterable[str], where: str) -> str:
    """`value`, if it is known; else UnknownNameError with the nearest name, or `where` they are listed."""
    names = list(known)
    if value not in names:
        refuse_name(field, what, repr(value), did_you_mean(value, names) or where)
    return value


def check_weights(weights: str | None, activations: str) -> None:
    """What `kernelize` takes as weights= and activations=, whatever the model is."""
    if weights is not None:
        one_of("weights", weights, WEIGHTS)
    one_of("activations", activations, ACTIVATIONS)
    if weights == "bf16" and activations != "input":
        fix = "what is multiplied is rounded to bf16 too"
        refuse_request("activations", "'input' with weights='bf16'", repr(activations), fix)
