"""The random numbers of calls that give no seed: drawn as `uniform` by torch.rand, so that torch.manual_seed, generators,
captured graphs and torch.compile govern them as they govern torch's own operations."""

import functools
from typing import Any

from layerzero._contracts import contracts, is_seeded
from layerzero._refusals import refuse, refuse_request


def draw(rows: Any, pairs: int, generator: Any = None) -> Any:
    """A number of [0, 1) for each row of `rows` (..., vocab), or two. The C binding's `draw` hook."""
    import torch

    shape = rows.shape[:-1]
    if pairs:
        shape = (*shape, 2)
    return torch.rand(shape, dtype=torch.float64, device=rows.device, generator=generator)


@functools.cache
def source(name: str) -> tuple[str, bool]:
    """The tensor that has the rows to draw for, and whether a row takes two numbers."""
    shapes = {p["name"]: p["shape"] for p in contracts()[name]["params"] if p["kind"] == "tensor"}
    return [n for n, shape in shapes.items() if shape.endswith("vocab")][-1], shapes["uniform"].endswith("2")


def leaves_draw(name: str, arguments: dict[str, Any]) -> bool:
    """Whether a call leaves its random numbers to be drawn; an offset alone is refused by the contract."""
    given = any(arguments.get(n) is not None for n in ("seed", "uniform"))
    return is_seeded(contracts()[name]) and not given and not arguments.get("offset")


def with_draw(name: str, arguments: dict[str, Any], generator: Any = None) -> dict[str, Any]:
    """The arguments with `uniform`, where a call leaves it to be drawn."""
    if not leaves_draw(name, arguments):
        return arguments
    rows, pairs = source(name)
    if arguments.get(rows) is None:
        return arguments
    return arguments | {"uniform": draw(arguments[rows], pairs, generator)}


def with_generator(torch: Any, name: str, arguments: dict[str, Any], generator: Any) -> dict[str, Any]:
    """The arguments with `uniform` from `generator`, which moves on."""
    if not isinstance(generator, torch.Generator):
        refuse(f"{name}: generator", "a torch.Generator", type(generator).__name__)
    for other in ("seed", "offset", "uniform"):
        if arguments.get(other) is not None:
            refuse_request(f"{name}: {other}", "none together with generator", "both", "leave one of them out")
    device = arguments[source(name)[0]].device
    # A generator made for "cuda" has no index: torch takes the current device's.
    if generator.device.type != device.type or generator.device.index not in (None, device.index):
        fix = f"make it with torch.Generator('{device}')"
        refuse_request(f"{name}: generator", f"one of {device}, where the tensors are", f"{generator.device}", fix)
    return with_draw(name, arguments, generator)
