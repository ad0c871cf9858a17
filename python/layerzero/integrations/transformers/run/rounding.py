"""Whether products with blocks round activations to 8 bits if the caller allows it: measured once for each model."""

import dataclasses
import math
import statistics
import time

import torch

from layerzero.integrations.transformers.run.blocks import BF16, BlockLinear

ROUNDS = 3
ROWS = (1, 64)  # a token, and a part of a prompt that is long enough for the kernels of prompts
AT_MOST = 32 << 20  # bytes of weights that are multiplied with in turn: more than caches keep
CLEARLY = 0.95  # largest product of the ratios for ROWS with which rounding is used: above it may be noise


def choose(allowed: str, linears: list[BlockLinear]) -> tuple[str, str]:
    """("input" or "int8", why): the activations for `linears`.

    Rounding is worth its error only if it is clearly faster, which depends on the CPU. Both ways are timed in turns with the
    model's own weights.
    """
    if allowed == "int8" and any(linear.weight.as_rows for linear in linears):
        return "input", "the device's kernels round nothing"
    taken = _some(linears)
    if allowed != "int8" or not taken:
        return allowed, ""
    ratios = {rows: _slower(taken, rows) for rows in ROWS}
    said = ", ".join(f"{ratio:.2f} at {rows} rows" for rows, ratio in ratios.items())
    return "int8" if math.prod(ratios.values()) <= CLEARLY else "input", f"int8 takes this many times as long: {said}"


def _some(linears: list[BlockLinear]) -> list[BlockLinear]:
    """The first layers with quantized blocks, up to AT_MOST bytes."""
    taken: list[BlockLinear] = []
    for linear in linears:
        if linear.weight.format != BF16 and sum(one.weight.nbytes for one in taken) < AT_MOST:
            taken.append(linear)
    return taken


def _slower(linears: list[BlockLinear], rows: int) -> float:
    """The time of products of `rows` rows with int8 activations, relative to products without rounding."""
    inputs = [_rows(rows, linear.parameter) for linear in linears]
    products = {name: [dataclasses.replace(one, activations=name) for one in linears] for name in ("int8", "input")}
    seconds: dict[str, list[float]] = {name: [] for name in products}
    with torch.inference_mode():
        for _ in range(ROUNDS + 1):
            for name, calls in products.items():
                start = time.perf_counter()
                for call, given in zip(calls, inputs, strict=True):
                    call(given, None)
                seconds[name].append(time.perf_counter() - start)
    pairs = zip(seconds["int8"][1:], seconds["input"][1:], strict=True)  # the first ones bring pages in
    return statistics.median(rounded / given for rounded, given in pairs)


def _rows(rows: int, parameter: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, parameter.shape[1], dtype=parameter.dtype, device="cpu").repeat(rows, 1)
