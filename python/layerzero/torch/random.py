"""Random numbers of calls without a seed: torch.rand draws `uniform`, so that torch.manual_seed, generators, captured
graphs and torch.compile work as with torch's own operations."""

import functools
from typing import Any

from layerzero.contracts import contracts, is_seeded
from layerzero.errors import InvalidRequestError, WrongTypeError


def draw(rows: Any, pairs: int, generator: Any = None) -> Any:
    """Draws one number in [0, 1), or two, for each row of `rows` (..., vocab). The C binding's `draw` hook."""
    import torch

    shape = rows.shape[:-1]
    if pairs:
        shape = (*shape, 2)
    return torch.rand(shape, dtype=torch.float64, device=rows.device, generator=generator)


@functools.cache
def source(name: str) -> tuple[str, bool]:
    """Returns the name of the tensor with the rows to draw for, and whether a row takes two numbers."""
    shapes = {p["name"]: p["shape"] for p in contracts()[name]["params"] if p["kind"] == "tensor"}
    return [n for n, shape in shapes.items() if shape.endswith("vocab")][-1], shapes["uniform"].endswith("2")


def needs_draw(name: str, arguments: dict[str, Any]) -> bool:
    """True if random numbers must be drawn for a call; the contract refuses an offset alone."""
    given = any(arguments.get(n) is not None for n in ("seed", "uniform"))
    return is_seeded(contracts()[name]) and not given and not arguments.get("offset")


def with_draw(name: str, arguments: dict[str, Any], generator: Any = None) -> dict[str, Any]:
    """Returns the arguments with `uniform`, drawn if the call needs it."""
    if not needs_draw(name, arguments):
        return arguments
    rows, pairs = source(name)
    if arguments.get(rows) is None:
        return arguments
    return arguments | {"uniform": draw(arguments[rows], pairs, generator)}


def with_generator(torch: Any, name: str, arguments: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Returns the arguments with `uniform` from `generator`, which advances."""
    if not isinstance(generator, torch.Generator):
        raise WrongTypeError(f"{name}: generator", "a torch.Generator", type(generator).__name__)
    for other in ("seed", "offset", "uniform"):
        if arguments.get(other) is not None:
            raise InvalidRequestError(
                f"{name}: {other}", "none together with generator", "both", "leave one of them out"
            )
    device = arguments[source(name)[0]].device
    # A generator made for "cuda" has no index: torch uses the current device.
    if generator.device.type != device.type or generator.device.index not in (None, device.index):
        fix = f"make it with torch.Generator('{device}')"
        raise InvalidRequestError(
            f"{name}: generator", f"one of {device}, where the tensors are", f"{generator.device}", fix
        )
    return with_draw(name, arguments, generator)
