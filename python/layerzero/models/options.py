"""Values of options, checked before a model is loaded."""

from layerzero.errors import InvalidRequestError, one_of

DTYPES = ("bf16", "f16", "f32")
WEIGHTS = ("gguf", "bf16", "int8", "int4")
ACTIVATIONS = ("input", "int8")


def check_weights(weights: str | None, activations: str) -> None:
    """Checks weights= and activations= of `kernelize`, as far as possible without the model."""
    if weights is not None:
        one_of("weights", weights, WEIGHTS)
    one_of("activations", activations, ACTIVATIONS)
    if weights == "bf16" and activations != "input":
        fix = "the activations are rounded to bf16 too"
        raise InvalidRequestError("activations", "'input' with weights='bf16'", repr(activations), fix)
